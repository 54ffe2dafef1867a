"""``fxdask fit``: its options are the classifier's parameters, with the same names, choices and defaults."""

import inspect
import json
import re

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import run_here

import fxdask
from fxdask.cli.fit import fit
from fxdask.errors import InvalidInputError
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.preprocessing import NORMALIZATIONS
from fxdask.workflows.settings import SELECTIONS

OPTIONS = {option.name: option for option in fit.params}
# Numbers whose default is "auto", which is no number: the command passes it if the option is not given.
NOT_GIVEN = ("pool_size", "nodes_per_block")


@pytest.fixture
def folder(three_blobs, tmp_path):
    X, y = three_blobs
    np.save(tmp_path / "X.npy", X * [1, 1, 1, 1, 1_000])
    np.save(tmp_path / "y.npy", y)
    return tmp_path


def test_every_parameter_has_an_option_with_its_default():
    parsed = fit.make_context("fit", ["X.npy", "y.npy", "m.zarr"]).params
    parameters = inspect.signature(fxdask.FisherNetworkClassifier).parameters
    assert set(parameters) <= set(parsed)
    for name in set(parameters) - {"store", "verbose"}:
        default = None if name in NOT_GIVEN else parameters[name].default
        assert parsed[name] == ("none" if name == "normalize" and default is None else default), name


def test_choices_come_from_the_tables():
    assert list(OPTIONS["combine"].type.choices) == list(COMBINATIONS)
    assert list(OPTIONS["selection"].type.choices) == list(SELECTIONS)
    assert list(OPTIONS["normalize"].type.choices) == [*(name or "none" for name in NORMALIZATIONS), "auto"]
    assert "[top|joint]" in CliRunner().invoke(fit, ["--help"]).output


def test_a_joint_fit_is_the_one_of_python(folder):
    words = ("--selection", "joint", "--combine", "joint", "--normalize", "auto", "--pool-size", 20)
    done = run_here(folder, "fit", "X.npy", "y.npy", "m.zarr", "--nodes", 150, "--selected", 4, "--quiet", *words)
    assert done.returncode == 0, done.stderr
    X, y = np.load(folder / "X.npy"), np.load(folder / "y.npy")
    expected = fxdask.FisherNetworkClassifier(
        150, 4, selection="joint", combine="joint", normalize="auto", pool_size=20
    ).fit(X, y)
    stored = fxdask.load(folder / "m.zarr")
    assert np.array_equal(stored.selected_nodes_, expected.selected_nodes_)
    assert np.array_equal(stored.predict_proba(X), expected.predict_proba(X))
    assert stored.get_params()["pool_size"] == 20


def test_fewer_candidates_than_selected_nodes_are_refused(folder):
    words = ("--nodes", 50, "--selected", 9, "--pool-size", 5, "--selection", "joint")
    done = run_here(folder, "fit", "X.npy", "y.npy", "m.zarr", *words)
    assert done.returncode == 2
    assert "--selected 9 is more than --pool-size 5" in done.stderr
    assert not (folder / "m.zarr").exists()


def test_a_plan_for_a_cluster_that_is_not_connected(folder):
    words = ("fit", "X.npy", "y.npy", "m.zarr", "--nodes", 100_000, "--dry-run", "--json")
    cluster = ("--workers", 200, "--worker-threads", 4, "--worker-memory", "16GiB")
    done = run_here(folder, *words, *cluster)
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    shape = fxdask.ClusterShape(workers=200, threads=4, memory="16GiB")
    X, y = folder / "X.npy", np.load(folder / "y.npy")
    expected = fxdask.FisherNetworkClassifier(100_000, store=folder / "m.zarr").plan(X, y, cluster=shape)
    assert plan == expected.facts()
    assert plan["tasks_at_a_time"] == 800
    assert plan["bytes_allowed_per_task"] == int(0.6 * 2**34 - 200 * 2**20) // 4
    assert not (folder / "m.zarr").exists()


def test_a_calibrated_plan_predicts_what_the_fit_takes(folder):
    words = ("fit", "X.npy", "y.npy", "m.zarr", "--nodes", 2_000, "--dry-run", "--calibrate")
    done = run_here(folder, *words, "--workers", 2, "--worker-memory", "1GiB")
    assert done.returncode == 0, done.stderr
    shown = dict(re.split(r" {2,}", line.strip(), maxsplit=1) for line in done.stdout.splitlines()[1:])
    assert float(shown["seconds predicted"]) > 0
    assert shown["limited by"] in {"product", "sorting", "reading", "scheduling"}
    assert int(shown["scheduler messages"]) == 3 * int(shown["scheduler tasks"]) > 0
    assert not (folder / "m.zarr").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workers", 2, "--worker-memory", "1GiB"], "--workers belongs to a plan; add --dry-run"),
        (["--calibrate"], "--calibrate belongs to a plan; add --dry-run"),
        (["--dry-run", "--workers", 2], "--workers needs the memory of each worker; add --worker-memory"),
        (["--dry-run", "--worker-threads", 2], "--worker-threads describes one of --workers; add their number"),
    ],
)
def test_options_of_a_cluster_that_do_not_fit_together_are_refused(folder, words, message):
    done = run_here(folder, "fit", "X.npy", "y.npy", "m.zarr", *words)
    assert done.returncode == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ({"workers": 0, "memory": "1GiB"}, "at least 1 of its workers, as a whole number, not 0"),
        ({"workers": 2, "threads": 1.5, "memory": "1GiB"}, r"at least 1 of its threads, as a whole number, not 1\.5"),
        ({"workers": 2, "memory": None}, "needs the memory of a worker"),
        ({"workers": 2, "memory": "much"}, "memory_limit must be a number of bytes"),
    ],
)
def test_an_impossible_cluster_is_refused(folder, shape, message):
    with pytest.raises(InvalidInputError, match=message):
        fxdask.FisherNetworkClassifier(100).plan(
            folder / "X.npy", folder / "y.npy", cluster=fxdask.ClusterShape(**shape)
        )
