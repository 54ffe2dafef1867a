"""The programs of scripts/examples run as users run them, and show what they are for."""

import contextlib
import io
import re
import runpy
import subprocess
import sys
from unittest.mock import patch

import pytest
from docs.documents import ROOT

EXAMPLES = sorted((ROOT / "scripts" / "examples").glob("*.py"))


def run_here(name, folder):
    """Run an example in this process, which has loaded its libraries already -> what it printed."""
    path, printed = str(ROOT / "scripts" / "examples" / name), io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), patch.object(sys, "argv", [path]):
        runpy.run_path(path, run_name="__main__")
    return printed.getvalue()


def run(name, folder, *words):
    """Run an example that starts workers, in a folder of its own -> what it printed."""
    command = [sys.executable, ROOT / "scripts" / "examples" / name, *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(text):
    return [float(number) for number in re.findall(r"\d+(?:\.\d+)?", text.replace(",", ""))]


def test_every_example_is_short_and_tested():
    tested = {"rank_parquet.py", "local_cluster.py", "slurm.py", "outliers.py", "pipeline.py"}
    assert {path.name for path in EXAMPLES} == tested
    for path in EXAMPLES:
        assert len(path.read_text().splitlines()) <= 60, path.name


def test_columns_of_a_parquet_folder_are_ranked(tmp_path):
    lines = run_here("rank_parquet.py", tmp_path).splitlines()
    wide, shifted = {"sensor_03", "sensor_11", "sensor_27"}, "sensor_20"
    first = {line.split()[0]: line.split()[1:] for line in lines[:3]}
    assert set(first["extended_fisher"][:3]) == wide
    assert first["pearson"][0] == shifted
    assert lines[3].startswith("4 of 30 columns")
    assert set(lines[3].split()[-4:]) == wide | {shifted}


def test_a_fit_and_scores_on_a_local_cluster(tmp_path):
    _, accuracy, stored = run("local_cluster.py", tmp_path, "kept").splitlines()
    assert numbers(accuracy)[0] > 80
    assert stored == "labels in scored.zarr (20000,)"
    assert (tmp_path / "kept" / "model.zarr" / "zarr.json").exists()


@pytest.mark.full
def test_the_example_for_slurm_runs_without_slurm(tmp_path):
    """With its option for workers on this machine; tests/cluster/test_deployed.py starts them as jobs."""
    accuracy, n_processes = numbers(run("slurm.py", tmp_path, "kept", "--local"))
    assert accuracy > 90
    assert n_processes == 2


def test_the_example_for_slurm_needs_a_folder():
    command = [sys.executable, ROOT / "scripts" / "examples" / "slurm.py"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "usage: python slurm.py FOLDER [--local]\n"


def test_outliers_are_found(tmp_path):
    found, alarms, area, strangest = run_here("outliers.py", tmp_path).splitlines()
    assert numbers(found)[0] > 50
    assert numbers(alarms)[0] < 15
    assert numbers(area)[0] > 0.9
    assert sum(digit in strangest.split()[-10:] for digit in "789") > 0


def test_a_pipeline_finds_features_and_is_calibrated(tmp_path):
    searched, fitted, calibrated = run_here("pipeline.py", tmp_path).splitlines()
    assert searched == "k = 10; 10 of 10 are found"
    (_, loss_before), (accuracy, loss) = numbers(fitted), numbers(calibrated)
    assert accuracy > 80
    assert loss < loss_before < 0.6
