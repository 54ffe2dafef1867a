"""The task of ReliefF on one range of rows: the rows that are nearest to some anchors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.criteria.relief import (
    Anchors,
    ColumnRanges,
    Neighbours,
    RowBlock,
    merge_neighbours,
    nearest,
    no_neighbours,
)
from fxdask.kernels.preprocessing import checked_rows
from fxdask.sizes import MIB, row_ranges
from fxdask.store.sources import Source
from fxdask.tasks.reading import read_range

__all__ = ["ReliefJob", "merge_found", "nearest_rows"]

BYTES_AT_A_TIME = 4 * MIB


@dataclass(frozen=True, kw_only=True, eq=False)
class ReliefJob:
    """All that a task needs besides the samples."""

    anchors: Anchors
    ranges: ColumnRanges
    codes: NDArray[np.integer]
    n_classes: int
    n_neighbours: int


Found = dict[int, Neighbours]
"""Neighbours by the number of the first anchor."""


def nearest_rows(job: ReliefJob, samples: Source, span: tuple[int, int, int, int], given: bool = False) -> Found:
    """(first anchor, its end, first row, its end) -> the nearest of these rows; ``given`` if the samples are the rows.

    The rows are scaled few at a time, because they become float64.
    """
    first, last, start, stop = span
    rows = checked_rows(read_range(samples, start, None if given else stop), start)
    anchors = Anchors(job.anchors.rows[first:last], job.anchors.codes[first:last], job.anchors.scaled[first:last])
    found = no_neighbours(last - first, job.n_classes, job.n_neighbours)
    for low, high in row_ranges(len(rows), max(1, BYTES_AT_A_TIME // (8 * rows.shape[1]))):
        block = RowBlock(job.ranges.scaled(rows[low:high]), job.codes[start + low : start + high], start + low)
        found = nearest(anchors, block, found)
    return {first: found}


def merge_found(parts: Sequence[Found]) -> Found:
    """Neighbours in disjoint rows, in any order -> the nearest of all, by the number of the first anchor."""
    firsts = sorted({first for part in parts for first in part})
    return {first: reduce(merge_neighbours, [part[first] for part in parts if first in part]) for first in firsts}
