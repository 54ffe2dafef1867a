"""Thousands of small predictions on Dask arrays, from threads of one client: all right, and nothing piles up."""

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
    def resident(dask_scheduler):  # an inner function travels whole: the scheduler does not have this module
        gc.collect()
        return psutil.Process().memory_info().rss, len(dask_scheduler.tasks)

    deadline = time.monotonic() + 30
    while (found := client.run_on_scheduler(resident))[1] and time.monotonic() < deadline:
        time.sleep(0.2)  # results are let go of a moment after they were fetched
    return found


def tasks_by_worker(client):
    def done(dask_worker):
        return dask_worker.state.transition_counter

    return client.run(done)


@pytest.mark.full
def test_small_predictions_from_many_threads(model, tmp_path):
    clf, X = model
    calls = 1_000
    expected = clf.predict(X)
    with dask_processes(tmp_path) as address, Client(address) as client, ThreadPoolExecutor(THREADS) as pool:

        def predict(call):
            start = 37 * call % 1_900
            lazy = clf.predict(da.from_array(X[start : start + 100], chunks=(50, 20)))
            return np.array_equal(lazy.compute(), expected[start : start + 100])

        assert all(pool.map(predict, range(calls // 4)))  # what every process loads once
        used = []
        for _ in range(2):
            assert all(pool.map(predict, range(calls)))
            used.append(scheduler_bytes(client))
            print(f"after {calls} calls more: scheduler {used[-1][0] / 2**20:.1f} MiB, {used[-1][1]} tasks")

        steps = tasks_by_worker(client)
        print(f"steps of tasks by worker: {steps}")
        assert len(steps) == 2
        assert min(steps.values()) > calls
    (first, _), (second, left) = used
    assert second <= 1.1 * first
    assert left == 0
