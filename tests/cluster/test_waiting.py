"""Waiting for workers: an adaptive cluster that starts with none, workers that come later, none that ever come."""

import json
import logging

import dask
import numpy as np
import pytest
from command_line import run_here
from distributed import Client, LocalCluster, Scheduler
from processes import PythonProcess

import fxdask
from fxdask.errors import ClusterError, InvalidInputError
from fxdask.execution.connection import connected
from fxdask.execution.waiting import checked_seconds, expected_workers

from .conftest import dask_processes

RNG = np.random.default_rng(0)
X = RNG.standard_normal((60, 4)).astype(np.float32)
Y = np.arange(60) % 2


def test_a_fit_starts_the_workers_of_an_adaptive_cluster(caplog):
    caplog.set_level(logging.WARNING, "fxdask")
    want = fxdask.FisherNetworkClassifier(50, 3).fit(X, Y)
    with (
        LocalCluster(
            n_workers=0, threads_per_worker=1, processes=False, dashboard_address=None, memory_limit="4GiB"
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.adapt(minimum=0, maximum=3, interval="100ms")
        got = fxdask.FisherNetworkClassifier(50, 3).fit(X, Y)
        assert expected_workers(client) == 3
        assert not [key for key in client.run_on_scheduler(_task_keys()) if "waits-for-workers" in str(key)]
    assert np.array_equal(got.divergences_, want.divergences_)
    assert "waiting for workers: 0 of 1 are there after 0 s" in caplog.text


def _task_keys():
    def keys(dask_scheduler: Scheduler):
        return list(dask_scheduler.tasks)

    return keys


def test_an_adaptive_cluster_starts_as_many_workers_as_are_waited_for():
    with (
        LocalCluster(
            n_workers=0, threads_per_worker=2, processes=False, dashboard_address=None, memory_limit="4GiB"
        ) as cluster,
        dask.config.set({"distributed.adaptive.wait-count": 1000}),
    ):
        cluster.adapt(minimum=0, maximum=4, interval="100ms")
        with connected(cluster.scheduler_address, wait_for_workers=3, timeout="60s") as client:
            assert len(client.scheduler_info(n_workers=-1)["workers"]) >= 3


def test_too_few_workers_are_refused_when_the_time_is_over(tmp_path):
    with dask_processes(tmp_path, n_workers=0) as address:
        with (
            pytest.raises(
                ClusterError, match=f"at {address} has no workers after 0 s but 1 is needed; start some with: dask w"
            ),
            connected(address, timeout=0),
        ):
            pass
        with (
            Client(address),
            dask.config.set({"fxdask.worker-timeout": 0}),
            pytest.raises(ClusterError, match="has no workers after 0 s"),
        ):
            fxdask.FisherNetworkClassifier(50, 3).fit(X, Y)


def test_the_command_line_waits_for_workers(tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    words = ["fit", "X.npy", "y.npy", "model.zarr", "--nodes", "50", "--selected", "3", "--json", "--quiet"]
    with dask_processes(tmp_path, 1) as address:
        words += ["--scheduler", address, "--wait-for-workers", "2"]
        refused = run_here(tmp_path, *words, "--timeout", "0.1s")
        assert refused.returncode == 1
        assert "has 1 workers after 0 s but 2 are needed" in refused.stderr
        late = PythonProcess("-m", "dask", "worker", address, "--nthreads", "1", "--no-nanny", "--no-dashboard")
        try:
            run = run_here(tmp_path, *words, "--timeout", "1m")
        finally:
            late.kill()
            late.wait()
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["fit"]["plan"]["tasks_at_a_time"] == 2


@pytest.mark.parametrize("timeout", ["soon", "", -1, "5 hands", "1e400"])
def test_a_timeout_that_is_no_time_is_refused(timeout):
    with pytest.raises(InvalidInputError, match=r'a number of seconds or a text such as "5m"'):
        checked_seconds(timeout)


def test_the_doctor_looks_at_workers(address, tmp_path):
    np.save(tmp_path / "X.npy", X)
    run = run_here(tmp_path, "doctor", "X.npy", "--scheduler", address, "--json")
    assert run.returncode == 0, run.stdout
    found = {line["what"]: line["found"] for line in json.loads(run.stdout)["findings"]}
    assert found["scheduler"] == f"{address} has 2 workers"
    assert sum("1 threads" in text and "the same versions" in text for text in found.values()) == 2
    wrong = json.loads(run_here(tmp_path, "doctor", "nowhere", "--scheduler", address, "--json").stdout)
    assert sum("cannot be reached" in line["found"] for line in wrong["findings"]) == 3
