"""ReliefF: whether near samples of another class differ more at a column than near samples of the same class.

M. Robnik-Sikonja and I. Kononenko, "Theoretical and Empirical Analysis of ReliefF and RReliefF", Machine
Learning 53, 2003. Distances are sums of absolute differences over all columns, each divided by its range.

The work has two stages, so that it never needs all pairs of samples or all samples at once. ``nearest``
takes blocks of rows one after another and keeps the nearest ones of each class for some anchors;
``merge_neighbours`` joins what was found in different blocks. ``relief_weights`` then needs the rows that
were kept. A distance is summed in float64 in the order of the columns, and of equal distances the lower
row wins, so the result does not depend on the blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.sizes import row_ranges

__all__ = [
    "N_ANCHORS",
    "N_NEIGHBOURS",
    "RELIEF",
    "Anchors",
    "ColumnRanges",
    "Neighbours",
    "RowBlock",
    "merge_neighbours",
    "nearest",
    "neighbour_rows",
    "no_neighbours",
    "relief",
    "relief_weights",
    "spread_anchors",
]

N_ANCHORS = 1_000
N_NEIGHBOURS = 10
ROWS_PER_TILE = 128
NO_ROW = -1


@dataclass(frozen=True)
class ColumnRanges:
    """(column,) lowest and highest values over all samples."""

    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]

    def scaled(self, values: NDArray[np.floating]) -> NDArray[np.float64]:
        """(row, column) values -> (row, column) from 0 to 1; a constant column is 0."""
        with np.errstate(over="ignore"):
            width = self.highest - self.lowest
        if np.isinf(width).any():
            # The difference of two finite values may be infinite, but that of their halves is not.
            return ColumnRanges(self.lowest / 2, self.highest / 2).scaled(values / 2)
        return (values - self.lowest) / np.where(width > 0, width, 1.0)


@dataclass(frozen=True)
class Anchors:
    """The samples whose neighbours are looked for."""

    rows: NDArray[np.int64]
    """(anchor,) row numbers"""
    codes: NDArray[np.integer]
    """(anchor,) class codes"""
    scaled: NDArray[np.float64]
    """(anchor, column) values from 0 to 1"""


@dataclass(frozen=True)
class RowBlock:
    """Consecutive samples: (row, column) values from 0 to 1, (row,) class codes, and the number of the first row."""

    scaled: NDArray[np.float64]
    codes: NDArray[np.integer]
    first: int


@dataclass(frozen=True)
class Neighbours:
    """(anchor, class, rank) distances and row numbers, nearest first; inf and -1 where there is none yet."""

    distances: NDArray[np.float64]
    rows: NDArray[np.int64]


def spread_anchors(codes: NDArray[np.integer], n_classes: int, n_anchors: int | None) -> NDArray[np.int64]:
    """(sample,) class codes -> (anchor,) rows, ascending: classes by their shares, evenly within each class."""
    shares = anchors_of_classes(np.bincount(codes, minlength=n_classes), n_anchors)
    chosen = []
    for k in range(n_classes):
        own = np.flatnonzero(codes == k)
        chosen.append(own[(2 * np.arange(shares[k]) + 1) * len(own) // (2 * max(1, int(shares[k])))])
    return np.sort(np.concatenate(chosen)).astype(np.int64)


def anchors_of_classes(counts: NDArray[np.int64], n_anchors: int | None) -> NDArray[np.int64]:
    """(class,) samples -> (class,) anchors; all samples if no number is wanted.

    Every class that has samples gets one anchor at least; what the rounded shares leave goes to the largest
    remainders, of equal ones to the lower class.
    """
    n = int(counts.sum())
    if n_anchors is None or n_anchors >= n:
        return counts
    wanted = counts * n_anchors / n
    shares = np.maximum(np.floor(wanted).astype(np.int64), np.minimum(counts, 1))
    left = n_anchors - int(shares.sum())
    if left > 0:
        shares[np.lexsort((np.arange(len(counts)), -(wanted - np.floor(wanted))))[:left]] += 1
    return shares


def no_neighbours(n_anchors: int, n_classes: int, n_neighbours: int = N_NEIGHBOURS) -> Neighbours:
    """The state before the first block."""
    shape = (n_anchors, n_classes, n_neighbours)
    return Neighbours(np.full(shape, np.inf), np.full(shape, NO_ROW, np.int64))


def nearest(anchors: Anchors, block: RowBlock, found: Neighbours) -> Neighbours:
    """Anchors, a block of rows, the neighbours in earlier blocks -> the neighbours in all of them."""
    found = Neighbours(found.distances.copy(), found.rows.copy())
    for start, stop in row_ranges(len(block.scaled), ROWS_PER_TILE):
        # Zeros fill the last tile up; its codes say which rows count.
        tile = np.zeros((block.scaled.shape[1], ROWS_PER_TILE))
        tile[:, : stop - start] = block.scaled[start:stop].T
        codes = block.codes[start:stop].astype(np.int64)
        _compiled()(anchors.scaled, anchors.rows, tile, codes, block.first + start, (found.distances, found.rows))
    return found


def merge_neighbours(one: Neighbours, other: Neighbours) -> Neighbours:
    """Neighbours of the same anchors in disjoint rows, in any order -> the nearest of both."""
    distances = np.concatenate([one.distances, other.distances], axis=2)
    rows = np.concatenate([one.rows, other.rows], axis=2)
    order = np.lexsort((rows, distances), axis=2)[:, :, : one.rows.shape[2]]
    return Neighbours(np.take_along_axis(distances, order, axis=2), np.take_along_axis(rows, order, axis=2))


def neighbour_rows(found: Neighbours) -> NDArray[np.int64]:
    """Neighbours -> (row,) numbers of all rows among them, ascending."""
    rows = np.unique(found.rows)
    return rows[rows != NO_ROW]


def relief_weights(
    anchors: Anchors, found: Neighbours, needed: NDArray[np.float64], priors: NDArray[np.float64]
) -> Scores:
    """Anchors, their neighbours, (row, column) scaled values of ``neighbour_rows``, (class,) priors -> (1, column).

    ``mean over anchors of sum_C P_C / (1 - P_own) mean |difference to C| - mean |difference to own class|``.
    """
    numbers = neighbour_rows(found)
    total = np.zeros(anchors.scaled.shape[1])
    for anchor, own in enumerate(anchors.codes.tolist()):
        for k in range(len(priors)):
            rows = found.rows[anchor, k]
            rows = rows[rows != NO_ROW]
            if not len(rows):
                continue
            others = needed[np.searchsorted(numbers, rows)]
            difference = np.abs(others - anchors.scaled[anchor]).sum(axis=0) / len(rows)
            total += -difference if k == own else priors[k] / (1 - priors[own]) * difference
    return total[None] / max(1, len(anchors.rows))


def relief(measured: Measurements) -> Scores:
    """Measurements -> (1, column) weights from -1 to 1; 0 for a constant column."""
    rows = required(measured.rows, Need.ROWS)
    n_classes = len(measured.priors)
    ranges = ColumnRanges(rows.values.min(axis=0).astype(np.float64), rows.values.max(axis=0).astype(np.float64))
    chosen = spread_anchors(rows.codes, n_classes, rows.n_anchors)
    anchors = Anchors(chosen, rows.codes[chosen], ranges.scaled(rows.values[chosen]))
    found = no_neighbours(len(chosen), n_classes)
    for start, stop in row_ranges(len(rows.values), 64 * ROWS_PER_TILE):
        block = RowBlock(ranges.scaled(rows.values[start:stop]), rows.codes[start:stop], start)
        found = nearest(anchors, block, found)
    return relief_weights(anchors, found, ranges.scaled(rows.values[neighbour_rows(found)]), measured.priors)


def _add_tile(
    anchors: NDArray[np.float64],
    anchor_rows: NDArray[np.int64],
    tile: NDArray[np.float64],
    codes: NDArray[np.int64],
    first: int,
    found: tuple[NDArray[np.float64], NDArray[np.int64]],
) -> None:
    """(anchor, column), (column, row) values, (row,) codes: insert the rows into the neighbours."""
    found_distances, found_rows = found
    distances = np.empty(ROWS_PER_TILE)
    last = found_rows.shape[2] - 1
    for anchor in range(len(anchors)):
        distances[:] = 0.0
        point = anchors[anchor]
        # Four columns at a time, added in their order: the sums have the same bits, and are loaded less often.
        for column in range(0, len(tile) - 3, 4):
            a, b, c, d = tile[column], tile[column + 1], tile[column + 2], tile[column + 3]
            x, y, z, w = point[column], point[column + 1], point[column + 2], point[column + 3]
            for at in range(ROWS_PER_TILE):
                distances[at] = (((distances[at] + abs(a[at] - x)) + abs(b[at] - y)) + abs(c[at] - z)) + abs(d[at] - w)
        for column in range(len(tile) // 4 * 4, len(tile)):
            x, values = point[column], tile[column]
            for at in range(ROWS_PER_TILE):
                distances[at] += abs(values[at] - x)
        for at in range(len(codes)):
            k, row, distance = codes[at], first + at, distances[at]
            kept, kept_rows = found_distances[anchor, k], found_rows[anchor, k]
            # An empty place has the row -1 and an infinite distance, which every row is nearer than.
            if (
                distance > kept[last]
                or (distance == kept[last] and row > kept_rows[last])
                or row == anchor_rows[anchor]
            ):
                continue
            place = last
            while place > 0 and (
                distance < kept[place - 1] or (distance == kept[place - 1] and row < kept_rows[place - 1])
            ):
                kept[place], kept_rows[place] = kept[place - 1], kept_rows[place - 1]
                place -= 1
            kept[place], kept_rows[place] = distance, row


@cache
def _compiled() -> Callable[..., None]:
    """The loop over anchors and rows, compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_add_tile)


RELIEF = Criterion(
    name="relief",
    needs=frozenset({Need.ROWS}),
    score=relief,
    summary="difference to near samples of other classes and of the own one; sees columns that help only together",
    per_class=False,
)
