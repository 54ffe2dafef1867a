"""Killing the workers of a cluster while they run tasks."""

import math
import os
import random
import signal
import threading
import time
from contextlib import contextmanager

from distributed import Client

from .conftest import dask_processes


class Killer(threading.Thread):
    """Kills a worker that runs a task about every ``seconds``, at most ``at_most`` times; a seed makes the choices."""

    def __init__(self, address, seed, seconds=2.0, at_most=math.inf):
        super().__init__(daemon=True)
        self.address, self.seconds, self.at_most = address, seconds, at_most
        self.random = random.Random(seed)
        self.kills = 0
        self._stop_now = threading.Event()

    def run(self):
        def running(dask_worker):  # an inner function is pickled by value; workers cannot import this module
            return os.getpid(), len(dask_worker.state.executing)

        with Client(self.address, set_as_default=False) as client:
            pause = self.seconds / 4  # the first kill is early, so that short jobs get one too
            while self.kills < self.at_most and not self._stop_now.wait(pause):
                pause = self.seconds * self.random.uniform(0.75, 1.25)
                found = client.run(running, on_error="ignore").values()
                busy = sorted(pid for pid, n_running in found if n_running)
                if busy:
                    os.kill(self.random.choice(busy), signal.SIGKILL)
                    self.kills += 1

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self._stop_now.set()
        self.join(30)


@contextmanager
def one_worker_killed(folder, is_time):
    """A cluster of two new workers with its client; one worker is killed as soon as ``is_time()`` is true."""
    folder.mkdir()
    over = threading.Event()
    killed = []

    def kill(pid):
        while not over.wait(0.002):
            if is_time():
                os.kill(pid, signal.SIGKILL)
                killed.append(pid)
                return

    with dask_processes(folder) as address, Client(address) as client:
        killer = threading.Thread(target=kill, args=(min(client.run(os.getpid).values()),), daemon=True)
        killer.start()
        try:
            yield client
        finally:
            over.set()
            killer.join()
        assert killed, "the job ended before a worker was killed"
        assert killed[0] not in client.run(os.getpid).values()


@contextmanager
def timed(name, at_least=0):
    """Print the duration; fail if it is too short for the test to be meaningful."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"{name}: {seconds:.1f} s", flush=True)
    assert seconds >= at_least
