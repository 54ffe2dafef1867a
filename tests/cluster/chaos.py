"""A cluster whose workers get SIGKILL, again and again, while they hold a task."""

import math
import os
import random
import signal
import threading
import time
from contextlib import contextmanager

from distributed import Client


class Killer(threading.Thread):
    """Kills a worker that holds a task every two seconds or so, as a seed says, and no more than so many."""

    def __init__(self, address, seed, seconds=2.0, at_most=math.inf):
        super().__init__(daemon=True)
        self.address, self.seconds, self.at_most = address, seconds, at_most
        self.random = random.Random(seed)
        self.kills = 0
        self._stop_now = threading.Event()

    def run(self):
        def held(dask_worker):  # an inner function travels whole: workers do not have this module
            return os.getpid(), len(dask_worker.state.executing)

        with Client(self.address, set_as_default=False) as client:
            pause = self.seconds / 4  # the first one early, so that short work does not get away
            while self.kills < self.at_most and not self._stop_now.wait(pause):
                pause = self.seconds * self.random.uniform(0.75, 1.25)
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
def timed(name, at_least=0):
    """Prints how long something took; what is over too soon shows nothing, so it fails."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"{name}: {seconds:.1f} s", flush=True)
    assert seconds >= at_least
