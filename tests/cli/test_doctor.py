"""``fxdask doctor``, and the completion of words by shells."""

import json
import os

import numpy as np
import pytest
from command_line import run_here
from processes import run_python

import fxdask
from fxdask.execution import diagnosis


def test_this_machine_is_described(tmp_path):
    np.save(tmp_path / "X.npy", np.zeros((3, 2)))
    run = run_here(tmp_path, "doctor", "X.npy")
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert all(line.startswith("ok ") for line in lines)
    words = [line.split() for line in lines]
    assert ["ok", "fxdask", fxdask.__version__] in words
    assert ["ok", "X.npy", "can", "be", "reached"] in words
    assert any(line[1] == "memory" for line in words)
    assert any(line[1:4] == ["BLAS", "of", "NumPy"] and "unknown" not in line for line in words)


@pytest.mark.parametrize(
    ("architecture", "flags", "is_told"),
    [("Haswell", {"avx2", "avx512f"}, True), ("Haswell", {"avx2"}, False), ("SkylakeX", {"avx512f"}, False)],
)
def test_a_processor_that_openblas_does_not_know_is_told(monkeypatch, architecture, flags, is_told):
    library = {"user_api": "blas", "internal_api": "openblas", "version": "0.3", "architecture": architecture}
    monkeypatch.setattr(diagnosis, "blas_of_numpy", lambda: library)
    monkeypatch.setattr(diagnosis, "_processor_flags", lambda: flags)
    (found,) = [finding.found for finding in diagnosis.findings_here([]) if finding.what == "BLAS of NumPy"]
    assert found.startswith(f"openblas 0.3 for {architecture}")
    assert ("OPENBLAS_CORETYPE=SkylakeX" in found) == is_told


def test_what_is_wrong_is_told(tmp_path):
    run = run_here(tmp_path, "doctor", "nowhere.zarr", "--scheduler", "nonsense", "--json")
    assert run.returncode == 1
    told = json.loads(run.stdout)
    assert told["good"] is False
    wrong = {line["what"]: line["found"] for line in told["findings"] if not line["good"]}
    assert wrong["nowhere.zarr"] == "cannot be reached (it does not exist)"
    assert wrong["scheduler"].startswith("no Dask scheduler answers at nonsense")
    assert set(wrong) == {"nowhere.zarr", "scheduler"}


def test_stores_to_be_made_are_no_mistake(tmp_path):
    """A job makes missing folders, too."""
    (tmp_path / "file").touch()
    stores = ("new.zarr", "new folder/new.zarr", "file/new.zarr")
    run = run_here(tmp_path, "doctor", *(word for store in stores for word in ("--store", store)), "--json")
    assert run.returncode == 1
    found = {line["what"]: (line["found"], line["good"]) for line in json.loads(run.stdout)["findings"]}
    assert found["new.zarr"] == found["new folder/new.zarr"] == ("can be made", True)
    assert found["file/new.zarr"] == (f"cannot be made: {tmp_path / 'file'} is no folder", False)
    (tmp_path / "new.zarr").mkdir()
    again = run_here(tmp_path, "doctor", "--store", "new.zarr")
    assert again.returncode == 0, again.stdout
    assert "is there and can be written" in again.stdout


def completed(*words):
    setting = {"_FXDASK_COMPLETE": "bash_complete", "COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    program = "import sys; sys.argv = ['fxdask']; from fxdask.cli.main import main; main()"
    _, out, err = run_python("-c", program, **setting)
    assert err == ""
    return [line.partition(",")[2] for line in out.split(os.linesep) if line]


def test_shells_complete_commands_and_options():
    assert completed("fxdask", "re") == ["responses", "report", "reproduce"]
    assert completed("fxdask", "fit", "--wait") == ["--wait-for-workers"]
