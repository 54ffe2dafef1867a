"""The memory and threads of the processes that run the tasks."""

from __future__ import annotations

from dataclasses import dataclass

from fxdask.sizes import MIB

__all__ = ["SHARE_OF_LIMIT", "WORKER_BASELINE", "ClusterShape", "Resources"]

SHARE_OF_LIMIT = 0.6
"""Share of a process's memory limit that tasks may use; Dask starts to spill beyond it."""

WORKER_BASELINE = 200 * MIB
"""Bytes of a worker that has loaded fxdask and has no task yet."""


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """A cluster to plan for, which need not be connected: equal workers.

    Parameters
    ----------
    workers : int
        Number of worker processes.
    threads : int, default=1
        Threads of each worker.
    memory : int or str
        Memory limit of each worker, in bytes or as a text such as "16GiB".

    Examples
    --------
    >>> import numpy as np
    >>> import fxdask
    >>> X, y = np.zeros((1000, 20), np.float32), np.arange(1000) % 2
    >>> cluster = fxdask.ClusterShape(workers=200, threads=4, memory="16GiB")
    >>> fxdask.FisherNetworkClassifier(n_nodes=1_000_000).plan(X, y, cluster=cluster).tasks_at_a_time
    800
    """

    workers: int
    threads: int = 1
    memory: int | str


@dataclass(frozen=True, kw_only=True)
class Resources:
    """Memory and threads of the process that has the least memory per task, and the number of processes."""

    limit: int
    """Memory limit of the process, in bytes."""
    baseline: int
    """Bytes that the process uses before any task runs."""
    threads: int
    processes: int = 1
    with_caller: bool = False
    """Whether the tasks run in the process that will hold the fitted model."""
    caller_bytes: int | None = None
    """Bytes that the calling process may use for the model while tasks run elsewhere; None if unknown."""

    @property
    def per_task(self) -> int:
        """Bytes that one task may use; a process runs one task per thread."""
        return int(SHARE_OF_LIMIT * self.limit - self.baseline) // self.threads
