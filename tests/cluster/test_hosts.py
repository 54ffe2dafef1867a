"""Scheduler, workers and client on separate hosts with a shared file system, and jobs whose hosts lose the network."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
import pytest
import zarr

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.planning import score_plan
from fxdask.store.verify import verify_store

from . import driver
from .driver import done_files
from .hosts import Network, dask_on, namespaces, needs_namespaces, network

pytestmark = needs_namespaces()

WORKERS = ("east", "west")
PER_BLOCK, PER_CHUNK = 192, 1_500
ARRAYS = {"fit": ("statistics", "selection", "selected/projections"), "score": ("labels", "scores")}
SECONDS_TO_FINISH = 60
SECONDS_OF_WORK_LEFT = 20


def pytest_generate_tests(metafunc):
    """A worker loses its connection and continues, is stopped as well, or sees that its link is down."""
    if "cutting" in metafunc.fixturenames:
        metafunc.parametrize("cutting", ("cut", "frozen", "unplug"))


@pytest.fixture(scope="module")
def n_pieces():
    """Blocks of a fit and chunks of a scoring: some ten seconds of work for two workers."""
    return 40


@pytest.fixture(scope="module")
def data(tmp_path_factory, n_pieces):
    """Training samples; a model with exact densities, so that scoring takes long; and a test set for it."""
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 300), dtype=np.float32)
    X[::2] *= 1.2
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.arange(20_000) % 2)
    test = rng.standard_normal((n_pieces * PER_CHUNK, 20), dtype=np.float32)
    test[::2] *= 1.3
    zarr.create_array(folder / "test.zarr", data=test, chunks=(PER_CHUNK, 20))
    clf = FisherNetworkClassifier(200, 10, density="exact", store=folder / "model.zarr")
    clf.fit(test[:1_000], np.arange(1_000) % 2)
    return folder


@pytest.fixture(scope="module")
def undisturbed(data, n_pieces, tmp_path_factory):
    """The stores of the same two jobs on local threads."""
    folder = tmp_path_factory.mktemp("undisturbed")
    stores = {"fit": folder / "fit.zarr", "score": folder / "score.zarr"}
    clf = FisherNetworkClassifier(n_pieces * PER_BLOCK, 5, nodes_per_block=PER_BLOCK, store=stores["fit"])
    clf.fit(data / "X.npy", data / "y.npy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_plan, "BYTES_PER_TASK", 1)
        fxdask.batch_score(data / "model.zarr", data / "test.zarr", stores["score"])
    return stores


@contextmanager
def cluster(folder):
    """Two workers, a scheduler and a client, each on its own host."""
    folder.mkdir(exist_ok=True)
    with (
        network("scheduler", *WORKERS, "client") as hosts,
        dask_on(hosts, folder, "scheduler", WORKERS) as address,
    ):
        ask(hosts, "wait_for_workers", address, len(WORKERS))
        yield hosts, address


def on_client(hosts, *words, **more):
    """Start Python with these arguments on the client's host."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return hosts.start("client", sys.executable, *words, **pipes, **more)


def result_of(process, seconds=180):
    """Wait for a program that must succeed, and return its JSON output."""
    out, errors = process.communicate(timeout=seconds)
    assert process.returncode == 0, errors
    return json.loads(out)


def ask(hosts, *words):
    return result_of(on_client(hosts, driver.__file__, *words))


def start(job, hosts, address, data, out, n_pieces, **more):
    """Start a fit on the command line, or a scoring in Python, on the client's host."""
    if job == "score":
        words = ("score", address, data / "model.zarr", data / "test.zarr", out)
        return on_client(hosts, driver.__file__, *words, **more)
    words = ("fit", data / "X.npy", data / "y.npy", out, "--nodes", n_pieces * PER_BLOCK, "--selected", 5)
    words = (*words, "--nodes-per-block", PER_BLOCK, "--scheduler", address, "--json", "--quiet")
    return on_client(hosts, "-m", "fxdask", *words, **more)


def facts_of(found):
    return found.get("fit", found)


def print_evidence(job, found):
    """Print the telemetry of each process, and return the hosts that took part."""
    pieces, read, peak = (
        next(value for name, value in found.items() if name.startswith(what))
        for what in (("blocks_by", "chunks_by"), "bytes_read_by", "peak_bytes_by")
    )
    for process in sorted(pieces):
        print(
            f"{job} at {process}: {pieces[process]} pieces, {read[process]:,} bytes read, peak {peak[process]:,} bytes"
        )
    return {process.split(":")[0] for process in pieces}


def check_values(job, got, want):
    for name in ARRAYS[job]:
        mine, theirs = (zarr.open_group(store, mode="r")[name][:] for store in (got, want))
        assert np.array_equal(mine, theirs), name
    assert not verify_store(got).damaged


@pytest.mark.full
def test_workers_on_two_hosts_share_a_job(data, undisturbed, n_pieces, tmp_path):
    with cluster(tmp_path) as (hosts, address):
        for job in ARRAYS:
            out = tmp_path / f"{job}.zarr"
            found = facts_of(result_of(start(job, hosts, address, data, out, n_pieces)))
            assert print_evidence(job, found) == set(WORKERS)
            check_values(job, out, undisturbed[job])


def seconds_left(files, n_pieces):
    """Estimated seconds until both workers are done, at the speed of the later half, because the start is slow."""
    times = sorted(file.stat().st_mtime for file in files)
    later = times[len(times) // 2 :]
    return (n_pieces - len(times)) * (later[-1] - later[0]) / (len(later) - 1)


@pytest.mark.full
def test_a_job_finishes_soon_after_a_worker_was_disconnected(data, undisturbed, n_pieces, tmp_path, cutting):
    def one(job):
        return run_disconnected(job, data, undisturbed[job], n_pieces, tmp_path / job, cutting)

    with ThreadPoolExecutor(2) as pool:  # both jobs at once on separate hosts, because they mostly wait
        found = list(pool.map(one, ARRAYS))
    if any(left > SECONDS_OF_WORK_LEFT for left, _ in found):
        pytest.skip(f"this machine is too slow now: more than {SECONDS_OF_WORK_LEFT} s of work were left at the cut")
    assert max(seconds for _, seconds in found) < SECONDS_TO_FINISH


def run_disconnected(job, data, undisturbed, n_pieces, folder, cutting):
    """Run a job and check its values -> (seconds of work left when a worker was disconnected, seconds it took)."""
    results = folder / "out"
    results.mkdir(parents=True)
    with cluster(folder) as (hosts, address):
        words = ("wait_until_busy", address, hosts.address("west"), results, n_pieces // 2)
        watch = on_client(hosts, driver.__file__, *words)
        run = start(job, hosts, address, data, results / "out.zarr", n_pieces)
        worker = json.loads(watch.stdout.readline())
        disconnect(hosts, cutting, worker)
        cut, files = time.monotonic(), done_files(results)
        left = seconds_left(files, n_pieces)
        found = facts_of(result_of(run))
        seconds = time.monotonic() - cut
        print(
            f"{job}, {cutting} at {len(files)} of {n_pieces} pieces: {left:.1f} s of work left, done in {seconds:.1f} s"
        )
        print_evidence(job, found)
        check_values(job, results / "out.zarr", undisturbed)
        if cutting == "frozen":
            os.kill(worker, signal.SIGCONT)
            time.sleep(5)  # the worker finishes its task and writes late to the finished store
            check_values(job, results / "out.zarr", undisturbed)
        assert [path.name for path in results.iterdir()] == ["out.zarr"]
        watch.communicate(timeout=60)
    return left, seconds


def disconnect(hosts, cutting, worker):
    """Disconnect the host "west"; its worker continues with its task, or is stopped."""
    if cutting == "frozen":
        os.kill(worker, signal.SIGSTOP)
    getattr(hosts, "unplug" if cutting == "unplug" else "cut")("west")


@pytest.mark.full
def test_a_short_disconnection_sends_no_block_twice(data, undisturbed, n_pieces, tmp_path):
    out = tmp_path / "out.zarr"
    with cluster(tmp_path) as (hosts, address):
        run = start("fit", hosts, address, data, out, n_pieces)
        wait_for_pieces(out, n_pieces // 4, run)
        for host in ("client", "west"):
            hosts.cut(host)
        time.sleep(3)
        for host in ("client", "west"):
            hosts.reconnect(host)
        found = facts_of(result_of(run))
    assert found["n_blocks_resumed"] == 0
    assert print_evidence("fit", found) == set(WORKERS)
    check_values("fit", out, undisturbed["fit"])


def wait_for_pieces(out, count, run):
    deadline = time.monotonic() + 120
    while len(done_files(out)) < count:
        assert run.poll() is None, run.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.full
def test_a_disconnected_client_fails_and_the_same_call_resumes(data, undisturbed, n_pieces, tmp_path):
    out = tmp_path / "out.zarr"
    with cluster(tmp_path) as (hosts, address):
        run = start("fit", hosts, address, data, out, n_pieces)
        wait_for_pieces(out, n_pieces // 4, run)
        hosts.cut("client")
        cut = time.monotonic()
        output, errors = run.communicate(timeout=120)
        print(f"reported {time.monotonic() - cut:.1f} s after the cut: {errors.strip()}")
        assert (run.returncode, output) == (1, "")
        assert errors.startswith(f"error: the scheduler at {address} no longer answers")
        assert errors.count("\n") == 1
        hosts.reconnect("client")
        done = len(done_files(out))
        found = facts_of(result_of(start("fit", hosts, address, data, out, n_pieces)))
    print(f"{done} of {n_pieces} blocks were marked; {found['n_blocks_resumed']} of them were resumed")
    assert found["n_blocks_resumed"] >= done
    check_values("fit", out, undisturbed["fit"])


def test_a_network_is_removed_after_an_error(tmp_path):
    made = []

    def fail_inside():
        with network("one", "two") as hosts:
            made.append((hosts, hosts.start("one", "sleep", 1_000)))
            time.sleep(0.5)
            raise InterruptedError

    with pytest.raises(InterruptedError):
        fail_inside()
    ((hosts, process),) = made
    assert process.wait(timeout=10) == -signal.SIGKILL
    assert not [name for name in namespaces() if name.startswith(hosts.mark)]


def test_a_network_is_removed_if_it_cannot_be_built(monkeypatch):
    monkeypatch.setattr(Network, "address", lambda *_: "no address")
    with pytest.raises(AssertionError, match="no address"), network("one", "two"):
        pass
    assert not [name for name in namespaces() if name.startswith(f"fxdask-{os.getpid()}-")]
