"""Joint selections on worker processes: the same bytes as on local threads, also if a worker is killed."""

import os
import signal
import threading
import time

import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client
from small import chunk_files

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.planning import pool_plan

from .conftest import dask_processes

RNG = np.random.default_rng(0)
Y = np.arange(1_500) % 3
X = (RNG.standard_normal((1_500, 20)) * (1 + 0.2 * Y[:, None]) + 0.1 * Y[:, None]).astype(np.float32)
PARAMETERS = {"n_nodes": 1_000, "n_selected": 5, "nodes_per_block": 100, "selection": "joint"}
RELIEF = {**PARAMETERS, "n_nodes": 200, "pool_size": 20, "criterion": "relief"}
N_TASKS = 12


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The same fit on local threads."""
    store = tmp_path_factory.mktemp("reference") / "model.zarr"
    return FisherNetworkClassifier(**PARAMETERS, store=store).fit(X, Y), store


@pytest.fixture(scope="module")
def reference_of_relief():
    """A fit on local threads whose candidates are ranked by relief."""
    return FisherNetworkClassifier(**RELIEF).fit(X, Y)


@pytest.fixture(params=["numpy", "dask", "zarr"])
def data(request, tmp_path):
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(200, 11))
    return {"numpy": X, "dask": da.from_array(X, chunks=(333, 7)), "zarr": tmp_path / "X.zarr"}[request.param]


@pytest.fixture
def small_tasks(monkeypatch):
    """Candidates in many small tasks, as a cluster with many threads would have them."""
    monkeypatch.setattr(pool_plan, "_candidates_that_fit", lambda fit, n_candidates: -(-n_candidates // N_TASKS))
    monkeypatch.setattr(pool_plan, "SAMPLES_PER_SUM", 200)
    monkeypatch.setattr(pool_plan, "SMALLEST_SCORE_CHUNK", 400)


def assert_same(clf, reference):
    threaded, _ = reference
    for name in ("selected_nodes_", "overlaps_", "divergences_", "density_error_", "temperature_", "normalize_"):
        assert np.array_equal(getattr(clf, name), getattr(threaded, name)), name
    for name, wanted in threaded.network_.learned.items():
        assert np.array_equal(clf.network_.learned[name], wanted), name
    assert np.array_equal(clf.decision_function(X), threaded.decision_function(X))


def ran(client, task):
    """How many workers ran such a task."""
    found = client.run(lambda dask_worker: any(task in str(entry) for entry in dask_worker.state.log))
    return sum(found.values())


def test_a_selection_on_workers_writes_the_same_bytes(client, data, small_tasks, reference, tmp_path):
    clf = FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "model.zarr").fit(data, Y)
    assert ran(client, "measure_candidates") == 2
    assert ran(client, "sum_products") == 2
    assert_same(clf, reference)
    assert chunk_files(tmp_path / "model.zarr") == chunk_files(reference[1])
    assert_same(fxdask.load(tmp_path / "model.zarr"), reference)


def test_a_selection_without_a_store_returns_its_candidates_through_the_graph(client, data, small_tasks, reference):
    assert_same(FisherNetworkClassifier(**PARAMETERS).fit(data, Y), reference)


def test_a_selection_in_tasks_of_the_usual_size_gives_the_same_model(client, reference):
    assert_same(FisherNetworkClassifier(**PARAMETERS).fit(X, Y), reference)


def test_relief_on_workers_gives_the_model_of_threads(reference_of_relief, client, tmp_path):
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(200, 11))
    clf = FisherNetworkClassifier(**RELIEF, store=tmp_path / "model.zarr").fit(tmp_path / "X.zarr", Y)
    assert ran(client, "nearest_rows") >= 1
    assert_same(clf, (reference_of_relief, None))


SLOW = (
    "import time; from fxdask.tasks import pool as t; r = t.{name}; t.{name} = "
    "lambda *a, **k: (time.sleep(0.05), r(*a, **k))[1]"
)


@pytest.mark.parametrize("stage", ["rank_scores", pytest.param("score_sums", marks=pytest.mark.full)])
def test_a_selection_finishes_after_a_worker_was_killed(stage, small_tasks, reference, tmp_path):
    """One of two workers gets SIGKILL while it measures candidates or sums their products."""
    store = tmp_path / "model.zarr"
    measured = store / "pool" / "statistics" / "c" / "0" / "0"

    def kill_when_some_are_done():
        while len(list(measured.glob("[0-9]*"))) < (3 if stage == "rank_scores" else N_TASKS):
            time.sleep(0.005)
        os.kill(victim, signal.SIGKILL)

    with dask_processes(tmp_path) as address, Client(address) as client:
        client.run(exec, SLOW.format(name=stage), {})
        victim, *_ = client.run(os.getpid).values()
        killer = threading.Thread(target=kill_when_some_are_done)
        killer.start()
        clf = FisherNetworkClassifier(**PARAMETERS, store=store).fit(X, Y)
        killer.join()
        assert victim not in client.run(os.getpid).values()
    assert_same(clf, reference)
    assert chunk_files(store) == chunk_files(reference[1])


@pytest.mark.full
def test_a_selection_whose_cluster_was_killed_is_resumed_on_threads(small_tasks, reference, tmp_path):
    """Scheduler and worker are killed among the candidates; the same call on local threads uses what is there."""
    store = tmp_path / "model.zarr"
    measured = store / "pool" / "statistics" / "c" / "0" / "0"
    with dask_processes(tmp_path, n_workers=1) as address, Client(address) as client:
        client.run(exec, SLOW.format(name="rank_scores"), {})
        (victim,) = client.run(os.getpid).values()

        def kill_all():
            while len(list(measured.glob("[0-9]*"))) < 3:
                time.sleep(0.005)
            os.kill(client.run_on_scheduler(os.getpid), signal.SIGKILL)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_all)
        killer.start()
        with pytest.raises(Exception):  # noqa: B017, PT011 - Dask decides how it reports a lost scheduler
            FisherNetworkClassifier(**PARAMETERS, store=store).fit(X, Y)
        killer.join()
    assert len(list(measured.glob("[0-9]*"))) >= 3
    resumed = FisherNetworkClassifier(**PARAMETERS, store=store).fit(X, Y)
    assert resumed.fit_info_["n_blocks_resumed"] == 10
    assert_same(resumed, reference)
