"""A cluster whose workers get SIGKILL, again and again, while they hold a task."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

from distributed import Client

from .conftest import _wait_for


@contextmanager
def nanny_cluster(folder, n_workers=2, memory="1GiB"):
    """A scheduler and workers with nannies, which start a new worker where one died; yields the address."""
    contact = folder / "scheduler.json"
    dask = [sys.executable, "-m", "dask"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
    local = ["--host", "127.0.0.1", "--no-dashboard", "--scheduler-file", str(contact)]
    processes = [subprocess.Popen([*dask, "scheduler", "--port", "0", *local], **quiet)]
    try:
        _wait_for(contact)
        worker = [*dask, "worker", "--nthreads", "1", "--memory-limit", memory, "--nanny", *local]
        processes += [subprocess.Popen(worker, **quiet) for _ in range(n_workers)]
        with Client(scheduler_file=str(contact), set_as_default=False) as probe:
            probe.wait_for_workers(n_workers, timeout=60)
            address = probe.scheduler.address
        yield address
    finally:
        # A worker of a nanny that is killed notices, and ends itself.
        for process in reversed(processes):
            process.kill()
            process.wait()


class Killer(threading.Thread):
    """Kills a worker that holds a task every two seconds or so, as a seed says."""

    def __init__(self, address, seed, seconds=2.0):
        super().__init__(daemon=True)
        self.address, self.seconds = address, seconds
        self.random = random.Random(seed)
        self.kills = 0
        self._stop_now = threading.Event()

    def run(self):
        def held(dask_worker):  # an inner function travels whole: workers do not have this module
            return os.getpid(), len(dask_worker.state.executing)

        with Client(self.address, set_as_default=False) as client:
            while not self._stop_now.wait(self.seconds * self.random.uniform(0.75, 1.25)):
                found = client.run(held, on_error="ignore").values()
                holding = sorted(pid for pid, n_held in found if n_held)
                if holding:
                    os.kill(self.random.choice(holding), signal.SIGKILL)
                    self.kills += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_now.set()
        self.join(30)


@contextmanager
def timed(name):
    started = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - started:.1f} s", flush=True)
