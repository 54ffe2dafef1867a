"""The memory and threads of the processes that run the tasks."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["SHARE_OF_LIMIT", "Resources"]

SHARE_OF_LIMIT = 0.6
"""Share of a process's memory limit that tasks may use: Dask spills beyond that."""


@dataclass(frozen=True, kw_only=True)
class Resources:
    """What the processes that run the tasks have: the smallest limit, the largest baseline, their threads."""

    limit: int
    baseline: int
    threads: int
    processes: int = 1
    with_caller: bool = False
    """Whether the tasks run in the process that will hold the fitted model."""

    @property
    def per_task(self) -> int:
        """Bytes that one task may take: as many tasks run at a time as a process has threads."""
        return int(SHARE_OF_LIMIT * self.limit - self.baseline) // self.threads
