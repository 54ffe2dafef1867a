"""Real schedulers and workers, each in its own process."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from distributed import Client
from processes import PythonProcess

# Settings that Python and its libraries read when they start.
NEEDS_NEW_PYTHON = {"PYTHONPATH", "OPENBLAS_NUM_THREADS"}


@contextmanager
def dask_processes(folder, n_workers=2, certificates=None, security=None, before_worker=(), nanny=None, **environment):
    """Start a scheduler and workers with Dask's commands on loopback; yields the scheduler's address.

    With ``certificates`` (ca, cert, key) both use TLS only, and ``security`` is needed for the client that waits for
    them. ``before_worker`` is a command prefix for the workers. ``nanny`` is the memory limit of workers that a nanny
    restarts when they die.
    """
    contact = folder / "scheduler.json"
    env = {**os.environ, **environment}
    names = ("--tls-ca-file", "--tls-cert", "--tls-key")
    tls = [str(word) for pair in zip(names, certificates or (), strict=False) for word in pair]
    forked = not (before_worker or nanny or NEEDS_NEW_PYTHON & set(environment))

    def start(words, before=()):
        if forked:
            return PythonProcess("-m", "dask", *words, folder=folder, **environment)
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.Popen([*before, sys.executable, "-m", "dask", *words], env=env, cwd=folder, **quiet)

    scheduler = [
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--scheduler-file",
        str(contact),
        "--no-dashboard",
        *(["--protocol", "tls"] if tls else []),
        *tls,
    ]
    worker = [
        "worker",
        "--scheduler-file",
        str(contact),
        "--nthreads",
        "1",
        *(["--nanny", "--memory-limit", nanny] if nanny else ["--no-nanny"]),
        "--no-dashboard",
        *tls,
    ]
    processes = [start(scheduler)]
    try:
        _wait_for(contact)
        processes += [start([*worker, "--name", f"worker-{i}"], before_worker) for i in range(n_workers)]
        with Client(scheduler_file=str(contact), set_as_default=False, security=security) as probe:
            if n_workers:
                probe.wait_for_workers(n_workers, timeout=60)
            address = probe.scheduler.address
        yield address
    finally:
        # A worker whose nanny is killed ends itself.
        for process in reversed(processes):
            process.kill()
            process.wait()


SLOW_TASKS = """
import time
from fxdask.kernels import projections
from fxdask.tasks import score

def slow(function):
    def waits(*arguments):
        time.sleep({seconds})
        return function(*arguments)
    return waits

projections.weight_block, score.read_pieces = slow(projections.weight_block), slow(score.read_pieces)
"""


def slow_tasks(folder, seconds):
    """The environment of workers that wait in every task, so that a job can be disturbed but needs little work.

    A worker that its nanny restarts waits too.
    """
    file = folder / "slow_tasks.py"
    file.write_text(SLOW_TASKS.format(seconds=seconds))
    return {"DASK_DISTRIBUTED__WORKER__PRELOAD": str(file)}


def _wait_for(file):
    for _ in range(600):
        if file.exists() and file.stat().st_size:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{file} did not appear")


@pytest.fixture(scope="package")
def address(tmp_path_factory):
    """One cluster for all files that do not disturb it; it ends with the last test of this folder."""
    with dask_processes(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def client(address):
    with Client(address) as connected:
        yield connected
