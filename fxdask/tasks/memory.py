"""The memory that a process uses before a job begins, without what it only keeps for later calls."""

from __future__ import annotations

import sys
from dataclasses import dataclass

from fxdask.kernels.scorer import forget_received
from fxdask.store.arrow import forget_footers
from fxdask.tasks.cache import n_cached_jobs
from fxdask.tasks.telemetry import resident_bytes

__all__ = ["MemoryInUse", "memory_in_use"]


@dataclass(frozen=True, kw_only=True)
class MemoryInUse:
    """What one process tells about its memory."""

    n_bytes: int
    """Resident memory."""
    has_compiler: bool
    """Whether numba is loaded, so that its memory is counted."""
    n_jobs: int
    """Jobs whose stores and scratch arrays are kept; those of an ended job are about to be freed."""


def memory_in_use() -> MemoryInUse:
    """Free what is only kept for later calls, and measure this process."""
    forget_received()
    forget_footers()
    return MemoryInUse(n_bytes=resident_bytes(), has_compiler="numba" in sys.modules, n_jobs=n_cached_jobs())
