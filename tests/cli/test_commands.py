"""The command line: exit status, standard output and standard error.

Each exit status is also checked once in a separate process. The other tests run the command line in this process,
which is faster.
"""

import json
import os
import pty
import re
import subprocess
import sys
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from command_line import run_here
from processes import run_python

import fxdask
from fxdask.cli.main import _one_line
from fxdask.errors import InvalidInputError


def samples_in(folder, X, y):
    np.save(folder / "X.npy", X[:160])
    np.save(folder / "y.npy", y[:160])
    zarr.create_array(folder / "test.zarr", data=X[160:], chunks=(30, 6))
    np.save(folder / "truth.npy", y[160:])
    return folder


@pytest.fixture
def folder(two_blobs, tmp_path):
    return samples_in(tmp_path, *two_blobs)


def run_apart(folder, *arguments):
    """Run the command line in a separate process."""
    status, out, err = run_python("-m", "fxdask", *arguments, folder=folder)
    return SimpleNamespace(returncode=status, stdout=out, stderr=err)


@pytest.fixture(scope="module")
def fitted_apart(two_blobs, tmp_path_factory):
    """A folder with a model that a separate process fitted with --quiet, and what that process printed."""
    folder = samples_in(tmp_path_factory.mktemp("apart"), *two_blobs)
    words = ("--normalize", "feature", "--bandwidth", "scott", "--combine", "sum", "--selection", "top")
    return folder, run_apart(folder, *FIT, *words, "--json", "--quiet")


FIT = ("fit", "X.npy", "y.npy", "model.zarr", "--nodes", 200, "--selected", 4)


def test_fit_score_and_info_agree_with_python(fitted_apart, two_blobs):
    X, y = two_blobs
    folder, fitted = fitted_apart
    assert fitted.returncode == 0, fitted.stderr
    facts = json.loads(fitted.stdout)
    assert set(facts) == {
        "already_done",
        "store",
        "features",
        "projection",
        "seed",
        "parameters",
        "normalization",
        "temperature",
        "nodes_selected",
        "spreads_from",
        "most_important_features",
        "classes",
        "fit",
    }
    assert facts["parameters"]["n_nodes"] == 200
    assert facts["parameters"]["normalize"] == "feature"
    assert facts["classes"][1]["label"] == 1
    assert facts["classes"][1]["samples"] == 80
    assert facts["fit"]["n_blocks"] == 1

    scored = run_here(folder, "score", "model.zarr", "test.zarr", "scored.zarr", "--labels", "truth.npy", "--json")
    assert scored.returncode == 0, scored.stderr
    model = fxdask.load(folder / "model.zarr")
    result = json.loads(scored.stdout)
    assert result["accuracy"] == model.score(X[160:], y[160:])
    assert set(result) == {
        "already_done",
        "store",
        "samples",
        "samples_resumed",
        "seconds",
        "samples_per_second",
        "share_decided_by_exact_sums",
        "chunks_by_process",
        "bytes_read_by_process",
        "peak_bytes_by_process",
        "accuracy",
        "confusion",
    }
    assert np.array_equal(zarr.open_group(folder / "scored.zarr")["labels"][:], model.predict(X[160:]))

    info = json.loads(run_here(folder, "info", "model.zarr", "--json").stdout)
    assert info["features"] == 6
    assert info["parameters"]["bandwidth"] == "scott"
    assert info["bytes"] > 200 * 6 * 4
    as_text = run_here(folder, "info", "model.zarr")
    assert as_text.returncode == 0
    assert "extended_fisher" in as_text.stdout
    assert as_text.stderr == ""


def test_a_dry_run_prints_the_plan_and_writes_nothing(folder):
    before = sorted(folder.iterdir())
    shown = run_here(folder, *FIT, "--dry-run", "--memory-limit", "8GiB")
    assert shown.returncode == 0, shown.stderr
    lines = dict(line.strip().split("  ", 1) for line in shown.stdout.splitlines()[1:])
    assert lines["blocks"].strip() == "1"
    assert lines["samples"].strip() == "160"
    assert lines["values held"].strip() == "of all samples"
    assert lines["bytes read"].strip() == "3.8 KiB"
    plan = json.loads(run_here(folder, *FIT, "--dry-run", "--json").stdout)["plan"]
    assert plan["bytes_read"] == 160 * 6 * 4
    assert 0 < plan["bytes_per_task"] < plan["bytes_allowed_per_task"]
    assert sorted(folder.iterdir()) == before


def test_invalid_and_small_memory_limits_are_refused(folder):
    wrong = run_here(folder, *FIT, "--memory-limit", "plenty")
    assert wrong.returncode == 2
    assert "'plenty' is neither a number of bytes nor a size such as 2GiB" in wrong.stderr
    small = run_here(folder, *FIT, "--memory-limit", "10MiB")
    assert small.returncode == 1
    assert "MiB at least but may use 0 B: 0.6 of the limit of 10.0 MiB less the" in small.stderr
    assert small.stderr.count("\n") == 1
    assert not (folder / "model.zarr").exists()


def test_info_shows_scores(folder):
    run_here(folder, *FIT)
    run_here(folder, "score", "model.zarr", "test.zarr", "scored.zarr", "--labels", "truth.npy")
    info = json.loads(run_here(folder, "info", "scored.zarr", "--json").stdout)
    assert info["samples"] == 80
    assert info["finished"]
    assert 0 <= info["accuracy"] <= 1


def test_scores_get_likelihoods_on_demand(folder, two_blobs):
    run_here(folder, *FIT)
    scored = run_here(folder, "score", "model.zarr", "test.zarr", "scored.zarr", "--likelihood")
    assert scored.returncode == 0, scored.stderr
    expected = fxdask.load(folder / "model.zarr").score_samples(two_blobs[0][160:])
    assert np.array_equal(zarr.open_group(folder / "scored.zarr")["log_likelihood"][:], expected)
    assert json.loads(run_here(folder, "info", "scored.zarr", "--json").stdout)["likelihood"] is True
    run_here(folder, "score", "model.zarr", "test.zarr", "plain.zarr")
    assert json.loads(run_here(folder, "info", "plain.zarr", "--json").stdout)["likelihood"] is False


def test_info_counts_the_blocks_of_an_unfinished_model(folder):
    run_here(folder, *FIT, "--nodes-per-block", 50)
    group = zarr.open_group(folder / "model.zarr")
    group.attrs["fxdask"] = {**group.attrs["fxdask"], "finished": False}
    (folder / "model.zarr" / "blocks_done" / "c" / "1").unlink()
    info = json.loads(run_here(folder, "info", "model.zarr", "--json").stdout)
    assert not info["finished"]
    assert info["blocks"] == {"done": 3, "of": 4}


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
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
        (
            ("fit", "X.npy", "y.npy", "m.zarr", "--memory-limit", "1MiB"),
            1,
            "raise --memory-limit for local threads",
        ),
    ],
)
def test_errors_are_printed_in_one_line(folder, arguments, status, message):
    assert_one_line(run_here(folder, *arguments), status, message)
    assert not (folder / "m.zarr").exists()


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ('pass missing="omit" to leave missing values out', "pass --missing omit to leave missing values out"),
        ("set nodes_per_block to 640 or fewer", "set --nodes-per-block to 640 or fewer"),
        ("pass overwrite=True, which will overwrite it", "pass --overwrite, which will overwrite it"),
        ("y is missing; n_selected=9 is more", "y is missing; --selected 9 is more"),
        ("to replace it, pass overwrite=True.", "to replace it, pass --overwrite."),
        ('there is no column "n_nodes"; missing=None', 'there is no column "n_nodes"; missing=None'),
        ("there is no file data/missing.npy or n_nodes.zarr", "there is no file data/missing.npy or n_nodes.zarr"),
    ],
)
def test_errors_name_options_instead_of_parameters(message, shown):
    assert _one_line(InvalidInputError(message)) == shown


def test_a_finished_job_says_that_it_was_done_already(folder):
    first, again = (json.loads(run_here(folder, *FIT, "--json").stdout) for _ in range(2))
    assert (first["already_done"], again["already_done"]) == (False, True)
    first, again = (
        json.loads(run_here(folder, "score", "model.zarr", "test.zarr", "out.zarr", "--json").stdout) for _ in range(2)
    )
    assert (first["already_done"], again["already_done"]) == (False, True)


def assert_one_line(done, status, message):
    assert done.returncode == status
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    if status == 1:
        assert len([line for line in done.stderr.splitlines() if line.startswith("error: ")]) == 1


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (("fit", "X.npy"), 2, "Missing argument 'LABELS'"),
        (("info", "nowhere"), 1, "error: there is no fxdask store at"),
    ],
)
def test_a_separate_process_exits_with_the_same_status(folder, arguments, status, message):
    assert_one_line(run_apart(folder, *arguments), status, message)


@pytest.mark.parametrize(
    ("arguments", "status", "kind"),
    [
        (("fit", "X.npy"), 2, "UsageError"),
        (("fit", "nowhere.npy", "y.npy", "m.zarr"), 1, "InvalidInputError"),
        (("info", "nowhere"), 1, "StoreFormatError"),
    ],
)
def test_errors_are_json_if_the_result_would_be(folder, arguments, status, kind):
    done = run_here(folder, *arguments, "--json")
    assert done.returncode == status
    told = json.loads(done.stdout)
    assert set(told) == {"error", "type"}
    assert told["type"] == kind
    assert told["error"] in done.stderr


def test_a_damaged_store_is_one_json_object(folder):
    run_here(folder, *FIT)
    file = folder / "model.zarr" / "priors" / "c" / "0"
    file.write_bytes(file.read_bytes()[:-1])
    done = run_here(folder, "verify", "model.zarr", "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert len(facts["damaged"]) == 1
    assert facts["error"] in done.stderr


def test_a_finished_scoring_again_is_a_success(folder):
    run_here(folder, *FIT)
    for out, more in (("scored.zarr", ()), ("scored.parquet", ("--likelihood",))):
        words = ("score", "model.zarr", "test.zarr", out, *more, "--json")
        assert run_here(folder, *words).returncode == 0
        before = contents(folder / out)
        again = run_here(folder, *words)
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["samples_resumed"] == json.loads(again.stdout)["samples"] == 80
        measured = json.loads(run_here(folder, *words, "--labels", "truth.npy").stdout)
        truth, labels = np.load(folder / "truth.npy"), fxdask.load(folder / "model.zarr").predict(folder / "test.zarr")
        assert measured["accuracy"] == np.mean(truth == labels)
        assert contents(folder / out) == before
        (folder / "X.npy").touch()
        other = run_here(folder, "score", "model.zarr", "X.npy", out, "--json")
        assert other.returncode == 1
        assert "already holds a finished store" in other.stderr


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_another_fit_needs_the_overwrite_option(folder):
    run_here(folder, *FIT)
    other = run_here(folder, *FIT, "--seed", 5)
    assert other.returncode == 1
    assert "seed=0 instead of 5; choose another path, or pass --overwrite to replace it" in other.stderr
    assert run_here(folder, *FIT, "--seed", 5, "--overwrite").returncode == 0
    assert fxdask.load(folder / "model.zarr").seed_ == 5


def test_verbose_logs_and_quiet_does_not(folder, fitted_apart):
    _, silent = fitted_apart
    assert silent.returncode == 0
    assert silent.stderr == ""
    verbose = run_here(folder, *FIT, "--quiet", "--verbose")
    assert re.search(
        r"^20\d\d-\S+ [\d:,]+ fxdask.workflows.fit: fitting 200 nodes in 1 b", verbose.stderr, re.MULTILINE
    )


def test_a_terminal_shows_a_progress_bar(folder):
    """The test needs a real pseudo-terminal, because the bar is drawn only on a terminal."""
    command = [sys.executable, "-m", "fxdask", *map(str, FIT), "--nodes-per-block", "50"]
    watched, terminal = pty.openpty()
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=terminal)
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
