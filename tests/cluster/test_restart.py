"""Fits whose scheduler or client is killed: the same call resumes and repeats few blocks."""

import json
import os
import signal
import threading
import time

import numpy as np
import pytest
import zarr
from command_line import run_here
from dask import delayed
from distributed import Client
from processes import PythonProcess

from fxdask import FisherNetworkClassifier
from fxdask.errors import ClusterError
from fxdask.execution.compute import compute

from .conftest import dask_processes, slow_tasks

N_BLOCKS, PER_BLOCK = 16, 50
N_SAMPLES = 1_000
SECONDS_PER_BLOCK = 0.2
WORKERS = 2

# The command line with a shorter time limit for connecting to a scheduler.
SHORT_TIME_TO_CONNECT = """
from fxdask.cli.main import main
from fxdask.execution import connection
connection.SECONDS_TO_CONNECT = 2
main()
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cluster")
    with dask_processes(folder, WORKERS, **slow_tasks(folder, SECONDS_PER_BLOCK)) as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).standard_normal((N_SAMPLES, 20), dtype=np.float32)
    X[::2] *= 1.2
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.arange(N_SAMPLES) % 2)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed") / "model.zarr"
    clf = FisherNetworkClassifier(N_BLOCKS * PER_BLOCK, 5, nodes_per_block=PER_BLOCK, store=store)
    return clf.fit(data / "X.npy", data / "y.npy")


def fit_arguments(data, store, address):
    fit = ["fit", data / "X.npy", data / "y.npy", store, "--nodes", N_BLOCKS * PER_BLOCK, "--selected", 5]
    return [*fit, "--nodes-per-block", PER_BLOCK, "--scheduler", address, "--json", "--quiet"]


def start(data, store, address, program=("-m", "fxdask")):
    return PythonProcess(*program, *fit_arguments(data, store, address))


def marks(store):
    folder = store / "blocks_done" / "c"
    return len([file for file in folder.iterdir() if file.name.isdigit()]) if folder.exists() else 0


def wait_for_marks(store, count, process):
    deadline = time.monotonic() + 300
    while marks(store) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(data, store, address, undisturbed, done):
    """Run the same call to its end and check its values -> number of resumed blocks."""
    run = run_here(store.parent, *fit_arguments(data, store, address))
    assert run.returncode == 0, run.stderr
    facts = json.loads(run.stdout)["fit"]
    print(f"{done} of {N_BLOCKS} blocks were marked; {facts['n_blocks_resumed']} of them were resumed")
    for name in ("statistics", "selection", "selected/projections"):
        got, want = (zarr.open_group(path, mode="r")[name][:] for path in (store, undisturbed.store_))
        assert np.array_equal(got, want)
    return facts["n_blocks_resumed"]


def test_a_restarted_scheduler_is_reported_in_one_sentence(tmp_path):
    """The new scheduler is at the same address, so that the client connects again, but knows nothing of the work."""
    with dask_processes(tmp_path, 1) as address, Client(address):

        def restart():
            os.kill(scheduler_of(address), signal.SIGKILL)
            host, port = address.removeprefix("tcp://").split(":")
            new.append(PythonProcess("-m", "dask", "scheduler", "--host", host, "--port", port, "--no-dashboard"))

        new, restarting = [], threading.Timer(1, restart)
        restarting.start()
        try:
            with pytest.raises(ClusterError, match=f"the scheduler at {address} no longer answers, or was restarted"):
                compute([delayed(time.sleep)(60)])
        finally:
            restarting.join()
            for process in new:
                process.kill()
                process.wait()


def scheduler_of(address):
    """The process id of the scheduler."""
    with Client(address, set_as_default=False) as client:
        return client.run_on_scheduler(os.getpid)


def wait_until_idle(address):
    """Wait until the workers have finished their running tasks."""

    def n_tasks(dask_worker):
        return len(dask_worker.state.executing) + len(dask_worker.state.ready)

    with Client(address, set_as_default=False) as client:
        deadline = time.monotonic() + 60
        idle = 0
        while idle < 3:  # three checks in a row, because the scheduler may notice the end of the client late
            assert time.monotonic() < deadline
            idle = 0 if any(client.run(n_tasks).values()) else idle + 1
            time.sleep(0.1)


def test_the_same_call_resumes_after_the_client_was_killed(data, undisturbed, address, tmp_path, share):
    store = tmp_path / "model.zarr"
    run = start(data, store, address)
    wait_for_marks(store, int(share * N_BLOCKS), run)
    os.kill(run.pid, signal.SIGKILL)
    run.communicate()
    wait_until_idle(address)
    done = marks(store)
    assert done < N_BLOCKS
    assert done <= finished(data, store, address, undisturbed, done) <= done + WORKERS


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_the_same_call_resumes_after_a_signal(data, undisturbed, address, tmp_path, number):
    store = tmp_path / "model.zarr"
    run = start(data, store, address)
    wait_for_marks(store, N_BLOCKS // 4, run)
    run.send_signal(number)
    out, errors = run.communicate(timeout=60)
    message = "stopped; run the same command again to resume"
    assert (run.returncode, json.loads(out)["error"], errors.strip()) == (1, message, message)
    assert not (tmp_path / ".model.zarr.lease").exists()
    done = marks(store)
    assert N_BLOCKS // 4 <= done < N_BLOCKS
    assert done <= finished(data, store, address, undisturbed, done) <= done + WORKERS


def test_the_same_call_resumes_after_the_scheduler_was_killed(data, undisturbed, address, tmp_path, share):
    store = tmp_path / "model.zarr"
    (tmp_path / "killed").mkdir()
    environment = slow_tasks(tmp_path / "killed", SECONDS_PER_BLOCK)
    with dask_processes(tmp_path / "killed", 1, **environment) as killed:
        run = start(data, store, killed, program=("-c", SHORT_TIME_TO_CONNECT))
        wait_for_marks(store, int(share * N_BLOCKS), run)
        os.kill(scheduler_of(killed), signal.SIGKILL)
        out, errors = run.communicate(timeout=120)
        assert run.returncode == 1, out
        assert errors.count("error: ") == 1, errors
        assert "Traceback" not in errors
    done = marks(store)  # nothing runs any more, so exactly these are resumed
    assert finished(data, store, address, undisturbed, done) == done
