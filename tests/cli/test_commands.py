"""The command line: words in, exit status, standard output and standard error out.

Each exit status is also that of a real process once; the rest runs in this process, which takes less time.
"""

import json
import os
import pty
import subprocess
import sys

import numpy as np
import pytest
import zarr
from command_line import run_here

import fxdask


@pytest.fixture
def folder(two_blobs, tmp_path):
    X, y = two_blobs
    np.save(tmp_path / "X.npy", X[:160])
    np.save(tmp_path / "y.npy", y[:160])
    zarr.create_array(tmp_path / "test.zarr", data=X[160:], chunks=(30, 6))
    np.save(tmp_path / "truth.npy", y[160:])
    return tmp_path


def run_apart(folder, *words):
    """In a process of its own, as a user runs it."""
    return subprocess.run(
        [sys.executable, "-m", "fxdask", *map(str, words)],
        capture_output=True,
        text=True,
        cwd=folder,
        check=False,
    )


FIT = ("fit", "X.npy", "y.npy", "model.zarr", "--nodes", 200, "--selected", 4)


def test_fit_score_info(folder, two_blobs):
    X, y = two_blobs
    fitted = run_apart(folder, *FIT, "--normalize", "feature", "--bandwidth", "scott", "--json")
    assert fitted.returncode == 0, fitted.stderr
    facts = json.loads(fitted.stdout)
    assert facts["parameters"]["n_nodes"] == 200
    assert facts["parameters"]["normalize"] == "feature"
    assert facts["classes"][1]["label"] == 1
    assert facts["classes"][1]["samples"] == 80
    assert facts["fit"]["n_blocks"] == 1

    scored = run_here(folder, "score", "model.zarr", "test.zarr", "scored.zarr", "--labels", "truth.npy", "--json")
    assert scored.returncode == 0, scored.stderr
    model = fxdask.load(folder / "model.zarr")
    assert json.loads(scored.stdout)["accuracy"] == model.score(X[160:], y[160:])
    assert np.array_equal(zarr.open_group(folder / "scored.zarr")["labels"][:], model.predict(X[160:]))

    told = json.loads(run_here(folder, "info", "model.zarr", "--json").stdout)
    assert told["inputs"] == 6
    assert told["parameters"]["bandwidth"] == "scott"
    assert told["bytes"] > 200 * 6 * 4
    people = run_here(folder, "info", "model.zarr")
    assert people.returncode == 0
    assert "extended_fisher" in people.stdout
    assert people.stderr == ""


def test_a_dry_run_shows_the_plan_and_writes_nothing(folder):
    before = sorted(folder.iterdir())
    shown = run_here(folder, *FIT, "--dry-run", "--memory-limit", "8GiB")
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.strip().split("  ", 1) for line in shown.stdout.splitlines()[1:])
    assert lines["blocks"].strip() == "1"
    assert lines["samples"].strip() == "160"
    assert lines["values held"].strip() == "of all samples"
    assert lines["bytes read"].strip() == "3.8 KiB"
    told = json.loads(run_here(folder, *FIT, "--dry-run", "--json").stdout)["plan"]
    assert told["bytes_read"] == 160 * 6 * 4
    assert 0 < told["bytes_per_task"] < told["bytes_allowed_per_task"]
    assert sorted(folder.iterdir()) == before


def test_memory_limits(folder):
    wrong = run_here(folder, *FIT, "--memory-limit", "plenty")
    assert wrong.returncode == 2
    assert "'plenty' is neither a number of bytes nor a text such as 2GiB" in wrong.stderr
    little = run_here(folder, *FIT, "--memory-limit", "10MiB")
    assert little.returncode == 1
    assert "MiB at least but may use 0 B: 0.6 of the limit of 10.0 MiB less the" in little.stderr
    assert little.stderr.count("\n") == 1
    assert not (folder / "model.zarr").exists()


def test_info_of_scores(folder):
    run_here(folder, *FIT)
    run_here(folder, "score", "model.zarr", "test.zarr", "scored.zarr", "--labels", "truth.npy")
    told = json.loads(run_here(folder, "info", "scored.zarr", "--json").stdout)
    assert told["samples"] == 80
    assert told["finished"]
    assert 0 <= told["accuracy"] <= 1


def test_info_of_an_unfinished_model(folder):
    run_here(folder, *FIT, "--nodes-per-block", 50)
    group = zarr.open_group(folder / "model.zarr")
    group.attrs["fxdask"] = {**group.attrs["fxdask"], "finished": False}
    (folder / "model.zarr" / "blocks_done" / "c" / "1").unlink()
    told = json.loads(run_here(folder, "info", "model.zarr", "--json").stdout)
    assert not told["finished"]
    assert told["blocks"] == {"done": 3, "of": 4}


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("fit", "X.npy"), 2, "Missing argument 'LABELS'"),
        (("fit", "X.npy", "y.npy", "m.zarr", "--nodes", "none"), 2, "'none' is not a valid integer"),
        (
            ("fit", "X.npy", "y.npy", "m.zarr", "--criterion", "gini"),
            2,
            "is not one of 'extended_fisher', 'fisher'",
        ),
        (("fit", "X.npy", "y.npy", "m.zarr", "--bandwidth", "wide"), 2, "neither a number nor one of"),
        (("fit", "X.npy", "y.npy", "m.zarr", "--bandwidth", "-1"), 2, "-1 is not above 0"),
        (("frobnicate",), 2, "No such command 'frobnicate'"),
        (("fit", "nowhere.npy", "y.npy", "m.zarr"), 1, "error: there is no file or folder nowhere.npy"),
        (("fit", "X.npy", "truth.npy", "m.zarr"), 1, "error: y has 80 labels but X has 160 samples"),
        (
            ("fit", "X.npy", "y.npy", "m.zarr", "--selected", 9, "--nodes", 5),
            2,
            "--selected 9 is more than --nodes 5",
        ),
        (("info", "nowhere"), 1, "error: there is no fxdask store at"),
        (("score", "nowhere", "test.zarr", "out.zarr"), 1, "error: there is no fxdask store at"),
        (
            ("fit", "X.npy", "y.npy", "m.zarr", "--scheduler", "nonsense"),
            1,
            "error: no Dask scheduler answers at nonsense",
        ),
    ],
)
def test_what_goes_wrong_is_said_in_a_line(folder, words, status, sentence):
    assert_one_line(run_here(folder, *words), status, sentence)
    assert not (folder / "m.zarr").exists()


def assert_one_line(done, status, sentence):
    assert done.returncode == status
    assert sentence in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if status == 1:
        assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.parametrize(
    ("words", "status", "sentence"),
    [
        (("fit", "X.npy"), 2, "Missing argument 'LABELS'"),
        (("info", "nowhere"), 1, "error: there is no fxdask store at"),
    ],
)
def test_a_process_ends_with_the_same_status(folder, words, status, sentence):
    assert_one_line(run_apart(folder, *words), status, sentence)


def test_a_second_fit_needs_leave_to_overwrite(folder):
    run_here(folder, *FIT)
    other = run_here(folder, *FIT, "--seed", 5)
    assert other.returncode == 1
    assert "seed=0 instead of 5; choose another path, or pass --overwrite to replace it" in other.stderr
    assert run_here(folder, *FIT, "--seed", 5, "--overwrite").returncode == 0
    assert fxdask.load(folder / "model.zarr").seed_ == 5


def test_logging(folder):
    silent = run_apart(folder, *FIT, "--quiet")
    assert silent.stderr == ""
    told = run_here(folder, *FIT, "--overwrite", "--quiet", "--verbose")
    assert "fxdask.workflows.fit: fitting 200 nodes in 1 blocks" in told.stderr


def test_a_progress_bar_in_a_terminal(folder):
    """On a real pseudo-terminal, because the bar is drawn for nobody else."""
    words = [sys.executable, "-m", "fxdask", *map(str, FIT), "--nodes-per-block", "50"]
    watched, terminal = pty.openpty()
    process = subprocess.Popen(words, cwd=folder, stdout=subprocess.DEVNULL, stderr=terminal)
    os.close(terminal)
    seen = b""
    while True:
        try:
            part = os.read(watched, 4096)
        except OSError:
            break
        if not part:
            break
        seen += part
    assert process.wait() == 0
    assert b"4/4" in seen
    assert b"fitting" in seen
