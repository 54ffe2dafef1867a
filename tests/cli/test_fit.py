"""``fxdask fit``: its options are the classifier's parameters, with the same names, choices and defaults."""

import inspect

import numpy as np
import pytest
from click.testing import CliRunner
from command_line import run_here

import fxdask
from fxdask.cli.fit import fit
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
