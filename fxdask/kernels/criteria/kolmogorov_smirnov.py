"""The Kolmogorov-Smirnov distance of each class to the rest: sorted columns -> (class, column) scores."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.counted_distances import Distances
from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.kernels.criteria.two_sample_test import two_sample_p_values
from fxdask.kernels.sorted_columns import SortedColumns

__all__ = ["KOLMOGOROV_SMIRNOV", "kolmogorov_smirnov", "kolmogorov_smirnov_p_values"]

SIGN_BIT = np.uint32(2**31)
MISSING = np.uint64(2**64 - 1)


def kolmogorov_smirnov(measured: Measurements) -> Scores:
    """Measurements -> (class, column) largest distance of the distribution functions of a class and of the rest.

    With i values of the class and c of all classes at or below a point, the distance there is
    ``|i / n_k - (c - i) / (n - n_k)| = |i n - c n_k| / (n_k (n - n_k))``. The numerator is a whole
    number, so its maximum is exact, and the quotient is rounded once. A class without values, or
    without others beside it, scores 0.
    """
    distances = measured.distances or _distances(required(measured.columns, Need.DISTANCES))
    own, others = distances.counts, distances.counts.sum(axis=0) - distances.counts
    pairs = own.astype(np.float64) * others
    return np.divide(distances.largest, pairs, out=np.zeros(pairs.shape), where=pairs > 0)


def kolmogorov_smirnov_p_values(measured: Measurements, scores: Scores) -> Scores:
    """Measurements and their scores -> (class, column) p-values: both samples from one distribution."""
    counts = (measured.distances or required(measured.columns, Need.DISTANCES)).counts
    return two_sample_p_values(scores, counts, counts.sum(axis=0) - counts)


def _distances(columns: SortedColumns) -> Distances:
    """Sorted columns -> the largest distances of all classes and columns."""
    largest = np.zeros(columns.counts.shape, np.int64)
    two_classes, many_classes = _compiled()
    if columns.n_classes == 2:
        two_classes(columns.values, columns.edges, columns.counts, largest)
    else:
        for column in range(len(columns.values)):
            keys = _labelled_keys(columns, column)
            many_classes(keys, columns.counts[:, column], largest[:, column])
    return Distances(columns.counts, largest)


def _labelled_keys(columns: SortedColumns, column: int) -> NDArray[np.uint64]:
    """(value,) keys of a column, ascending: the value in the upper half, the class in the lower; missing ones last.

    Flipping all bits of negative numbers, and the sign of the others, makes floats sort as integers.
    """
    values = columns.values[column] + np.float32(0)  # no -0.0, which is equal to 0.0 but has other bits
    bits = values.view(np.uint32)
    bits = bits ^ np.where(bits & SIGN_BIT, np.uint32(2**32 - 1), SIGN_BIT)
    labels = np.repeat(np.arange(columns.n_classes, dtype=np.uint64), np.diff(columns.edges))
    keys = bits.astype(np.uint64) << np.uint64(32) | labels
    if columns.counts[:, column].sum() < len(keys):
        keys[np.isnan(values)] = MISSING
    keys.sort()
    return keys


def _two_classes(
    values: NDArray[np.float32], edges: NDArray[np.int64], counts: NDArray[np.int64], largest: NDArray[np.int64]
) -> None:
    """(column, value) sorted classes -> (class, column) largest ``abs(i n - c n_k)`` by a merge; both have the same."""
    for column in range(len(values)):
        n, m = counts[0, column], counts[1, column]
        first = values[column, edges[0] : edges[0] + n]
        second = values[column, edges[1] : edges[1] + m]
        i, j, best = 0, 0, 0
        while i < n and j < m:
            x, y = first[i], second[j]
            i += x <= y
            j += y <= x
            point = min(x, y)
            # The functions are compared after the last of equal values only.
            ended = (i == n or first[i] != point) and (j == m or second[j] != point)
            distance = abs(i * m - j * n)
            best = distance if ended and distance > best else best
        # Beyond the end of one class the functions only approach each other, after values equal to its last one.
        while i < n and m and first[i] == second[m - 1]:
            i += 1
        while j < m and n and second[j] == first[n - 1]:
            j += 1
        best = max(best, abs(i * m - j * n)) if n and m else 0
        largest[0, column], largest[1, column] = best, best


def _many_classes(keys: NDArray[np.uint64], counts: NDArray[np.int64], largest: NDArray[np.int64]) -> None:
    """(value,) labelled keys of a column -> (class,) largest ``abs(i n - c n_k)``.

    The distance is largest at a value of the class or just before one, so each value is looked at for
    its own class alone.
    """
    n = counts.sum()
    so_far = np.zeros(len(counts), np.int64)
    start = 0
    while start < n:
        point = keys[start] >> np.uint64(32)
        stop = start
        while stop < n and keys[stop] >> np.uint64(32) == point:
            k = np.int64(keys[stop] & np.uint64(0xFFFFFFFF))
            if stop == start or k != np.int64(keys[stop - 1] & np.uint64(0xFFFFFFFF)):
                largest[k] = max(largest[k], abs(so_far[k] * n - start * counts[k]))
            so_far[k] += 1
            stop += 1
        for at in range(start, stop):
            k = np.int64(keys[at] & np.uint64(0xFFFFFFFF))
            largest[k] = max(largest[k], abs(so_far[k] * n - stop * counts[k]))
        start = stop


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """Both loops compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_two_classes), njit(_many_classes)


KOLMOGOROV_SMIRNOV = Criterion(
    name="kolmogorov_smirnov",
    needs=frozenset({Need.DISTANCES}),
    score=kolmogorov_smirnov,
    summary="largest distance of the distribution functions of a class and of the rest; any kind of difference",
    p_values=kolmogorov_smirnov_p_values,
)
