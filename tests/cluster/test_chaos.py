"""Fits and scorings whose workers are killed finish with the same values."""

import math

import numpy as np
import pytest
import zarr
from distributed import Client

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.planning import score_plan

from .chaos import Killer, timed
from .conftest import dask_processes


@pytest.fixture(scope="module")
def size(request):
    """(scale of the job, kills at least, seconds at least without kills, kills at most)

    A short run has at most two kills: on a slow machine, where starting a worker takes longer than the time between
    kills, the job would not make progress otherwise.
    """
    return (1.0, 8, 20, math.inf) if request.config.getoption("--full") else (0.08, 1, 0, 2)


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with dask_processes(tmp_path_factory.mktemp("nannies"), nanny="1GiB") as found:
        yield found


@pytest.fixture(scope="module")
def fit_data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    X = np.random.default_rng(0).standard_normal((20_000, 400), dtype=np.float32)
    X[::2] *= 1.2
    np.save(folder / "X.npy", X)
    return folder / "X.npy", np.arange(20_000) % 2


@pytest.fixture(scope="module")
def network(size):
    return {"n_nodes": int(54_000 * size[0]), "n_selected": 5, "nodes_per_block": 384}


@pytest.fixture(scope="module")
def undisturbed_fit(address, fit_data, network, size, tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed") / "model.zarr"
    with Client(address), timed("undisturbed fit", at_least=size[2]):
        return FisherNetworkClassifier(**network, store=store).fit(*fit_data)


def test_a_fit_whose_workers_are_killed_gives_the_same_values(
    address, fit_data, network, undisturbed_fit, tmp_path, chaos_seed, size
):
    with Client(address), Killer(address, chaos_seed, at_most=size[3]) as killer, timed("disturbed fit"):
        clf = FisherNetworkClassifier(**network, store=tmp_path / "model.zarr").fit(*fit_data)
    print(f"seed {chaos_seed}: {killer.kills} kills of workers that ran a task")
    assert killer.kills >= size[1]
    assert np.array_equal(clf.divergences_, undisturbed_fit.divergences_)
    assert np.array_equal(clf.selected_nodes_, undisturbed_fit.selected_nodes_)
    for name in ("statistics", "selected/projections"):
        got, want = (zarr.open_group(model.store_, mode="r")[name][:] for model in (clf, undisturbed_fit))
        assert np.array_equal(got, want)


@pytest.fixture(scope="module")
def scoring(address, size, tmp_path_factory):
    """A model with exact densities, so that scoring takes long, and a test set of many chunks."""
    folder = tmp_path_factory.mktemp("score")
    rng = np.random.default_rng(1)
    X = rng.standard_normal((int(300_000 * size[0]), 20), dtype=np.float32)
    X[::2] *= 1.3
    zarr.create_array(folder / "X.zarr", data=X, chunks=(2_000, 20))
    clf = FisherNetworkClassifier(200, 10, density="exact", store=folder / "model.zarr")
    clf.fit(X[:1_000], np.arange(1_000) % 2)
    return folder


def scored(folder, out):
    fxdask.batch_score(folder / "model.zarr", folder / "X.zarr", out)
    group = zarr.open_group(out, mode="r")
    return group["labels"][:], group["scores"][:]


@pytest.fixture(scope="module")
def undisturbed_scores(address, scoring, size, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_plan, "BYTES_PER_TASK", 1)
        with Client(address), timed("undisturbed scoring", at_least=size[2]):
            return scored(scoring, tmp_path_factory.mktemp("undisturbed") / "scored.zarr")


def test_a_scoring_whose_workers_are_killed_gives_the_same_values(
    address, scoring, undisturbed_scores, tmp_path, monkeypatch, chaos_seed, size
):
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    with Client(address), Killer(address, chaos_seed, at_most=size[3]) as killer, timed("disturbed scoring"):
        got = scored(scoring, tmp_path / "scored.zarr")
    print(f"seed {chaos_seed}: {killer.kills} kills of workers that ran a task")
    assert killer.kills >= size[1]
    for mine, theirs in zip(got, undisturbed_scores, strict=True):
        assert np.array_equal(mine, theirs)
