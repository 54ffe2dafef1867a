"""Telemetry of a process, measured by the process itself: what it did and how much memory it used."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = [
    "TaskCounters",
    "WorkerStats",
    "available_bytes",
    "merge_worker_stats",
    "peak_bytes",
    "resident_bytes",
    "this_process",
    "this_worker",
]

Process = str


@dataclass
class TaskCounters:
    """Counted while a task runs."""

    bytes_read: int = 0
    passes: int = 0
    rows_repeated: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkerStats:
    """What one process did, and the most memory that it ever had."""

    blocks: int = 0
    bytes_read: int = 0
    passes: int = 0
    rows_repeated: int = 0
    peak_bytes: int = 0

    def __add__(self, other: WorkerStats) -> WorkerStats:
        """Both together; of the peaks, the higher one."""
        return WorkerStats(
            blocks=self.blocks + other.blocks,
            bytes_read=self.bytes_read + other.bytes_read,
            passes=self.passes + other.passes,
            rows_repeated=self.rows_repeated + other.rows_repeated,
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
        )


def merge_worker_stats(parts: Iterable[Mapping[Process, WorkerStats]]) -> dict[Process, WorkerStats]:
    """Statistics of several tasks, by process."""
    merged: dict[Process, WorkerStats] = {}
    for part in parts:
        for process, stats in part.items():
            merged[process] = merged.get(process, WorkerStats()) + stats
    return merged


def this_worker(counters: TaskCounters) -> dict[Process, WorkerStats]:
    """What this process did for one block, by its name."""
    stats = WorkerStats(
        blocks=1,
        bytes_read=counters.bytes_read,
        passes=counters.passes,
        rows_repeated=counters.rows_repeated,
        peak_bytes=peak_bytes(),
    )
    return {this_process(): stats}


def this_process() -> Process:
    """Host and process."""
    return f"{socket.gethostname()}:{os.getpid()}"


def peak_bytes() -> int:
    """The most memory that this process ever had resident; what it has now, where the system does not tell."""
    try:
        # Not from getrusage: that may tell the peak of the process that started this one.
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return resident_bytes()


def available_bytes() -> int:
    """The memory that the machine could give to processes now, without swapping."""
    return int(psutil.virtual_memory().available)


def resident_bytes() -> int:
    """The memory that this process has resident now."""
    return int(psutil.Process().memory_info().rss)
