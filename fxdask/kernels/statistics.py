"""Location and spread of every class at every node, from exact order statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.order_statistics import Ordered, SortedRows, row_groups
from fxdask.kernels.projection import ClassValues, ValuesByClass
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.selected_rows import SELECTED_LENGTHS, SelectedRows
from fxdask.kernels.streamed_rows import BracketedRows, WholeRows

__all__ = [
    "LOCATIONS",
    "SPREADS",
    "SPREAD_SOURCES",
    "TOLERANCE_RULE",
    "BracketedStatistics",
    "ClassStatistics",
    "bracketed_statistics",
    "class_statistics",
    "node_tolerance",
    "selected_statistics",
    "shrunk_spread",
    "sorted_classes",
    "spread_with_fallback",
]

MAD_TO_SIGMA = 0.6745
IQR_TO_SIGMA = 1.349
BYTES_PER_ROW_GROUP = 2**22

TOLERANCE_RULE = "8 eps |w| R, R of each class from the median exponent of norms; origin within quartiles"
"""What decides which spreads count as zero: part of a job's identity."""

# The estimator of a spread; stores hold its index.
SPREAD_SOURCES = ("mad", "iqr", "std", "zero")
ZERO = SPREAD_SOURCES.index("zero")


@dataclass(frozen=True)
class ClassStatistics:
    """(class, node) location, spread, and the estimator of the spread as an index of ``SPREAD_SOURCES``."""

    location: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.uint8]

    @classmethod
    def empty(cls, n_classes: int, n_nodes: int) -> ClassStatistics:
        """Uninitialised statistics, to be filled by ``put``."""
        shape = (n_classes, n_nodes)
        return cls(np.empty(shape), np.empty(shape), np.empty(shape, np.uint8))

    def put(self, nodes: NDArray[np.intp], part: ClassStatistics) -> None:
        """(node,) indices, (class, node) statistics of these nodes: copy them in."""
        self.location[:, nodes], self.spread[:, nodes], self.source[:, nodes] = part.location, part.spread, part.source

    def measure(
        self, k: int, rows: slice, ordered: Ordered, tolerance: NDArray[np.float64], estimators: tuple[str, str]
    ) -> None:
        """Values of a class at some nodes, (row,) tolerance, names of location and spread: measure them."""
        location, spread = estimators
        self.location[k, rows] = LOCATIONS[location](ordered)
        self.spread[k, rows], self.source[k, rows] = spread_with_fallback(ordered, spread, tolerance)


@dataclass(frozen=True)
class BracketedStatistics:
    """Statistics, valid except for nodes whose brackets missed or whose needed moments were not summed."""

    statistics: ClassStatistics
    missed: NDArray[np.bool_]  # (node,)
    without_moments: NDArray[np.bool_]  # (node,)


def node_tolerance(norms: NDArray[np.float64], class_norms: NDArray[np.float64]) -> NDArray[np.float64]:
    """(node,) norms of weights, (class,) norms -> (class, node) spread at or below which a class counts as constant.

    ``8 eps |w| R_k``: what rounding alone can make of samples of norm R_k that are all the same.
    """
    return 8.0 * float(np.finfo(np.float32).eps) * norms * class_norms[:, None]


def shrunk_spread(spread: NDArray[np.float64], counts: Sequence[int]) -> NDArray[np.float64]:
    """(class, column) spread, (class,) samples -> (class, column) spread that is not narrow by chance.

    ``(1 - w) sigma_k^2 + w mean_j sigma_j^2`` with ``w = 2^((1 - v_k) / 2)`` for v_k samples: the few samples of
    a class are often close together by chance, and a criterion would select just those columns. From
    100 samples on, the weight is below 2e-15. A spread of zero stays zero.
    """
    weight, square = np.exp2((1.0 - np.asarray(counts)) / 2)[:, None], spread**2
    return np.where(spread > 0, np.sqrt((1 - weight) * square + weight * square.mean(axis=0)), 0.0)


def class_statistics(
    projected: ValuesByClass,
    tolerance: NDArray[np.float64],
    location: str = "interquartile_mean",
    spread: str = "mad",
    scratch: Scratch | None = None,
    ascending: NDArray[np.float32] | None = None,
) -> ClassStatistics:
    """(node, column) values of all samples -> (class, node) location and spread.

    If ``ascending`` is given, the (node, sample) values are written to it, sorted within each class.
    """
    last = np.cumsum([projected.count(k) for k in range(projected.n_classes)]).tolist()
    result = ClassStatistics.empty(projected.n_classes, projected.n_nodes)
    for k, rows, ordered in sorted_classes(projected, scratch or Scratch()):
        result.measure(k, rows, ordered, tolerance[k, rows], (location, spread))
        if ascending is not None:
            ascending[rows, last[k] - ordered.count : last[k]] = ordered.values
    return result


def selected_statistics(
    projected: ClassValues, tolerance: NDArray[np.float64], location: str, spread: str, scratch: Scratch
) -> ClassStatistics:
    """The same as :func:`class_statistics`, to the last bit, but values are selected in compiled code, not sorted.

    This takes a third of the time, but numba needs memory.
    """
    result = ClassStatistics.empty(projected.n_classes, projected.n_nodes)
    for k, array in enumerate(projected.arrays):
        if projected.count(k) not in SELECTED_LENGTHS:
            for _, rows, ordered in sorted_classes(projected, scratch, classes=[k]):
                result.measure(k, rows, ordered, tolerance[k, rows], (location, spread))
            continue
        # All rows together: threads that call compiled functions more often wait for each other's Python code.
        values = SelectedRows(array, _selected_together(location, spread, array.shape[1]))
        result.measure(k, slice(None), values, tolerance[k], (location, spread))
    return result


def _selected_together(location: str, spread: str, count: int) -> list[int]:
    """Positions of sorted values that these estimators ask for."""
    together = []
    if location == "interquartile_mean":
        together += [count // 4, count - 1 - count // 4]
    if location == "median" or spread == "mad":
        together.append(count // 2)
    return together


def bracketed_statistics(
    classes: Sequence[BracketedRows | WholeRows], tolerance: NDArray[np.float64], location: str, spread: str
) -> BracketedStatistics:
    """All values or the brackets of each class -> (class, node) location and spread, as far as they are known."""
    result = ClassStatistics.empty(*tolerance.shape)
    missed, without_moments = np.zeros((2, tolerance.shape[1]), bool)
    for k, of_class in enumerate(classes):
        for rows, ordered in of_class.groups():
            result.measure(k, rows, ordered, tolerance[k, rows], (location, spread))
        missed |= of_class.missed
        without_moments |= of_class.without_moments
    return BracketedStatistics(result, missed, without_moments & ~missed)


def sorted_classes(
    projected: ValuesByClass,
    scratch: Scratch,
    bytes_at_a_time: int = BYTES_PER_ROW_GROUP,
    classes: Iterable[int] | None = None,
) -> Iterator[tuple[int, slice, SortedRows]]:
    """(node, column) values -> class, rows, sorted values; few rows at a time, so that they stay in the CPU cache."""
    for k in range(projected.n_classes) if classes is None else classes:
        count = projected.count(k)
        for rows in row_groups(projected.n_nodes, count, bytes_at_a_time) if count else ():
            values = projected.gather(k, rows, scratch("class values", (rows.stop - rows.start, count)))
            values.sort(axis=1)
            yield k, rows, SortedRows(values)


def _median(ordered: Ordered) -> NDArray[np.float64]:
    """(row,) the middle value, or the mean of the two middle values."""
    middle = ordered.count // 2
    upper = ordered.at(middle).astype(np.float64)
    # Adding 0.0 turns -0.0 into 0.0, because it is arbitrary which of several zeros is the middle value.
    return (upper if ordered.count % 2 else (upper + ordered.at(middle - 1)) / 2) + 0.0


def _mean(ordered: Ordered) -> NDArray[np.float64]:
    return ordered.total() / ordered.count


def _interquartile_mean(ordered: Ordered) -> NDArray[np.float64]:
    """(row,) mean without the floor(v / 4) lowest and highest values."""
    trimmed = ordered.count // 4
    return ordered.total(trimmed) / (ordered.count - 2 * trimmed)


def _mad(ordered: Ordered) -> NDArray[np.float64]:
    centre = _median(ordered).astype(np.float32)
    return ordered.median_distance(centre) / MAD_TO_SIGMA


def _iqr(ordered: Ordered) -> NDArray[np.float64]:
    return (_quantile(ordered, 0.75) - _quantile(ordered, 0.25)) / IQR_TO_SIGMA


def _quantile(ordered: Ordered, share: float) -> NDArray[np.float64]:
    """(row,) quantile, linearly interpolated between the two neighbouring order statistics."""
    fractional_index = share * (ordered.count - 1)
    index = int(fractional_index)
    low = ordered.at(index).astype(np.float64)
    if fractional_index == index:
        return low
    return low + (fractional_index - index) * (ordered.at(index + 1) - low)


def _std(ordered: Ordered) -> NDArray[np.float64]:
    """(row,) sqrt(mean square - squared mean); the difference is taken of exact fractions, so no digits cancel."""
    pairs = zip(*ordered.moments(), strict=True)
    return np.array([math.sqrt(square / ordered.count - (total / ordered.count) ** 2) for total, square in pairs])


LOCATIONS: dict[str, Callable[[Ordered], NDArray[np.float64]]] = {
    "interquartile_mean": _interquartile_mean,
    "mean": _mean,
    "median": _median,
}
SPREADS: dict[str, Callable[[Ordered], NDArray[np.float64]]] = {"mad": _mad, "iqr": _iqr, "std": _std}


def spread_with_fallback(
    ordered: Ordered, spread: str, tolerance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """(row, value) values, (row,) tolerance -> (row,) spread and its source.

    Where the requested spread is within the tolerance, the next of MAD, IQR and standard deviation is
    used; if all are, the spread is exactly 0.
    """
    first = SPREAD_SOURCES.index(spread)
    sigma = SPREADS[spread](ordered)
    source = np.full(len(sigma), first, np.uint8)
    for fallback in range(first + 1, ZERO):
        flat = np.flatnonzero(sigma <= tolerance)
        if not len(flat):
            return sigma, source
        # Some rows at a time, because their values are copied.
        for some in row_groups(len(flat), max(1, ordered.count), BYTES_PER_ROW_GROUP):
            sigma[flat[some]] = SPREADS[SPREAD_SOURCES[fallback]](ordered.take(flat[some]))
        source[flat] = fallback
    flat = np.flatnonzero(sigma <= tolerance)
    sigma[flat] = 0.0
    source[flat] = ZERO
    return sigma, source
