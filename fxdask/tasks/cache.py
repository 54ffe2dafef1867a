"""A cache for each job and process, shared by its tasks: open stores, preprocessed samples, scratch arrays."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from threading import Lock, RLock, local
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import numpy as np

from fxdask.kernels.scratch import Scratch
from fxdask.store.sources import Source

__all__ = ["JobCache", "job_cache", "n_cached_jobs", "source_key"]

T = TypeVar("T")

_caches: WeakKeyDictionary[Any, JobCache] = WeakKeyDictionary()
_caches_lock = Lock()


class JobCache:
    """Values of one job, each made once in a process, and scratch arrays of each thread."""

    def __init__(self) -> None:
        self._values: dict[Hashable, Any] = {}
        self._lock = RLock()
        self._threads = local()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key; the first thread that asks for it makes it while the others wait."""
        with self._lock:
            if key not in self._values:
                self._values[key] = make()
            return self._values[key]

    @property
    def scratch(self) -> Scratch:
        """The large arrays of this thread, reused from block to block."""
        if not hasattr(self._threads, "scratch"):
            self._threads.scratch = Scratch()
        return self._threads.scratch


def job_cache(job: Any) -> JobCache:
    """The cache of this job in this process; it is deleted with the job.

    Jobs are compared by identity. A graph holds its job once, so all its tasks in a process share one cache.
    """
    with _caches_lock:
        if job not in _caches:
            _caches[job] = JobCache()
        return _caches[job]


def n_cached_jobs() -> int:
    """Number of jobs with a cache in this process."""
    with _caches_lock:
        return len(_caches)


def source_key(samples: Source) -> Hashable:
    """A key that identifies the samples: their address, or the identity of the array."""
    return id(samples) if isinstance(samples, np.ndarray) else samples
