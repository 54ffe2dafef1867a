"""Location and spread of every class at every node, from exact order statistics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "LOCATIONS",
    "SPREADS",
    "SPREAD_SOURCES",
    "ClassStatistics",
    "class_statistics",
    "node_tolerance",
    "spread_of",
]

MAD_TO_SIGMA = 0.6745
IQR_TO_SIGMA = 1.349
SAMPLES_PER_SUM = 2048
BYTES_PER_ROW_GROUP = 2**19

# What a spread came from; the stored code is the index.
SPREAD_SOURCES = ("mad", "iqr", "std", "zero")
ZERO = SPREAD_SOURCES.index("zero")


@dataclass(frozen=True)
class ClassStatistics:
    """(class, node) location, spread, and which estimator the spread came from."""

    location: NDArray[np.float64]
    spread: NDArray[np.float64]
    source: NDArray[np.uint8]


def node_tolerance(weights: NDArray[np.float32], largest: float) -> NDArray[np.float64]:
    """(node, input) weights, largest absolute prepared input -> (node,) spread at or below which a node is constant."""
    norms = np.sqrt(np.add.reduce(np.square(weights, dtype=np.float64), axis=1))
    return 8.0 * weights.shape[1] * float(np.finfo(np.float32).eps) * norms * largest


def class_statistics(
    values: NDArray[np.float32],
    class_slices: Sequence[slice],
    tolerance: NDArray[np.float64],
    location: str = "interquartile_mean",
    spread: str = "mad",
) -> ClassStatistics:
    """(node, sample) values sorted by class -> (class, node) location and spread."""
    shape = (len(class_slices), len(values))
    result = ClassStatistics(np.empty(shape), np.empty(shape), np.empty(shape, np.uint8))
    locate = LOCATIONS[location]
    for k, columns in enumerate(class_slices):
        # A few rows at a time stay in the processor's cache through all of their partitions.
        step = max(1, BYTES_PER_ROW_GROUP // (4 * (columns.stop - columns.start)))
        for start in range(0, len(values), step):
            rows = slice(start, min(start + step, len(values)))
            group = values[rows, columns]
            ordered = _Ordered(group)
            result.location[k, rows] = locate(group, ordered)
            result.spread[k, rows], result.source[k, rows] = _spread_with_fallback(
                group, ordered, spread, tolerance[rows]
            )
    return result


def spread_of(
    values: NDArray[np.float32], tolerance: NDArray[np.float64], spread: str
) -> tuple[NDArray[np.float64], int]:
    """(node, sample) values of one class -> (node,) spread with the same fallbacks, and how many were taken."""
    sigma, source = _spread_with_fallback(values, _Ordered(values), spread, tolerance)
    return sigma, int((source != SPREAD_SOURCES.index(spread)).sum())


class _Ordered:
    """Order statistics of (node, sample) values, settled on demand in one scratch copy."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.count = values.shape[1]
        self._scratch = values.copy()
        self._settled: list[int] = []

    def __call__(self, position: int) -> NDArray[np.float32]:
        """(node,) the value at this place of every sorted row."""
        if position not in self._settled:
            below = [p for p in self._settled if p < position]
            above = [p for p in self._settled if p > position]
            low = below[-1] + 1 if below else 0
            high = above[0] if above else self.count
            segment = self._scratch[:, low:high]
            if position == high - 1 and above:
                _move_largest_last(segment)
            else:
                segment.partition(position - low, axis=1)
            self._settled = [*below, position, *above]
        return self._scratch[:, position]

    def median(self) -> NDArray[np.float64]:
        """(node,) the middle value, or the mean of the two."""
        upper = self(self.count // 2).astype(np.float64)
        if self.count % 2:
            return upper
        return (upper + self(self.count // 2 - 1)) / 2

    def quantile(self, share: float) -> NDArray[np.float64]:
        """(node,) linear interpolation between the two neighbouring order statistics."""
        place = share * (self.count - 1)
        position = int(place)
        low = self(position).astype(np.float64)
        if place == position:
            return low
        return low + (place - position) * (self(position + 1) - low)


def _move_largest_last(segment: NDArray[np.float32]) -> None:
    """The largest of an unordered row, put last: a tenth of the price of a partition."""
    rows = np.arange(len(segment))
    largest = segment.argmax(axis=1)
    found = segment[rows, largest]
    segment[rows, largest] = segment[:, -1]
    segment[:, -1] = found


def _row_sums(
    values: NDArray[np.float32], transform: Callable[[NDArray[np.float32]], NDArray[np.floating]]
) -> NDArray[np.float64]:
    """(node, sample) -> (node,) sums of the transformed values in float64, over fixed tiles in index order."""
    total = np.zeros(len(values))
    for start in range(0, values.shape[1], SAMPLES_PER_SUM):
        tile = transform(values[:, start : start + SAMPLES_PER_SUM])
        total += np.add.reduce(np.ascontiguousarray(tile, dtype=np.float64), axis=1)
    return total


def _mean(values: NDArray[np.float32], ordered: _Ordered | None = None) -> NDArray[np.float64]:
    return _row_sums(values, lambda tile: tile) / values.shape[1]


def _median(values: NDArray[np.float32], ordered: _Ordered) -> NDArray[np.float64]:
    return ordered.median()


def _interquartile_mean(values: NDArray[np.float32], ordered: _Ordered) -> NDArray[np.float64]:
    """The mean without the lowest and highest floor(v / 4) values.

    Clipping turns each trimmed value into the first or last kept one, so that subtracting
    those leaves the trimmed sum, ties or not, without sorting.
    """
    count = values.shape[1]
    trimmed = count // 4
    if trimmed == 0:
        return _mean(values)
    ordered.median()
    low, high = ordered(trimmed), ordered(count - trimmed - 1)
    total = _row_sums(values, lambda tile: np.clip(tile, low[:, None], high[:, None]))
    total -= trimmed * (low.astype(np.float64) + high)
    return total / (count - 2 * trimmed)


def _mad(values: NDArray[np.float32], ordered: _Ordered) -> NDArray[np.float64]:
    centre = ordered.median().astype(np.float32)
    deviations = np.subtract(values, centre[:, None])
    np.abs(deviations, out=deviations)
    return _Ordered(deviations).median() / MAD_TO_SIGMA


def _iqr(values: NDArray[np.float32], ordered: _Ordered) -> NDArray[np.float64]:
    return (ordered.quantile(0.75) - ordered.quantile(0.25)) / IQR_TO_SIGMA


def _std(values: NDArray[np.float32], ordered: _Ordered) -> NDArray[np.float64]:
    mean = _mean(values)[:, None]
    return np.sqrt(_row_sums(values, lambda tile: np.square(tile - mean)) / values.shape[1])


LOCATIONS: dict[str, Callable[[NDArray[np.float32], _Ordered], NDArray[np.float64]]] = {
    "interquartile_mean": _interquartile_mean,
    "mean": _mean,
    "median": _median,
}
SPREADS: dict[str, Callable[[NDArray[np.float32], _Ordered], NDArray[np.float64]]] = {
    "mad": _mad,
    "iqr": _iqr,
    "std": _std,
}


def _spread_with_fallback(
    values: NDArray[np.float32], ordered: _Ordered, spread: str, tolerance: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.uint8]]:
    """The asked spread; where that is zero the next of MAD, IQR and standard deviation; else exactly zero."""
    first = SPREAD_SOURCES.index(spread)
    sigma = SPREADS[spread](values, ordered)
    source = np.full(len(values), first, np.uint8)
    for fallback in range(first + 1, ZERO):
        flat = np.flatnonzero(sigma <= tolerance)
        if not len(flat):
            return sigma, source
        rows = values[flat]
        sigma[flat] = SPREADS[SPREAD_SOURCES[fallback]](rows, _Ordered(rows))
        source[flat] = fallback
    flat = np.flatnonzero(sigma <= tolerance)
    sigma[flat] = 0.0
    source[flat] = ZERO
    return sigma, source
