"""Real schedulers and workers, as processes of their own."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest
from distributed import Client


@contextmanager
def dask_processes(folder, n_workers=2, **environment):
    """A scheduler and workers started by Dask's own commands on loopback; yields the scheduler's address."""
    contact = folder / "scheduler.json"
    env = {**os.environ, **environment}
    dask = [sys.executable, "-m", "dask"]
    quiet = {"env": env, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    scheduler = [
        *dask,
        "scheduler",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--scheduler-file",
        str(contact),
        "--no-dashboard",
    ]
    worker = [
        *dask,
        "worker",
        "--scheduler-file",
        str(contact),
        "--nthreads",
        "1",
        "--no-nanny",
        "--no-dashboard",
    ]
    processes = [subprocess.Popen(scheduler, **quiet)]
    try:
        _wait_for(contact)
        processes += [subprocess.Popen([*worker, "--name", f"worker-{i}"], **quiet) for i in range(n_workers)]
        with Client(scheduler_file=str(contact), set_as_default=False) as probe:
            if n_workers:
                probe.wait_for_workers(n_workers, timeout=60)
            address = probe.scheduler.address
        yield address
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()


def _wait_for(file):
    for _ in range(600):
        if file.exists() and file.stat().st_size:
            return
        time.sleep(0.1)
    raise TimeoutError(f"{file} did not appear")


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with dask_processes(tmp_path_factory.mktemp("cluster")) as found:
        yield found


@pytest.fixture
def client(address):
    with Client(address) as connected:
        yield connected
