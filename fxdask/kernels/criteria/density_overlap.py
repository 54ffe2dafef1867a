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

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib import import_module
from itertools import pairwise
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import MemoryPlanError
from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.kernels.density.bandwidth import bandwidth_floor, silverman
from fxdask.kernels.density.binned import BinnedValues, densities
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.sorted_columns import SortedColumns
from fxdask.kernels.sorted_parts import ColumnParts, PartedColumns
from fxdask.kernels.statistics import spread_with_fallback
from fxdask.sizes import BYTES_PER_AREA, row_ranges

__all__ = ["DENSITY_OVERLAP", "density_overlap", "unshared_area"]

REACH = 5.0
KERNEL_REACH = 7.0
WINDOW = 1000.0  # bandwidths on either side of the median that one transform takes
CELL = 0.5  # bandwidths
GAUSS_POINT = 1 / sqrt(3)
FEWEST_CELLS = 32
MOST_EVEN_CELLS = 2**11
POINTS_AT_A_TIME = 2**15
CELL_NUMBERS = 16  # that are in memory for a cell, besides two densities of each class
EPSILON = float(np.finfo(np.float32).eps)


def density_overlap(measured: Measurements) -> Scores:
    """Measurements -> (class, column) area of a class's density outside that of another, the minimum over the others.

    Bandwidths are Silverman's, of the MAD with its fallbacks. A class without values scores 0, as do classes
    that are all constant and equal.
    """
    if measured.parts is not None:
        return parted_scores(measured.parts, measured.tolerance)
    columns = required(measured.columns, Need.SORTED_COLUMNS)
    scores = np.zeros(columns.counts.shape)
    spreads = _spreads(columns, measured.tolerance)
    widths = bandwidths(spreads, columns.counts, measured.tolerance, _middles(columns))
    whole = (columns.counts == np.diff(columns.edges)[:, None]).all(axis=0) & (columns.counts > 0).all(axis=0)
    ranges = [columns.values[:, at].T.astype(np.float64) for at in (columns.edges[:-1], columns.edges[1:] - 1)]
    n_cells = even_cells(whole, ranges, widths) if whole.any() else np.zeros(len(whole), np.int64)
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


def even_cells(whole: NDArray[np.bool_], ranges: Sequence[Scores], widths: Scores) -> NDArray[np.int64]:
    """(column,) whether no value is missing, (2, class, column) ranges, bandwidths -> (column,) cells of each class.

    0 where a value is missing, there are too many cells or the column is constant. Only a few numbers of cells
    occur, each a quarter larger than the one before.
    """
    low, high = ranges
    with np.errstate(invalid="ignore"):
        needed = ((high - low) / widths + 2 * REACH).max(axis=0, initial=0, where=whole) / CELL
        whole = whole & (needed <= MOST_EVEN_CELLS) & (low.min(axis=0) < high.max(axis=0))
    steps = np.ceil(np.log(np.maximum(1, needed / FEWEST_CELLS)) / np.log(1.25))
    return np.where(whole, np.ceil(FEWEST_CELLS * 1.25**steps), 0).astype(np.int64)


def unshared_area(classes: list[NDArray[np.float32]], widths: NDArray[np.float64]) -> Scores:
    """(value,) ascending values of each class, (class,) bandwidths -> (class, class) 1 - overlap; inf with itself."""
    clusters = [Clusters(float(values[0]), width) for values, width in zip(classes, widths.tolist(), strict=True)]
    for of_class, values in zip(clusters, classes, strict=True):
        of_class.absorb(values)
    edges = np.unique(np.concatenate([of_class.edges() for of_class in clusters]))
    return _areas_between([values[None] for values in classes], widths[:, None], edges[None])[:, :, 0]


def _areas(classes: list[NDArray[np.float32]], widths: Scores, n_cells: int) -> Scores:
    """(column, value) ascending values of each class, (class, column) bandwidths -> (class, class, column) areas."""
    low, high = (np.stack([values[:, at] for values in classes]) for at in (0, -1))
    return _areas_between(classes, widths, even_edges(low, high, widths, n_cells))


def even_edges(low: NDArray, high: NDArray, widths: Scores, n_cells: int) -> NDArray[np.float64]:
    """(class, column) ranges and bandwidths -> (column, edge) ascending edges of this many cells of each class."""
    margin = REACH * widths
    edges = np.linspace(low - margin, high + margin, n_cells + 1, axis=2)
    return np.sort(np.concatenate(edges, axis=1), axis=1)


def _areas_between(classes: list[NDArray[np.float32]], widths: Scores, edges: NDArray[np.float64]) -> Scores:
    """(column, value) values of each class, (class, column) bandwidths, (column, edge) -> (class, class, column)."""
    points = gauss_points(edges)
    heights = [_heights(points, values, width) for values, width in zip(classes, widths, strict=True)]
    return areas_of_heights(heights, edges)


def gauss_points(edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """(column, edge) edges of cells -> (column, point) two points of every cell."""
    half, centre = np.diff(edges) / 2, (edges[:, 1:] + edges[:, :-1]) / 2
    return np.stack([centre - GAUSS_POINT * half, centre + GAUSS_POINT * half], axis=2).reshape(len(edges), -1)


def areas_of_heights(heights: list[NDArray[np.float64]], edges: NDArray[np.float64]) -> Scores:
    """(column, point) densities of each class at the points of all cells -> (class, class, column) areas."""
    half, n_classes = np.diff(edges) / 2, len(heights)
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
    far = reaches_far(values[:, 0], values[:, -1], middle, widths)
    if not far.any():
        return densities(points, values, widths, Scratch())
    heights = np.empty(points.shape)
    near = np.flatnonzero(~far)
    heights[near] = densities(points[near], values[near], widths[near], Scratch())
    for row in np.flatnonzero(far).tolist():
        window = near_window(middle[row], widths[row])
        low, high = np.searchsorted(values[row], window)
        inner = values[row : row + 1, low:high]
        density = densities(points[row : row + 1], inner, widths[row : row + 1], Scratch())[0]
        outer = np.zeros(points.shape[1])
        for some in (values[row, :low], values[row, high:]):
            add_kernels(points[row], some, float(widths[row]), outer)
        heights[row] = (inner.shape[1] * density + outer) / values.shape[1]
    return heights


def reaches_far(low: NDArray, high: NDArray, middle: Scores, widths: Scores) -> NDArray[np.bool_]:
    """Range, median and bandwidth -> whether some values are so far from the median that no transform takes them."""
    return np.maximum(middle - low, high - middle) > WINDOW * widths


def near_window(middle: float, width: float) -> list[float]:
    """The first end of the values that a transform takes, and the second one, which it does not take."""
    return [middle - WINDOW * width, middle + WINDOW * width]


def add_kernels(
    points: NDArray[np.float64], values: NDArray[np.float32], width: float, heights: NDArray[np.float64]
) -> None:
    """(point,) and (value,) ascending, bandwidth: add the kernels to the (point,) heights, as far as they reach."""
    _compiled_add_kernels()(points, values, width, heights)


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


class Clusters:
    """Cells wherever the density of a class is not 0: around clusters of values, which come in rising order."""

    def __init__(self, lowest: float, width: float) -> None:
        self._low, self._cell = lowest - REACH * width, CELL * width
        self._first: list[NDArray[np.float64]] = []
        self._last: list[NDArray[np.float64]] = []
        self._highest: float | None = None
        self.n_cells = 2 * REACH / CELL

    def absorb(self, ascending: NDArray[np.float32]) -> None:
        """(value,) next values."""
        if not len(ascending):
            return
        positions = (ascending.astype(np.float64) - self._low) / self._cell
        if self._highest is None:
            self._first.append(positions[:1])
        else:
            positions = np.concatenate([[self._highest], positions])
        steps = np.diff(positions)
        gaps = np.flatnonzero(steps > 2 * REACH / CELL + 2)
        self._last.append(positions[gaps])
        self._first.append(positions[gaps + 1])
        self._highest = float(positions[-1])
        self.n_cells += float(positions[-1] - positions[0] - steps[gaps].sum()) + len(gaps) * 2 * REACH / CELL

    def edges(self) -> NDArray[np.float64]:
        """(edge,) edges of the cells."""
        first = np.floor(np.concatenate(self._first) - REACH / CELL)
        last = np.ceil(np.concatenate([*self._last, [self._highest]]) + REACH / CELL)
        parts = [np.arange(start, stop + 1) for start, stop in zip(first.tolist(), last.tolist(), strict=True)]
        return self._low + self._cell * np.concatenate(parts)


def _spreads(columns: SortedColumns, tolerance: Scores) -> Scores:
    """(class, column) MAD with its fallbacks."""
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
    return spread


def _middles(columns: SortedColumns) -> NDArray[np.float64]:
    """(class, column) value in the middle, the higher one of two; 0 where there is none."""
    places = columns.edges[:-1, None] + np.minimum(columns.counts // 2, np.maximum(columns.counts - 1, 0))
    values = columns.values[np.arange(len(columns.values)), np.minimum(places, columns.values.shape[1] - 1)]
    return np.where(columns.counts > 0, values, 0).astype(np.float64)


def bandwidths(spread: Scores, counts: NDArray[np.int64], tolerance: Scores, middle: Scores) -> Scores:
    """(class, column) spreads and values in the middle -> Silverman's bandwidths, floored as in a fit.

    They are at least the digits that float32 has for usual values of the class; far ones do not count.
    """
    widths = np.empty(spread.shape)
    for k in range(len(spread)):
        sizes = np.maximum(1, counts[k]).tolist()
        found = [silverman(np.broadcast_to(0.0, n), s) for n, s in zip(sizes, spread[k].tolist(), strict=True)]
        widths[k] = np.maximum(found, bandwidth_floor(spread[k], tolerance[k], tolerance))
    smallest = float(np.finfo(np.float32).tiny) / EPSILON
    return np.maximum(widths, EPSILON * np.maximum(np.abs(middle) + spread, smallest))


def parted_scores(parts: PartedColumns, tolerance: Scores) -> Scores:
    """Columns that do not fit into memory, (class, column) tolerance -> (class, column) scores."""
    low, high = parts.ranges
    counts = np.stack([column.counts for column in parts.columns], axis=1)
    widths = bandwidths(parts.spread, counts, tolerance, parts.middle)
    whole = np.all((counts == parts.n_samples[:, None]) & (counts > 0), axis=0)
    n_cells = even_cells(whole, [low, high], widths)
    scores = np.zeros(widths.shape)
    for at, column in enumerate(parts.columns):
        present = np.flatnonzero(column.counts)
        if len(present) > 1 and low[present, at].min() < high[present, at].max():
            classes = [
                _PartedClass(int(k), int(column.counts[k]), low[k, at], high[k, at], parts.middle[k, at], widths[k, at])
                for k in present
            ]
            scores[present, at] = _parted_areas(column, classes, int(n_cells[at])).min(axis=1)
    return scores


class _PartedClass:
    """The density of one class of a column whose values come in parts."""

    def __init__(self, k: int, count: int, low: float, high: float, middle: float, width: float) -> None:
        self.k, self.low, self.high, self.width, self._count = k, low, high, width, count
        self.clusters, self._near, self._far = Clusters(low, width), BinnedValues(width), np.empty(0)
        self.reaches_far = bool(reaches_far(np.array(low), np.array(high), np.array(middle), np.array(width)))
        self._window = near_window(middle, width) if self.reaches_far else [-np.inf, np.inf]

    def absorb(self, values: NDArray[np.float32], finds_cells: bool) -> None:
        """(value,) next values, ascending."""
        first, last = np.searchsorted(values, self._window)
        self._near.absorb(values[first:last])
        if finds_cells:
            self.clusters.absorb(values)

    def absorb_far(self, points: NDArray[np.float64], values: NDArray[np.float32]) -> None:
        """(value,) values in the same order once more, for those that are too far for a transform."""
        if not len(self._far):
            self._far = np.zeros(len(points))
        first, last = np.searchsorted(values, self._window)
        for some in (values[:first], values[last:]):
            add_kernels(points, some, self.width, self._far)

    def heights(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """(point,) densities."""
        density = self._near.densities(points)
        return (self._near.count * density + self._far) / self._count if self.reaches_far else density


def _parted_areas(column: ColumnParts, classes: list[_PartedClass], n_cells: int) -> Scores:
    """A column in parts, even cells of each class or 0 -> (class, class) areas, by one or two sweeps over the parts."""
    most_cells = BYTES_PER_AREA // (8 * (CELL_NUMBERS + 2 * len(classes)))
    for values, of_class in _swept(column, classes):
        of_class.absorb(values, finds_cells=not n_cells)
        n_needed = sum(one.clusters.n_cells for one in classes)
        if n_needed > most_cells:
            raise MemoryPlanError(
                f"density_overlap needs {n_needed:,.0f} cells or more for feature {column.index}, whose values are far "
                f"apart, but {most_cells:,} fit into the memory of a task; leave density_overlap out, or transform "
                "the feature, for example by its logarithm"
            )
    if n_cells:
        low, high, widths = (np.array([[getattr(one, name)] for one in classes]) for name in ("low", "high", "width"))
        edges = even_edges(low, high, widths, n_cells)
    else:
        edges = np.unique(np.concatenate([one.clusters.edges() for one in classes]))[None]
    (points,) = gauss_points(edges)
    far = [one for one in classes if one.reaches_far]
    if far:
        for values, of_class in _swept(column, far):
            of_class.absorb_far(points, values)
    return areas_of_heights([one.heights(points)[None] for one in classes], edges)[:, :, 0]


def _swept(column: ColumnParts, classes: list[_PartedClass]) -> Iterator[tuple[NDArray[np.float32], _PartedClass]]:
    """The values of these classes, piece by piece."""
    for part in range(column.n_parts):
        for piece in column.pieces(part):
            for of_class in classes:
                yield piece.classes[of_class.k], of_class


DENSITY_OVERLAP = Criterion(
    name="density_overlap",
    needs=frozenset({Need.SORTED_COLUMNS}),
    score=density_overlap,
    summary="area of a class's kernel density outside that of the nearest other class; any kind of difference",
)
