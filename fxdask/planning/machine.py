"""The memory and threads of the processes that run the tasks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SHARE_OF_LIMIT", "Resources"]

SHARE_OF_LIMIT = 0.6
"""Share of a process's memory limit that tasks may use; Dask starts to spill beyond it."""


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

    @property
    def per_task(self) -> int:
        """Bytes that one task may use; a process runs one task per thread."""
        return int(SHARE_OF_LIMIT * self.limit - self.baseline) // self.threads
