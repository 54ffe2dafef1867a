"""The tasks of ReliefF on one range of rows: the rows that are nearest to some anchors, and projections of rows."""

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
from fxdask.kernels.projection import PackedProjection
from fxdask.kernels.scratch import Scratch
from fxdask.sizes import MIB, row_ranges
from fxdask.store.sources import Source
from fxdask.tasks.reading import read_range
from fxdask.tasks.threads import one_blas_thread

__all__ = ["ProjectedRows", "ReliefJob", "merge_found", "merge_projected", "nearest_rows", "project_range"]

BYTES_AT_A_TIME = 4 * MIB


@dataclass(frozen=True, kw_only=True, eq=False)
class ReliefJob:
    """All that a task needs besides the samples."""

    anchors: Anchors
    ranges: ColumnRanges
    codes: NDArray[np.integer]
    n_classes: int
    n_neighbours: int
    project: PackedProjection | None = None
    """Onto the nodes whose projections are compared; None if the features themselves are."""


Found = dict[int, Neighbours]
"""Neighbours by the number of the first anchor."""


@one_blas_thread()
def nearest_rows(job: ReliefJob, samples: Source, span: tuple[int, int, int, int], given: bool = False) -> Found:
    """(first anchor, its end, first row, its end) -> the nearest of these rows; ``given`` if the samples are the rows.

    The rows are scaled few at a time, because they become float64.
    """
    first, last, start, stop = span
    rows = read_range(samples, start, None if given else stop)
    rows = checked_rows(rows, start) if job.project is None else job.project(rows, start, Scratch()).T
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


@dataclass(frozen=True)
class ProjectedRows:
    """(node,) lowest and highest projections of some samples, and projections of a few of them."""

    lowest: NDArray[np.float32]
    highest: NDArray[np.float32]
    picked: dict[int, NDArray[np.float32]]
    """(row, node) by the number of the first sample of the range"""


@one_blas_thread()
def project_range(
    project: PackedProjection, samples: Source, span: tuple[int, int | None], picked: NDArray[np.int64]
) -> ProjectedRows:
    """Range of raw samples, (row,) samples in it to return -> the range of their projections, and these."""
    start, stop = span
    values = project(read_range(samples, start, stop), start, Scratch())
    return ProjectedRows(values.min(axis=1), values.max(axis=1), {start: values[:, picked - start].T.copy()})


def merge_projected(parts: Sequence[ProjectedRows]) -> ProjectedRows:
    """Projections of disjoint samples, in any order -> of all of them."""
    return ProjectedRows(
        np.minimum.reduce([part.lowest for part in parts]),
        np.maximum.reduce([part.highest for part in parts]),
        {start: rows for part in parts for start, rows in part.picked.items()},
    )
