"""What a process keeps of a job from one task to the next: open stores, prepared samples, scratch arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, RLock, local
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from fxdask.kernels.scratch import Scratch
from fxdask.store.sources import Source

__all__ = ["JobCache", "job_cache", "source_key"]

T = TypeVar("T")

_caches: WeakKeyDictionary[Any, JobCache] = WeakKeyDictionary()
_caches_lock = Lock()


class JobCache:
    """Values of one job, each made once per process, and scratch arrays of each thread."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._lock = RLock()
        self._threads = local()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key; it is made while other threads that need it wait."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            return self._values[key]

    @property
    def scratch(self) -> Scratch:
        """This thread's large arrays, reused from block to block."""
        if not hasattr(self._threads, "scratch"):
            self._threads.scratch = Scratch()
        return self._threads.scratch


def job_cache(job: Any) -> JobCache:
    """The cache of this job in this process; it is dropped together with the job.

    Jobs are compared by identity. A graph holds its job once, so all of its tasks in a process share one.
    """
    with _caches_lock:
        if job not in _caches:
            _caches[job] = JobCache()
        return _caches[job]


def source_key(samples: Source) -> Hashable:
    """A key that tells samples apart: the address, or which array it is."""
    return id(samples) if isinstance(samples, np.ndarray) else samples
