"""Fits and scorings whose workers are killed finish with the same values."""

import math
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import numpy as np
import pytest
import zarr
from distributed import Client

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.planning import score_plan

from .chaos import Killer, timed
from .conftest import dask_processes, slow_tasks


@dataclass(frozen=True)
class Size:
    """How long the jobs are, and how often their workers are killed."""

    fit_samples: int
    fit_features: int
    n_nodes: int
    nodes_per_block: int
    scored_samples: int
    rows_per_chunk: int
    seconds_without_kills: float
    seconds_between_kills: float
    least_kills: int
    most_kills: float


LONG = Size(20_000, 400, 54_000, 384, 300_000, 2_000, 20, 2.0, 8, math.inf)
# The tasks of a short job wait for most of their time. There is one kill: on a slow machine, where starting a worker
# takes longer than the time between kills, the job would not make progress otherwise.
SHORT = Size(1_000, 20, 600, 50, 2_400, 200, 0, 0.5, 1, 1)
SECONDS_OF_A_SHORT_TASK = 0.3


@pytest.fixture(scope="module")
def is_long(request):
    return request.config.getoption("--full")


@pytest.fixture(scope="module")
def size(is_long):
    return LONG if is_long else SHORT


@pytest.fixture(scope="module")
def address(is_long, tmp_path_factory):
    folder = tmp_path_factory.mktemp("nannies")
    environment = {} if is_long else slow_tasks(folder, SECONDS_OF_A_SHORT_TASK)
    with dask_processes(folder, nanny="1GiB", **environment) as found:
        yield found


@contextmanager
def undisturbed(name, is_long, address, size):
    """Run a long job on the workers, and a short one on threads, where its tasks do not wait."""
    with Client(address) if is_long else nullcontext(), timed(name, at_least=size.seconds_without_kills):
        yield


def killer_of(address, seed, size):
    return Killer(address, seed, size.seconds_between_kills, size.most_kills)


@pytest.fixture(scope="module")
def fit_data(size, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fit")
    X = np.random.default_rng(0).standard_normal((size.fit_samples, size.fit_features), dtype=np.float32)
    X[::2] *= 1.2
    np.save(folder / "X.npy", X)
    return folder / "X.npy", np.arange(size.fit_samples) % 2


@pytest.fixture(scope="module")
def network(size):
    return {"n_nodes": size.n_nodes, "n_selected": 5, "nodes_per_block": size.nodes_per_block}


@pytest.fixture(scope="module")
def undisturbed_fit(address, fit_data, network, is_long, size, tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed") / "model.zarr"
    with undisturbed("undisturbed fit", is_long, address, size):
        return FisherNetworkClassifier(**network, store=store).fit(*fit_data)


def test_a_fit_whose_workers_are_killed_gives_the_same_values(
    address, fit_data, network, undisturbed_fit, tmp_path, chaos_seed, size
):
    with Client(address), killer_of(address, chaos_seed, size) as killer, timed("disturbed fit"):
        clf = FisherNetworkClassifier(**network, store=tmp_path / "model.zarr").fit(*fit_data)
    print(f"seed {chaos_seed}: {killer.kills} kills of workers that ran a task")
    assert killer.kills >= size.least_kills
    assert np.array_equal(clf.divergences_, undisturbed_fit.divergences_)
    assert np.array_equal(clf.selected_nodes_, undisturbed_fit.selected_nodes_)
    for name in ("statistics", "selected/projections"):
        got, want = (zarr.open_group(model.store_, mode="r")[name][:] for model in (clf, undisturbed_fit))
        assert np.array_equal(got, want)


@pytest.fixture(scope="module")
def scoring(address, is_long, size, tmp_path_factory):
    """A model, and a test set of many chunks; with exact densities a long scoring takes longer."""
    folder = tmp_path_factory.mktemp("score")
    rng = np.random.default_rng(1)
    X = rng.standard_normal((size.scored_samples, 20), dtype=np.float32)
    X[::2] *= 1.3
    zarr.create_array(folder / "X.zarr", data=X, chunks=(size.rows_per_chunk, 20))
    clf = FisherNetworkClassifier(200, 10, density="exact" if is_long else "table", store=folder / "model.zarr")
    clf.fit(X[:1_000], np.arange(1_000) % 2)
    return folder


def scored(folder, out):
    fxdask.batch_score(folder / "model.zarr", folder / "X.zarr", out)
    group = zarr.open_group(out, mode="r")
    return group["labels"][:], group["scores"][:]


@pytest.fixture(scope="module")
def undisturbed_scores(address, scoring, is_long, size, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_plan, "BYTES_PER_TASK", 1)
        with undisturbed("undisturbed scoring", is_long, address, size):
            return scored(scoring, tmp_path_factory.mktemp("undisturbed") / "scored.zarr")


def test_a_scoring_whose_workers_are_killed_gives_the_same_values(
    address, scoring, undisturbed_scores, tmp_path, monkeypatch, chaos_seed, size
):
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    with Client(address), killer_of(address, chaos_seed, size) as killer, timed("disturbed scoring"):
        got = scored(scoring, tmp_path / "scored.zarr")
    print(f"seed {chaos_seed}: {killer.kills} kills of workers that ran a task")
    assert killer.kills >= size.least_kills
    for mine, theirs in zip(got, undisturbed_scores, strict=True):
        assert np.array_equal(mine, theirs)
