"""Graphs that read samples once: into memory, or into files that all later passes and all workers read."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import is_in_memory, row_tasks
from fxdask.store.parts import PartsAddress
from fxdask.tasks import copy as tasks
from fxdask.tasks.frames import partition_rows

__all__ = ["FramePartitions", "copy_array", "copy_partitions", "load_partitions"]

PARTITIONS_AT_A_TIME = 16


@dataclass(frozen=True, kw_only=True)
class FramePartitions:
    """The partitions of a Dask DataFrame, each as the rows of an array of one type."""

    rows: list[Delayed]
    n_features: int
    dtype: np.dtype

    @classmethod
    def of(cls, frame: Any, columns: Sequence[str], dtype: np.dtype) -> FramePartitions:
        """The partitions of the optimised frame, which may be fewer than those of the frame."""
        names = list(columns)
        convert = delayed(partition_rows, pure=False)
        rows = [convert(partition, names, dtype.str) for partition in frame[names].to_delayed()]
        return cls(rows=rows, n_features=len(names), dtype=dtype)


def load_partitions(partitions: FramePartitions, most_bytes: int) -> list[NDArray]:
    """The rows of the first partitions: of all of them, or of so many that they take more than ``most_bytes``."""
    loaded: list[NDArray] = []
    while len(loaded) < len(partitions.rows) and sum(rows.nbytes for rows in loaded) <= most_bytes:
        loaded += compute(partitions.rows[len(loaded) : len(loaded) + PARTITIONS_AT_A_TIME])
    return loaded


def copy_partitions(
    partitions: FramePartitions, loaded: Sequence[NDArray], url: str, progress: Progress | None = None
) -> PartsAddress:
    """Copy every partition into a file of a folder; those that are loaded already are not read again."""
    done = [tasks.copy_rows(rows, url, index, False) for index, rows in enumerate(loaded)]
    copy = delayed(tasks.copy_rows, pure=False)
    work = [copy(rows, url, index, False) for index, rows in enumerate(partitions.rows)][len(loaded) :]
    found = [*done, *compute(work, progress)]
    return PartsAddress(
        url=url,
        lengths=tuple(part.n_rows for part in found),
        n_features=partitions.n_features,
        dtype=partitions.dtype.str,
    )


def copy_array(array: DaskArray | NDArray, url: str, progress: Progress | None = None) -> PartsAddress:
    """Copy an array of known shape into files of a folder; the same pass computes the digest of its content."""
    n_rows, n_features = array.shape
    copy = delayed(tasks.copy_range, pure=False)
    ranges = enumerate(row_tasks(array, n_rows, n_features))
    work = [copy(part, start, stop, url, index) for index, (start, stop, part) in ranges]
    found = compute(work, progress, local=is_in_memory(array))
    return PartsAddress(
        url=url,
        lengths=tuple(part.n_rows for part in found),
        n_features=n_features,
        dtype=array.dtype.str,
        digest=hashlib.sha256(b"".join(part.digest for part in found)).hexdigest(),
    )
