"""What a process did and how much memory it took, told by the process itself."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Tally", "Work", "available_bytes", "merge_work", "peak_bytes", "resident_bytes", "this_process"]

Process = str


@dataclass
class Tally:
    """Counted while a task runs."""

    bytes_read: int = 0
    passes: int = 0
    rows_repeated: int = 0


@dataclass(frozen=True)
class Work:
    """What one process has done: blocks, bytes read, passes, rows done again, and its largest memory ever."""

    blocks: int
    bytes_read: int
    passes: int
    rows_repeated: int
    peak_bytes: int


def merge_work(parts: Iterable[Mapping[Process, Work]]) -> dict[Process, Work]:
    """Work of several tasks, by process."""
    merged: dict[Process, Work] = {}
    for part in parts:
        for process, new in part.items():
            old = merged.get(process, Work(0, 0, 0, 0, 0))
            merged[process] = Work(
                old.blocks + new.blocks,
                old.bytes_read + new.bytes_read,
                old.passes + new.passes,
                old.rows_repeated + new.rows_repeated,
                max(old.peak_bytes, new.peak_bytes),
            )
    return merged


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
