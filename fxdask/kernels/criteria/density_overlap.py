"""What two classes' kernel densities do not share: sorted columns -> (class, column) scores.

``1 - integral of min(f_k, f_j) = 1/2 integral of |f_k - f_j|``. The integral is a sum over cells of half a
bandwidth. In each cell the difference d is taken at the two Gauss points: if the line through them does
not cross zero within the cell, the cell's share is ``|integral of d|``, which the two points give up to
terms of fourth order; else it is the integral of the line's absolute value.

Every class adds the cells of its own bandwidth where it has samples, and all cells are joined. So a
narrow class beside a wide one is resolved, and an outlier costs a few cells of its own. The densities
have an error of 3e-7 of their peaks, and 5 bandwidths beyond the samples nothing is left. The error of a
score is below 5e-4, and 1e-5 is typical of classes of a hundred values or more.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.kernels.density.bandwidth import bandwidth_floor, silverman
from fxdask.kernels.density.binned import densities
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.sorted_columns import SortedColumns
from fxdask.kernels.statistics import spread_with_fallback
from fxdask.sizes import row_ranges

__all__ = ["DENSITY_OVERLAP", "density_overlap", "unshared_area"]

REACH = 5.0
KERNEL_REACH = 7.0
WINDOW = 1000.0  # bandwidths on either side of the median that one transform takes
CELL = 0.5  # bandwidths
GAUSS_POINT = 1 / sqrt(3)
FEWEST_CELLS = 32
MOST_EVEN_CELLS = 2**11
POINTS_AT_A_TIME = 2**15
EPSILON = float(np.finfo(np.float32).eps)


def density_overlap(measured: Measurements) -> Scores:
    """Measurements -> (class, column) area of a class's density outside that of another, the minimum over the others.

    Bandwidths are Silverman's, of the MAD with its fallbacks. A class without values scores 0, as do classes
    that are all constant and equal.
    """
    columns = required(measured.columns, Need.SORTED_COLUMNS)
    scores = np.zeros(columns.counts.shape)
    widths = _bandwidths(columns, measured.tolerance)
    n_cells = _even_cells(columns, widths)
    # Columns of one number of cells are computed together, so that a column's bits do not depend on other columns.
    for n in np.unique(n_cells[n_cells > 0]).tolist():
        alike = np.flatnonzero(n_cells == n)
        for start, stop in row_ranges(len(alike), max(1, POINTS_AT_A_TIME // (2 * n * columns.n_classes))):
            some = alike[start:stop]
            classes = [columns.values[some, a:b] for a, b in pairwise(columns.edges.tolist())]
            scores[:, some] = _areas(classes, widths[:, some], n).min(axis=1)
    for column in np.flatnonzero(n_cells == 0).tolist():
        present = np.flatnonzero(columns.counts[:, column])
        of_column = [columns.of_class(k, column) for k in present.tolist()]
        if len(present) > 1 and min(v[0] for v in of_column) < max(v[-1] for v in of_column):
            scores[present, column] = unshared_area(of_column, widths[present, column]).min(axis=1)
    return scores


def _even_cells(columns: SortedColumns, widths: Scores) -> NDArray[np.int64]:
    """(column,) cells of each class; 0 where a value is missing, there are too many cells or the column is constant.

    Only a few numbers of cells occur, each a quarter larger than the one before.
    """
    whole = (columns.counts == np.diff(columns.edges)[:, None]).all(axis=0) & (columns.counts > 0).all(axis=0)
    if not whole.any():
        return np.zeros(len(whole), np.int64)
    low = columns.values[:, columns.edges[:-1]].T.astype(np.float64)
    high = columns.values[:, columns.edges[1:] - 1].T.astype(np.float64)
    with np.errstate(invalid="ignore"):
        needed = ((high - low) / widths + 2 * REACH).max(axis=0, initial=0, where=whole) / CELL
        whole &= (needed <= MOST_EVEN_CELLS) & (low.min(axis=0) < high.max(axis=0))
    steps = np.ceil(np.log(np.maximum(1, needed / FEWEST_CELLS)) / np.log(1.25))
    return np.where(whole, np.ceil(FEWEST_CELLS * 1.25**steps), 0).astype(np.int64)


def unshared_area(classes: list[NDArray[np.float32]], widths: NDArray[np.float64]) -> Scores:
    """(value,) ascending values of each class, (class,) bandwidths -> (class, class) 1 - overlap; inf with itself."""
    edges = np.unique(np.concatenate([_edges(*of_class) for of_class in zip(classes, widths.tolist(), strict=True)]))
    return _areas_between([values[None] for values in classes], widths[:, None], edges[None])[:, :, 0]


def _areas(classes: list[NDArray[np.float32]], widths: Scores, n_cells: int) -> Scores:
    """(column, value) ascending values of each class, (class, column) bandwidths -> (class, class, column) areas."""
    margin = REACH * widths
    low = np.stack([values[:, 0] for values in classes]) - margin
    high = np.stack([values[:, -1] for values in classes]) + margin
    edges = np.linspace(low, high, n_cells + 1, axis=2)
    return _areas_between(classes, widths, np.sort(np.concatenate(edges, axis=1), axis=1))


def _areas_between(classes: list[NDArray[np.float32]], widths: Scores, edges: NDArray[np.float64]) -> Scores:
    """(column, value) values of each class, (class, column) bandwidths, (column, edge) -> (class, class, column)."""
    half, centre = np.diff(edges) / 2, (edges[:, 1:] + edges[:, :-1]) / 2
    points = np.stack([centre - GAUSS_POINT * half, centre + GAUSS_POINT * half], axis=2).reshape(len(edges), -1)
    heights = [_heights(points, values, width) for values, width in zip(classes, widths, strict=True)]
    n_classes = len(classes)
    areas = np.full((n_classes, n_classes, len(edges)), np.inf)
    for k in range(n_classes):
        for j in range(k):
            difference = heights[k] - heights[j]
            absolute = half * _absolute_mean(difference[:, ::2], difference[:, 1::2])
            areas[k, j] = areas[j, k] = np.minimum(1.0, 0.5 * np.add.reduce(absolute, axis=1))
    return areas


def _heights(points: NDArray[np.float64], values: NDArray[np.float32], widths: NDArray[np.float64]) -> Scores:
    """(column, point) ascending points, (column, value) ascending values, (column,) bandwidths -> (column, point).

    A transform takes the values near the median; the few far ones are added one by one.
    """
    middle = values[:, values.shape[1] // 2].astype(np.float64)
    if (np.maximum(middle - values[:, 0], values[:, -1] - middle) <= WINDOW * widths).all():
        return densities(points, values, widths, Scratch())
    heights = np.empty(points.shape)
    for row, width in enumerate(widths.tolist()):
        low, high = np.searchsorted(values[row], [middle[row] - WINDOW * width, middle[row] + WINDOW * width])
        near = values[row : row + 1, low:high]
        heights[row] = near.shape[1] * densities(points[row : row + 1], near, widths[row : row + 1], Scratch())[0]
        for far in (values[row, :low], values[row, high:]):
            _compiled_add_kernels()(points[row], far, width, heights[row])
        heights[row] /= values.shape[1]
    return heights


def _add_kernels(
    points: NDArray[np.float64], values: NDArray[np.float32], width: float, heights: NDArray[np.float64]
) -> None:
    """(point,) and (value,) ascending, bandwidth: add the kernels to the (point,) heights, as far as they reach."""
    first, scale = 0, 1 / (np.sqrt(2 * np.pi) * width)
    for value in values:
        while first < len(points) and points[first] < value - KERNEL_REACH * width:
            first += 1
        at = first
        while at < len(points) and points[at] <= value + KERNEL_REACH * width:
            distance = (points[at] - value) / width
            heights[at] += scale * np.exp(-0.5 * distance * distance)
            at += 1


@cache
def _compiled_add_kernels() -> Callable[..., None]:
    """The loop over far values, compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_add_kernels)


def _absolute_mean(left: NDArray[np.float64], right: NDArray[np.float64]) -> NDArray[np.float64]:
    """(cell,) values at the Gauss points of [-1, 1] -> (cell,) integral of the absolute value of the line through both.

    The line ``b + s x`` integrates to ``2 |b|`` if it does not cross zero, else to ``(b^2 + s^2) / |s|``.
    """
    middle, slope = (left + right) / 2, np.abs(right - left) / (2 * GAUSS_POINT)
    crossed = slope > np.abs(middle)
    squares = middle**2 + slope**2
    return np.divide(squares, slope, out=2 * np.abs(middle), where=crossed)


def _edges(values: NDArray[np.float32], width: float) -> NDArray[np.float64]:
    """(value,) ascending values of a class, bandwidth -> (edge,) edges of cells wherever its density is not 0."""
    low = float(values[0]) - REACH * width
    positions = (values.astype(np.float64) - low) / (CELL * width)
    gaps = np.flatnonzero(np.diff(positions) > 2 * REACH / CELL + 2)
    first = np.floor(positions[np.concatenate([[0], gaps + 1])] - REACH / CELL)
    last = np.ceil(positions[np.concatenate([gaps, [len(values) - 1]])] + REACH / CELL)
    parts = [np.arange(start, stop + 1) for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
    return low + CELL * width * np.concatenate(parts)


def _bandwidths(columns: SortedColumns, tolerance: Scores) -> Scores:
    """(class, column) Silverman's bandwidths, floored as in a fit and above 0."""
    spread = np.zeros(columns.counts.shape)
    for k in range(columns.n_classes):
        first, last = columns.edges[k : k + 2].tolist()
        whole = columns.counts[k] == last - first
        if whole.any() and last > first:
            ordered = SortedRows(columns.values[whole, first:last])
            spread[k, whole] = spread_with_fallback(ordered, "mad", tolerance[k, whole])[0]
        for column in np.flatnonzero(~whole & (columns.counts[k] > 0)).tolist():
            ordered = SortedRows(columns.of_class(k, column)[None])
            spread[k, column] = spread_with_fallback(ordered, "mad", tolerance[k, [column]])[0][0]
    widths = np.empty(spread.shape)
    for k in range(len(spread)):
        counts = np.maximum(1, columns.counts[k])
        found = [silverman(np.empty(n), s) for n, s in zip(counts.tolist(), spread[k].tolist(), strict=True)]
        widths[k] = np.maximum(found, bandwidth_floor(spread[k], tolerance[k], tolerance))
    return np.maximum(widths, EPSILON * _largest(columns))


def _largest(columns: SortedColumns) -> NDArray[np.float64]:
    """(column,) largest absolute value, at least the smallest normal float32."""
    smallest = float(np.finfo(np.float32).tiny) / EPSILON
    return np.fmax(np.nanmax(np.abs(columns.values), axis=1, initial=0.0).astype(np.float64), smallest)


DENSITY_OVERLAP = Criterion(
    name="density_overlap",
    needs=frozenset({Need.SORTED_COLUMNS}),
    score=density_overlap,
    summary="area of a class's kernel density outside that of the nearest other class; any kind of difference",
)
