"""Thousands of small predictions on Dask arrays, from threads of one client: correct, and without a memory leak."""

import gc
import time
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import psutil
import pytest
from distributed import Client

from fxdask import FisherNetworkClassifier

from .conftest import dask_processes

THREADS = 8


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((2_000, 20), dtype=np.float32)
    X[::2] *= 1.5
    return FisherNetworkClassifier(200, 5).fit(X, np.arange(2_000) % 2), X


def scheduler_bytes(client):
    def resident(dask_scheduler):  # an inner function is pickled by value; the scheduler cannot import this module
        gc.collect()
        return psutil.Process().memory_info().rss, len(dask_scheduler.tasks)

    deadline = time.monotonic() + 30
    while (found := client.run_on_scheduler(resident))[1] and time.monotonic() < deadline:
        time.sleep(0.2)  # results are released shortly after they were fetched
    return found


def transitions_by_worker(client):
    def transitions(dask_worker):
        return dask_worker.state.transition_counter

    return client.run(transitions)


@pytest.mark.full
def test_small_predictions_from_many_threads_leave_no_tasks_behind(model, tmp_path):
    clf, X = model
    calls = 1_000
    expected = clf.predict(X)
    with dask_processes(tmp_path) as address, Client(address) as client, ThreadPoolExecutor(THREADS) as pool:

        def predict(call):
            start = 37 * call % 1_900
            lazy = clf.predict(da.from_array(X[start : start + 100], chunks=(50, 20)))
            return np.array_equal(lazy.compute(), expected[start : start + 100])

        assert all(pool.map(predict, range(calls // 4)))  # loads the modules in every process
        used = []
        for _ in range(2):
            assert all(pool.map(predict, range(calls)))
            used.append(scheduler_bytes(client))
            print(f"after {calls} more calls: scheduler {used[-1][0] / 2**20:.1f} MiB, {used[-1][1]} tasks")

        transitions = transitions_by_worker(client)
        print(f"task transitions by worker: {transitions}")
        assert len(transitions) == 2
        assert min(transitions.values()) > calls
    (first, _), (second, left) = used
    assert second <= 1.1 * first
    assert left == 0
