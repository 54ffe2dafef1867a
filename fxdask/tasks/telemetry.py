"""Telemetry that each process measures itself: counters of its work, and its memory."""

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
    """Counters of one task."""

    bytes_read: int = 0
    passes: int = 0
    rows_repeated: int = 0


@dataclass(frozen=True, kw_only=True)
class WorkerStats:
    """Counters of one process, and its peak memory."""

    blocks: int = 0
    bytes_read: int = 0
    passes: int = 0
    rows_repeated: int = 0
    peak_bytes: int = 0

    def __add__(self, other: WorkerStats) -> WorkerStats:
        """The sums of the counters, and the higher peak."""
        return WorkerStats(
            blocks=self.blocks + other.blocks,
            bytes_read=self.bytes_read + other.bytes_read,
            passes=self.passes + other.passes,
            rows_repeated=self.rows_repeated + other.rows_repeated,
            peak_bytes=max(self.peak_bytes, other.peak_bytes),
        )


def merge_worker_stats(parts: Iterable[Mapping[Process, WorkerStats]]) -> dict[Process, WorkerStats]:
    """Statistics of several tasks -> their sums by process."""
    merged: dict[Process, WorkerStats] = {}
    for part in parts:
        for process, stats in part.items():
            merged[process] = merged.get(process, WorkerStats()) + stats
    return merged


def this_worker(counters: TaskCounters) -> dict[Process, WorkerStats]:
    """The counters of one block, by the name of this process."""
    stats = WorkerStats(
        blocks=1,
        bytes_read=counters.bytes_read,
        passes=counters.passes,
        rows_repeated=counters.rows_repeated,
        peak_bytes=peak_bytes(),
    )
    return {this_process(): stats}


def this_process() -> Process:
    """The name of this process: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def peak_bytes() -> int:
    """Peak resident memory of this process; its present resident memory if the system does not report a peak."""
    try:
        # getrusage is not used, because it may report the peak of the parent process.
        (line,) = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        return resident_bytes()


def available_bytes() -> int:
    """Memory that the machine has available without swapping."""
    return int(psutil.virtual_memory().available)


def resident_bytes() -> int:
    """Resident memory of this process."""
    return int(psutil.Process().memory_info().rss)
