"""Calls on worker processes: the blocks run there and write the same bytes as local threads."""

import asyncio
import json
import logging
import os
import signal
import threading
import time
import warnings

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from command_line import run_here
from distributed import Client, LocalCluster, span
from small import chunk_files

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import ClusterError, InvalidInputError
from fxdask.execution import connection, importance, resources
from fxdask.execution.client import connected_workers
from fxdask.execution.connection import connected
from fxdask.kernels.scorer import forget_received
from fxdask.planning import score_plan
from fxdask.tasks.memory import MemoryInUse
from fxdask.workflows.evaluate import checked_test_data, evaluate_model

from .conftest import dask_processes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((1_500, 20)).astype(np.float32)
Y = np.arange(1_500) % 3
PARAMETERS = {"n_nodes": 1_000, "n_selected": 5, "nodes_per_block": 100}


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """The same plan on local threads."""
    store = tmp_path_factory.mktemp("reference") / "model.zarr"
    return FisherNetworkClassifier(**PARAMETERS, store=store, keep_projections="all").fit(X, Y), store


def worker_processes(client):
    """The names of the workers' processes, as in the telemetry of a fit."""
    found = client.run(lambda: (__import__("socket").gethostname(), os.getpid()))
    return {f"{host}:{process}" for host, process in found.values()}


@pytest.fixture(params=["numpy", "dask", "zarr", "npy"])
def data(request, tmp_path):
    np.save(tmp_path / "X.npy", X)
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(200, 11))
    return {
        "numpy": X,
        "dask": da.from_array(X, chunks=(333, 7)),
        "zarr": tmp_path / "X.zarr",
        "npy": tmp_path / "X.npy",
    }[request.param]


def test_blocks_run_on_the_workers_and_write_the_same_bytes(client, data, reference, tmp_path):
    threaded, reference_store = reference
    clf = FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "model.zarr", keep_projections="all").fit(data, Y)
    ran = clf.fit_info_["blocks_by_process"]
    assert set(ran) <= worker_processes(client)
    assert sum(ran.values()) == 10
    assert len(ran) == 2, "both workers ran blocks"
    assert np.array_equal(clf.divergences_, threaded.divergences_)
    assert chunk_files(tmp_path / "model.zarr") == chunk_files(reference_store)
    assert "samples" not in zarr.open_group(tmp_path / "model.zarr")


def test_a_fit_without_a_store_returns_its_results_through_the_graph(client, data, reference):
    clf = FisherNetworkClassifier(**PARAMETERS).fit(data, Y)
    assert set(clf.fit_info_["blocks_by_process"]) <= worker_processes(client)
    assert np.array_equal(clf.divergences_, reference[0].divergences_)
    assert np.array_equal(clf.predict_log_proba(X), reference[0].predict_log_proba(X))


def test_scoring_and_responses_on_workers_equal_those_on_threads(client, data, reference, tmp_path):
    threaded, store = reference
    result = fxdask.batch_score(store, data, tmp_path / "scored.zarr", likelihood=True)
    if not isinstance(data, np.ndarray):
        assert set(result.chunks_by_process) <= worker_processes(client)
    scored = zarr.open_group(tmp_path / "scored.zarr")
    assert np.array_equal(scored["labels"][:], threaded.predict(X))
    assert np.array_equal(scored["log_likelihood"][:], threaded.score_samples(X))
    lazy = threaded.predict(da.from_array(X, chunks=(400, 20)))
    assert np.array_equal(lazy.compute(), threaded.predict(X))
    expected = threaded.responses(X[0])
    assert np.array_equal(threaded.responses(X[0], X_train=data), expected)


def test_an_evaluation_on_workers_equals_one_on_threads(client, data, reference):
    model = reference[0]._fitted_model()
    found = evaluate_model(model, checked_test_data(model, data, Y))
    expected = evaluate_model(model, checked_test_data(model, X, Y))
    assert np.array_equal(found.confusion, expected.confusion)
    assert found.log_loss == expected.log_loss
    assert found.calibration_error == expected.calibration_error
    assert np.array_equal(found.counts.scores_correct.values, expected.counts.scores_correct.values)


@pytest.mark.full
def kept_tables(client):
    """The identities of the tables that each worker keeps of the models it received."""

    def identities():
        from fxdask.kernels.scorer import _received_scorers

        return sorted(id(table) for scorer in _received_scorers._kept.values() for table in scorer._tables.values())

    return client.run(identities)


def test_all_calls_of_a_kind_are_one_span(client, tmp_path):
    """A scheduler never forgets a span, so that a few more for each call would fill its memory over time."""

    def names(dask_scheduler):
        return [" ".join(span.name) for span in dask_scheduler.extensions["spans"].spans.values()]

    zarr.create_array(tmp_path / "X.zarr", data=X)
    before = {name for name in client.run_on_scheduler(names) if not name.startswith("fxdask")}
    for call in "ab":
        FisherNetworkClassifier(**PARAMETERS, store=tmp_path / f"{call}.zarr").fit(X, Y)
        fxdask.batch_score(tmp_path / "a.zarr", tmp_path / "X.zarr", tmp_path / f"scored-{call}.zarr")
    found = client.run_on_scheduler(names)
    assert found.count("fxdask fit") == found.count("fxdask score") == 1
    assert {name for name in found if not name.startswith("fxdask")} == before


def test_a_call_inside_a_span_of_the_caller_belongs_to_it(client, tmp_path):
    def groups(dask_scheduler, identity):
        return [group.name for group in dask_scheduler.extensions["spans"].spans[identity].traverse_groups()]

    with span("mine") as identity:
        FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "model.zarr").fit(X, Y)
    assert "fit_block" in client.run_on_scheduler(groups, identity=identity)


def test_each_worker_makes_the_tables_of_a_model_once(client, reference):
    expected, _ = reference
    client.run(forget_received)
    samples = da.from_array(X, chunks=(len(X) // 8, -1)).persist()
    assert np.array_equal(expected.predict(samples).compute(), expected.predict(X))
    before = kept_tables(client)
    assert all(before.values())
    assert np.array_equal(expected.predict(samples).compute(), expected.predict(X))
    for worker in before:  # one task on each
        assert np.array_equal(client.submit(expected.predict, X, workers=worker).result(), expected.predict(X))
    assert np.array_equal(expected.predict_proba(samples).compute(), expected.predict_proba(X))
    assert kept_tables(client) == before


def test_scoring_finishes_after_a_worker_was_killed(reference, tmp_path):
    """One of two workers gets SIGKILL while it scores; the other one finishes, and no label is missing."""
    threaded, store = reference
    big = np.tile(X, (40, 1))
    zarr.create_array(tmp_path / "X.zarr", data=big, chunks=(300, 20))
    slow = (
        "import time; from fxdask.tasks import score as t; r = t.read_pieces; "
        "t.read_pieces = lambda *a: (time.sleep(0.03), r(*a))[1]"
    )
    with dask_processes(tmp_path) as address, Client(address) as client:
        client.run(exec, slow, {})
        monkey = pytest.MonkeyPatch()
        monkey.setattr(score_plan, "BYTES_PER_TASK", 1)
        victim, *_ = client.run(os.getpid).values()
        out = tmp_path / "scored.zarr"

        def kill_when_some_are_done():
            while len(list(tmp_path.glob(".scored.zarr.next-*/labels/c/*"))) < 20:
                time.sleep(0.005)
            os.kill(victim, signal.SIGKILL)

        killer = threading.Thread(target=kill_when_some_are_done)
        killer.start()
        result = fxdask.batch_score(store, tmp_path / "X.zarr", out, likelihood=True)
        killer.join()
        monkey.undo()
        assert victim not in client.run(os.getpid).values()
    assert result.n_samples == 60_000
    scored = zarr.open_group(out)
    assert np.array_equal(scored["labels"][:], threaded.predict(big))
    assert np.array_equal(scored["log_likelihood"][:], threaded.score_samples(big))


def test_samples_are_not_embedded_in_the_graph(client, caplog):
    """Dask warns of a graph above 10 MB, and these samples have 24 MB."""
    wide = np.random.default_rng(1).standard_normal((1_500, 4_000)).astype(np.float32)
    with warnings.catch_warnings(), caplog.at_level(logging.WARNING):
        warnings.simplefilter("error")
        FisherNetworkClassifier(40, 2, nodes_per_block=10).fit(wide, Y)
    assert "large graph" not in caplog.text


@pytest.mark.parametrize("lazy", [False, True])
def test_workers_refuse_samples_with_nan(client, lazy, tmp_path):
    spoilt = X.copy()
    spoilt[1_400, 3] = np.nan
    data = da.from_array(spoilt, chunks=(333, 7)) if lazy else spoilt
    with pytest.raises(InvalidInputError, match="NaN, first in sample 1400"):
        FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "m.zarr").fit(data, Y)
    assert not (tmp_path / "m.zarr").exists()


def test_workers_that_cannot_tell_their_memory_are_asked_again(client, tmp_path, monkeypatch):
    def memory(how_often):
        """A function that fails the first times, each in its own file of calls; pickled by value."""
        calls = str(tmp_path / f"calls-{how_often}")

        def asked(dask_worker=None):
            if dask_worker is None:  # this process asks itself too
                return MemoryInUse(n_bytes=2**28, has_compiler=False, n_jobs=0)
            with open(calls + dask_worker.id, "a+") as file:
                file.write("x")
                file.seek(0)
                if len(file.read()) <= how_often:
                    raise OSError("too many open files")
            return MemoryInUse(n_bytes=2**28, has_compiler=False, n_jobs=0)

        return asked

    monkeypatch.setattr(resources, "RETRY_PAUSES", (0.0, 0.01))
    monkeypatch.setattr(resources, "memory_in_use", memory(1))
    assert resources.measured_resources().baseline == 2**28
    monkeypatch.setattr(resources, "memory_in_use", memory(2))
    with pytest.raises(ClusterError, match=r"no worker could tell .*tcp://.*: too many open files; .*start workers"):
        resources.measured_resources()


def test_all_workers_are_found_while_the_client_looks_for_none(address):
    """The client's own look at the scheduler, here every millisecond, answers without workers."""
    with (
        dask.config.set({"distributed.client.scheduler-info-interval": "1ms"}),
        Client(address, set_as_default=False) as client,
    ):
        assert {len(connected_workers(client)) for _ in range(300)} == {2}


def test_no_files_remain_after_an_error_on_the_workers(client, tmp_path):
    wide = np.random.default_rng(1).standard_normal((6_000, 2_000)).astype(np.float32)
    clf = FisherNetworkClassifier(40, 2).fit(wide[:60], Y[:60])
    wide[0, 0] = np.nan
    zarr.create_array(tmp_path / "X.zarr", data=wide, chunks=(1_536, 2_000))
    for _ in range(3):
        with pytest.raises(InvalidInputError, match="NaN, first in sample 0"):
            fxdask.batch_score(clf, tmp_path / "X.zarr", tmp_path / "out.zarr")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["X.zarr"]


def test_a_failed_fit_does_not_cancel_other_work_of_the_client(client, tmp_path):
    kept = client.persist(da.ones((200, 4), chunks=(20, 4)) + 1)
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(200, 20))
    chunk = tmp_path / "X.zarr" / "c" / "3" / "0"
    clf = FisherNetworkClassifier(2_000, 2, nodes_per_block=50, store=tmp_path / "m.zarr")
    whole = chunk.read_bytes()
    chunk.write_bytes(whole[:-9])
    with pytest.raises(Exception):  # noqa: B017, PT011 - Zarr decides which error a damaged chunk raises
        clf.fit(tmp_path / "X.zarr", Y)
    assert kept.sum().compute() == 1_600
    chunk.write_bytes(whole)
    clf.fit(tmp_path / "X.zarr", Y)
    assert kept.sum().compute() == 1_600


def test_an_interrupted_fit_does_not_cancel_other_work_of_the_client(client, tmp_path):
    kept = client.persist(da.ones((200, 4), chunks=(20, 4)) + 1)
    clf = FisherNetworkClassifier(10_000, 2, nodes_per_block=100, store=tmp_path / "m.zarr", verbose=True)
    np.save(tmp_path / "X.npy", X)

    def interrupt_once_some_blocks_are_done():
        while len(list((tmp_path / "m.zarr" / "blocks_done" / "c").glob("*"))) < 5:
            time.sleep(0.02)
        for _ in range(3):  # an interrupt during a finalizer is lost, so users press Ctrl-C again
            os.kill(os.getpid(), signal.SIGINT)
            if stopped.wait(1):
                return

    stopped = threading.Event()
    threading.Thread(target=interrupt_once_some_blocks_are_done, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        clf.fit(tmp_path / "X.npy", Y)
    stopped.set()
    assert kept.sum().compute() == 1_600
    resumed = clf.fit(tmp_path / "X.npy", Y)
    assert resumed.fit_info_["n_blocks_resumed"] > 0


def test_an_asynchronous_client_is_refused(address):
    async def fit():
        async with Client(address, asynchronous=True):
            FisherNetworkClassifier(**PARAMETERS).fit(X, Y)

    with pytest.raises(ClusterError, match="asynchronous Client"):
        asyncio.run(fit())


def test_a_fit_inside_a_task_does_not_wait_for_its_own_cluster(client, reference):
    def inside(X, y):
        return FisherNetworkClassifier(**PARAMETERS).fit(X, y).divergences_

    assert np.array_equal(client.submit(inside, X, Y).result(timeout=120), reference[0].divergences_)


@pytest.mark.full
def test_workers_with_two_blas_threads_write_the_same_bytes(reference, tmp_path):
    with dask_processes(tmp_path, OPENBLAS_NUM_THREADS="2") as address, Client(address) as client:
        threads = client.run(lambda: os.environ["OPENBLAS_NUM_THREADS"])
        assert set(threads.values()) == {"2"}
        FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "model.zarr", keep_projections="all").fit(X, Y)
    assert chunk_files(tmp_path / "model.zarr") == chunk_files(reference[1])


def test_a_local_cluster_writes_the_same_bytes(reference, tmp_path):
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        clf = FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "model.zarr", keep_projections="all").fit(X, Y)
        assert set(clf.fit_info_["blocks_by_process"]) <= worker_processes(client)
    assert chunk_files(tmp_path / "model.zarr") == chunk_files(reference[1])


def test_importances_on_workers_equal_those_on_threads(address, tmp_path, monkeypatch):
    """Tasks of one draw each: sixteen on the workers, merged in two steps and sent by several graphs."""
    monkeypatch.setattr(importance, "WEIGHT_BYTES_PER_RANGE", 1)
    monkeypatch.setattr(importance, "SCORE_BYTES_PER_GRAPH", 10 * 64 * 3 * 8)
    monkeypatch.setattr(importance, "MOST_LOCAL_WEIGHTS", 0)
    monkeypatch.setattr(importance, "MOST_BYTES_OF_STEPS", 0)
    threaded = FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "threads.zarr").fit(X, Y)

    def n_logged(dask_worker):
        return sum("sum_nodes" in str(entry) for entry in dask_worker.state.log)

    with Client(address) as client:
        before = client.run(n_logged)
        clf = FisherNetworkClassifier(**PARAMETERS, store=tmp_path / "workers.zarr").fit(X, Y)
        after = client.run(n_logged)
    assert len(before) == 2
    assert all(after[worker] > count for worker, count in before.items()), "both workers ran tasks"
    assert clf.feature_importances_.tobytes() == threaded.feature_importances_.tobytes()
    stored = [zarr.open_group(tmp_path / name)["importances"][:] for name in ("threads.zarr", "workers.zarr")]
    assert stored[0].tobytes() == stored[1].tobytes()
    assert stored[0].any()


def test_the_command_line_fits_and_scores_on_a_cluster(address, reference, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)

    def fxdask_command(*words):
        done = run_here(tmp_path, *words, "--scheduler", address, "--json")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    fitted = fxdask_command(
        "fit", "X.npy", "y.npy", "model.zarr", "--nodes", 1_000, "--selected", 5, "--nodes-per-block", 100
    )
    assert len(fitted["fit"]["blocks_by_process"]) == 2
    scored = fxdask_command("score", "model.zarr", "X.npy", "scored.zarr", "--labels", "y.npy")
    assert scored["accuracy"] == reference[0].score(X, Y)


def test_an_address_without_a_scheduler_is_refused(monkeypatch):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 1)
    with pytest.raises(ClusterError, match="no Dask scheduler answers at"), connected("tcp://127.0.0.1:1"):
        pass
