"""The mutual information of a column and the classes by nearest neighbours: sorted columns -> (1, column) scores.

B. C. Ross, "Mutual Information between Discrete and Continuous Data Sets", PLoS ONE 9(2), 2014, with the
scaling and the noise of scikit-learn's ``mutual_info_classif``. The noise breaks ties. It is drawn by the
seed, the number of the column and the rank of the value in its class, so it depends neither on how the
samples were split nor on their order.

The values with their noise come in ranges of rising values: one range if they fit into memory. A value whose
neighbours reach beyond its range is counted again by a second sweep over all ranges. There are few such
values, because a point lies within the reach of at most ``2 k`` values of each class. The estimate depends on
how often each number of neighbours occurs, and on nothing else, so that ranges do not change its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from importlib import import_module
from math import fsum

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, column_parts
from fxdask.kernels.noisy_ranges import noisy_ranges

__all__ = ["MUTUAL_INFORMATION", "mutual_information", "nearest_neighbour_information"]

N_NEIGHBOURS = 3
N_SMALL = 2**12
VALUES_AT_A_TIME = 2**16

Ranges = Callable[[], Iterable[list[NDArray[np.float64]]]]
"""Reads ranges of rising values: (value,) ascending values of each class."""


def mutual_information(measured: Measurements) -> Scores:
    """Measurements -> (1, column) nats, from 0 to the entropy of the classes; 0 for a constant column."""
    columns = column_parts(measured)
    scores = np.zeros((1, len(columns)))
    for at, column in enumerate(columns):
        ranges = noisy_ranges(column, measured.seed)
        if ranges is not None:
            counts = column.counts[column.counts > 1]  # a class with one value has no neighbours, and is left out
            scores[0, at] = nearest_neighbour_information(ranges, counts)
    return scores


def nearest_neighbour_information(ranges: Ranges, counts: NDArray[np.int64]) -> float:
    """Ranges of distinct values, (class,) counts of at least 2 -> nats.

    ``digamma(n) + mean digamma(k) - mean digamma(n_class) - mean digamma(m)``, where m counts the values of
    all classes that are nearer than the k-th neighbour of the same class.
    """
    n, neighbours = int(counts.sum()), _Neighbours(counts)
    for classes in ranges():
        neighbours.absorb(classes)
    if neighbours.n_open:
        for classes in ranges():
            neighbours.absorb_again(classes)
    k = np.minimum(N_NEIGHBOURS, counts - 1)
    total = fsum((counts * (digamma(k) - digamma(counts))).tolist()) - neighbours.sum_of_digammas()
    shares = counts / n
    return float(np.clip(digamma(n) + total / n, 0.0, -(shares * np.log(shares)).sum()))


class _Neighbours:
    """How many values of all classes are nearer to a value than the k-th neighbour of its class, for every value."""

    def __init__(self, counts: NDArray[np.int64]) -> None:
        self._left = counts.copy()
        self._k = np.minimum(N_NEIGHBOURS, counts - 1).tolist()
        # Of every class the last values that are known: k that are counted, then those that still lack neighbours.
        self._tails = [np.empty(0) for _ in self._k]
        self._n_counted = [0] * len(self._k)
        self._highest = -np.inf  # of all ranges before
        self._small = np.zeros(N_SMALL, np.int64)
        self._large: list[NDArray[np.int64]] = []
        self._open: list[NDArray[np.float64]] = []
        self._again: NDArray[np.int64] | None = None

    @property
    def n_open(self) -> int:
        """Number of values whose neighbours reach beyond the range in which they were looked for."""
        return sum(part.shape[1] for part in self._open)

    def absorb(self, classes: list[NDArray[np.float64]]) -> None:
        """(value,) ascending values of each class in the next range."""
        everything = _merged(classes)
        self._left -= [len(of_class) for of_class in classes]
        # Values at least this far away, on either side, are sure not to be missed.
        ends = (self._highest, everything[-1] if self._left.any() else np.inf)
        for at, new in enumerate(classes):
            k, done = self._k[at], self._n_counted[at]
            own = np.concatenate([self._tails[at], new]) if len(self._tails[at]) else new
            stop = len(own) if not self._left[at] else max(done, len(own) - k)
            self._count(own, (done, stop), everything, k, ends)
            first = max(0, stop - k)
            self._tails[at], self._n_counted[at] = own[first:].copy(), stop - first
        self._highest = float(everything[-1])

    def _count(
        self,
        own: NDArray[np.float64],
        wanted: tuple[int, int],
        everything: NDArray[np.float64],
        k: int,
        ends: tuple[float, float],
    ) -> None:
        pointers = np.zeros(2, np.int64)
        for start in range(*wanted, VALUES_AT_A_TIME):
            stop = min(start + VALUES_AT_A_TIME, wanted[1])
            x, found, radii = own[start:stop], np.empty(stop - start, np.int64), np.empty(stop - start)
            _compiled()[0](own, (start, k), everything, pointers, found, radii)
            is_open = (x - ends[0] < radii) | (ends[1] - x < radii)
            if is_open.any():
                self._open.append(np.stack([x[is_open], radii[is_open]]))
                found = found[~is_open]
            self._add(found)

    def absorb_again(self, classes: list[NDArray[np.float64]]) -> None:
        """(value,) values of each class in a range, for the values that were open."""
        x, radii = np.concatenate(self._open, axis=1)
        if self._again is None:
            self._again = np.zeros(len(x), np.int64)
        _compiled()[1](x, radii, _merged(classes), self._again)

    def _add(self, found: NDArray[np.int64]) -> None:
        is_small = found < N_SMALL
        self._small += np.bincount(found[is_small], minlength=N_SMALL)
        self._large.append(found[~is_small])

    def sum_of_digammas(self) -> float:
        """The sum of digamma(m) over all values."""
        if self._again is not None:
            # Where the noise has left values equal, a radius of 0 still counts the value itself.
            self._add(np.maximum(1, self._again))
            self._again = None
        large, n_large = np.unique(np.concatenate(self._large), return_counts=True)
        return fsum([*(self._small[1:] * _small_digammas()).tolist(), *(n_large * digamma(large)).tolist()])


def _merged(classes: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(value,) ascending values of each class -> those of all classes, ascending."""
    return np.sort(np.concatenate(classes), kind="stable")  # merges what is ascending already


@cache
def _small_digammas() -> NDArray[np.float64]:
    return digamma(np.arange(1, N_SMALL))


def _count_within(
    own: NDArray[np.float64],
    first_and_k: tuple[int, int],
    everything: NDArray[np.float64],
    pointers: NDArray[np.int64],
    found: NDArray[np.int64],
    radii: NDArray[np.float64],
) -> None:
    """(value,) ascending values of a class and of all classes -> radius and m of the values from the first one on.

    The k nearest neighbours and the value itself lie next to each other in the sorted class: of all such
    windows, the one whose farther end is nearest. The ends of what is nearer than that move to the right
    with the value, up to rounding, so two pointers follow them.
    """
    n, n_own = len(everything), len(own)
    first, k = first_and_k
    low, high = pointers
    for at in range(first, first + len(found)):
        x, radius = own[at], np.inf
        for start in range(max(0, at - k), min(at, n_own - 1 - k) + 1):
            radius = min(radius, max(x - own[start], own[start + k] - x))
        while low < n and x - everything[low] >= radius:
            low += 1
        while low > 0 and x - everything[low - 1] < radius:
            low -= 1
        high = max(high, low)
        while high < n and everything[high] - x < radius:
            high += 1
        while high > 0 and everything[high - 1] - x >= radius:
            high -= 1
        # Where the noise has left values equal, a radius of 0 still counts the value itself.
        found[at - first], radii[at - first] = max(high - low, 1), radius
    pointers[0], pointers[1] = low, high


def _add_within(
    values: NDArray[np.float64],
    radii: NDArray[np.float64],
    everything: NDArray[np.float64],
    found: NDArray[np.int64],
) -> None:
    """(value,) values and radii, (value,) ascending values of a range -> add how many of these are nearer."""
    for at in range(len(values)):
        x, radius = values[at], radii[at]
        low, stop = 0, len(everything)
        while low < stop:
            middle = (low + stop) // 2
            if x - everything[middle] >= radius:
                low = middle + 1
            else:
                stop = middle
        high, stop = low, len(everything)
        while high < stop:
            middle = (high + stop) // 2
            if everything[middle] - x < radius:
                high = middle + 1
            else:
                stop = middle
        found[at] += high - low


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """Both loops over values, compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_count_within), njit(_add_within)


MUTUAL_INFORMATION = Criterion(
    name="mutual_information",
    needs=frozenset({Need.SORTED_COLUMNS}),
    score=mutual_information,
    summary="information about the class in nats, by nearest neighbours; any kind of difference",
    per_class=False,
)
