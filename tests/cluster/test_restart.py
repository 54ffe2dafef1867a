"""Fits whose scheduler or client is killed: the same call resumes and repeats few blocks."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import zarr
from distributed import Client

from fxdask import FisherNetworkClassifier

from .conftest import dask_processes

N_BLOCKS, PER_BLOCK = 40, 192
WORKERS = 2


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).standard_normal((20_000, 300), dtype=np.float32)
    X[::2] *= 1.2
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.arange(20_000) % 2)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    store = tmp_path_factory.mktemp("undisturbed") / "model.zarr"
    clf = FisherNetworkClassifier(N_BLOCKS * PER_BLOCK, 5, nodes_per_block=PER_BLOCK, store=store)
    return clf.fit(data / "X.npy", data / "y.npy")


def fit(data, store, address):
    words = ["fit", data / "X.npy", data / "y.npy", store, "--nodes", N_BLOCKS * PER_BLOCK, "--selected", 5]
    more = ["--nodes-per-block", PER_BLOCK, "--scheduler", address, "--json", "--quiet"]
    return subprocess.Popen(
        [sys.executable, "-m", "fxdask", *map(str, (*words, *more))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def marks(store):
    folder = store / "blocks_done" / "c"
    return len([file for file in folder.iterdir() if file.name.isdigit()]) if folder.exists() else 0


def wait_for_marks(store, count, process):
    deadline = time.monotonic() + 120
    while marks(store) < count:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


def finished(data, store, address, undisturbed, done):
    """Run the same call to its end and check its values -> number of resumed blocks."""
    run = fit(data, store, address)
    out, errors = run.communicate(timeout=180)
    assert run.returncode == 0, errors
    facts = json.loads(out)["fit"]
    print(f"{done} of {N_BLOCKS} blocks were marked; {facts['n_blocks_resumed']} of them were resumed")
    for name in ("statistics", "selection", "selected/projections"):
        got, want = (zarr.open_group(path, mode="r")[name][:] for path in (store, undisturbed.store_))
        assert np.array_equal(got, want)
    return facts["n_blocks_resumed"]


def scheduler_of(address):
    """The process id of the scheduler."""
    with Client(address, set_as_default=False) as client:
        return client.run_on_scheduler(os.getpid)


def test_the_same_call_resumes_after_the_client_was_killed(data, undisturbed, tmp_path, share):
    store = tmp_path / "model.zarr"
    with dask_processes(tmp_path, WORKERS, nanny="1GiB") as address:
        run = fit(data, store, address)
        wait_for_marks(store, int(share * N_BLOCKS), run)
        os.kill(run.pid, signal.SIGKILL)
        run.communicate()
        time.sleep(3)  # the workers finish their running tasks
        done = marks(store)
        assert done <= finished(data, store, address, undisturbed, done) <= done + WORKERS


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_the_same_call_resumes_after_a_signal(data, undisturbed, tmp_path, number):
    store = tmp_path / "model.zarr"
    with dask_processes(tmp_path, WORKERS, nanny="1GiB") as address:
        run = fit(data, store, address)
        wait_for_marks(store, N_BLOCKS // 4, run)
        run.send_signal(number)
        out, errors = run.communicate(timeout=60)
        assert (run.returncode, out, errors.strip()) == (1, "", "stopped; run the same command again to resume")
        assert not (tmp_path / ".model.zarr.lease").exists()
        done = marks(store)
        assert N_BLOCKS // 4 <= done < N_BLOCKS
        assert done <= finished(data, store, address, undisturbed, done) <= done + WORKERS


def test_the_same_call_resumes_after_the_scheduler_was_killed(data, undisturbed, tmp_path, share):
    store = tmp_path / "model.zarr"
    folders = [tmp_path / name for name in ("first", "second")]
    for folder in folders:
        folder.mkdir()
    with dask_processes(folders[0], WORKERS, nanny="1GiB") as address:
        run = fit(data, store, address)
        wait_for_marks(store, int(share * N_BLOCKS), run)
        os.kill(scheduler_of(address), signal.SIGKILL)
        out, errors = run.communicate(timeout=120)
        assert run.returncode == 1, out
        assert errors.count("error: ") == 1, errors
        assert "Traceback" not in errors
    with dask_processes(folders[1], WORKERS, nanny="1GiB") as address:
        done = marks(store)
        assert done <= finished(data, store, address, undisturbed, done) <= done + WORKERS
