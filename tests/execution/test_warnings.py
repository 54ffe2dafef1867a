"""Warnings point at the line of the caller's code that called fxdask."""

import warnings
from pathlib import Path

import numpy as np
import pytest
import scipy
from distributed import Client, LocalCluster

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import FewUsableNodesWarning, VersionMismatchWarning, ZeroSpreadWarning, warn_user

X = np.random.default_rng(0).standard_normal((60, 3)).astype(np.float32)
Y = np.arange(60) % 2
WITH_AND_WITHOUT_STORE = pytest.mark.parametrize("stored", [False, True], ids=["without a store", "with a store"])


def recorded(call, category):
    """The warnings of this category during a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [one for one in found if issubclass(one.category, category)]


def assert_points_at(found, call):
    """Check that all warnings point at a line of the function ``call`` in this file."""
    assert found
    lines = {line for _, _, line in call.__code__.co_lines() if line is not None}
    for one in found:
        assert one.filename == __file__
        assert one.lineno in lines


def classifier(stored, tmp_path):
    return FisherNetworkClassifier(30, 3, store=tmp_path / "model.zarr" if stored else None)


@WITH_AND_WITHOUT_STORE
def test_few_usable_nodes_point_at_the_call_of_fit(stored, tmp_path):
    """Two classes differ by about the rounding of float32, so some of their projections are constant."""
    codes = np.repeat([0, 1, 2], 20)
    samples = np.array([1.5, 1.5, -3.0])[codes] + np.tile([-6e-7, 6e-7], 30)
    store = tmp_path / "model.zarr" if stored else None

    def call():
        FisherNetworkClassifier(40, 40, store=store).fit(samples[:, None], codes)

    assert_points_at(recorded(call, FewUsableNodesWarning), call)


@WITH_AND_WITHOUT_STORE
def test_zero_spreads_point_at_the_call_of_fit(stored, tmp_path):
    """The samples of one class are all equal."""
    samples = X.copy()
    samples[Y == 1] = samples[Y == 1][0]

    def call():
        classifier(stored, tmp_path).fit(samples, Y)

    assert_points_at(recorded(call, ZeroSpreadWarning), call)


def test_code_in_a_folder_whose_name_begins_like_that_of_the_package_is_the_callers():
    script = f"{Path(fxdask.__file__).parent}_scripts/run.py"
    code = compile("warn_user('text', UserWarning)", script, "exec")
    (found,) = recorded(lambda: exec(code, {"warn_user": warn_user}), UserWarning)
    assert (found.filename, found.lineno) == (script, 1)


@pytest.fixture(scope="module")
def other_scipy():
    """A client of one worker process that reports another version of SciPy."""

    def claim():  # an inner function is pickled by value; the worker cannot import this module
        scipy.__version__ = "1.0.0"

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        client.run(claim)
        yield client


@WITH_AND_WITHOUT_STORE
def test_a_version_mismatch_points_at_the_call_of_fit(other_scipy, stored, tmp_path):
    def call():
        classifier(stored, tmp_path).fit(X, Y)

    found = recorded(call, VersionMismatchWarning)
    assert_points_at(found, call)
    assert "has scipy 1.0.0 instead of" in str(found[0].message)


def test_a_version_mismatch_points_at_the_call_of_plan(other_scipy):
    def call():
        FisherNetworkClassifier(30, 3).plan(X, Y)

    assert_points_at(recorded(call, VersionMismatchWarning), call)


def test_a_version_mismatch_points_at_the_call_of_batch_score(other_scipy, tmp_path):
    np.save(tmp_path / "X.npy", X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        clf = FisherNetworkClassifier(30, 3).fit(X, Y)

    def call():
        fxdask.batch_score(clf, tmp_path / "X.npy", tmp_path / "scored.zarr")

    assert_points_at(recorded(call, VersionMismatchWarning), call)
