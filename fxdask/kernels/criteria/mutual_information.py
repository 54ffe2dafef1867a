"""The mutual information of a column and the classes by nearest neighbours: sorted columns -> (1, column) scores.

B. C. Ross, "Mutual Information between Discrete and Continuous Data Sets", PLoS ONE 9(2), 2014, with the
scaling and the noise of scikit-learn's ``mutual_info_classif``. The noise breaks ties. It is drawn by the
seed, the number of the column and the rank of the value in its class, so it depends neither on how the
samples were split nor on their order.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.kernels.sorted_columns import SortedColumns

__all__ = ["MUTUAL_INFORMATION", "mutual_information", "nearest_neighbour_information"]

N_NEIGHBOURS = 3
NOISE = 1e-10
NOISE_STREAM = 1  # another stream than that of the weights, which has one number


def mutual_information(measured: Measurements) -> Scores:
    """Measurements -> (1, column) nats, from 0 to the entropy of the classes; 0 for a constant column."""
    columns = required(measured.columns, Need.SORTED_COLUMNS)
    scores = np.zeros((1, len(columns.values)))
    for column in range(len(columns.values)):
        noisy, counts = _scaled_with_noise(columns, column, measured.seed)
        if noisy is not None:
            scores[0, column] = nearest_neighbour_information(noisy, counts)
    return scores


def nearest_neighbour_information(values: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """(value,) distinct values, class by class, (class,) counts of at least 2 -> nats.

    ``digamma(n) + mean digamma(k) - mean digamma(n_class) - mean digamma(m)``, where m counts the values of
    all classes that are nearer than the k-th neighbour of the same class. The values are overwritten.
    """
    n, stop, total = len(values), 0, 0.0
    everything = np.sort(values)
    for count in counts.tolist():
        start, stop = stop, stop + count
        own = values[start:stop]
        own.sort(kind="stable")  # nearly sorted already, which this kind of sort makes use of
        k = min(N_NEIGHBOURS, count - 1)
        total += count * float(digamma(k) - digamma(count)) - _compiled()(own, everything, k, _small_digammas())
    shares = counts / n
    return float(np.clip(digamma(n) + total / n, 0.0, -(shares * np.log(shares)).sum()))


def _scaled_with_noise(
    columns: SortedColumns, column: int, seed: int
) -> tuple[NDArray[np.float64] | None, NDArray[np.int64]]:
    """(value,) values divided by their deviation plus noise, class by class, and (class,) counts; None if constant.

    A class with one value is left out, as it has no neighbours.
    """
    classes = [k for k in range(columns.n_classes) if columns.counts[k, column] > 1]
    counts = columns.counts[classes, column]
    if not classes:
        return None, counts
    values = np.concatenate([columns.of_class(k, column) for k in classes], dtype=np.float64)
    values -= values.mean()
    deviation = np.sqrt(np.square(values).mean())
    if values.min() == values.max():
        return None, counts
    values = np.concatenate([columns.of_class(k, column) for k in classes], dtype=np.float64)
    values /= deviation
    scale = NOISE * max(1.0, np.abs(values).mean())
    sequence = np.random.SeedSequence(seed, spawn_key=(NOISE_STREAM, int(columns.indices[column])))
    noise = np.random.Generator(np.random.SFC64(sequence)).standard_normal(len(values))
    noise *= scale
    values += noise
    return values, counts


def _digammas_within(
    own: NDArray[np.float64], everything: NDArray[np.float64], k: int, digammas: NDArray[np.float64]
) -> float:
    """(value,) ascending values of a class and of all classes, (m,) digammas -> sum of digamma(m) over the class.

    The k nearest neighbours and the value itself lie next to each other in the sorted class: of all such
    windows, the one whose farther end is nearest. The ends of what is nearer than that move to the right
    with the value, up to rounding, so two pointers follow them.
    """
    n, n_own = len(everything), len(own)
    low = high = 0
    total = 0.0
    for at in range(n_own):
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
        m = max(high - low, 1)
        if m < len(digammas):
            total += digammas[m]
        else:
            total += np.log(m) - 0.5 / m - 1 / (12.0 * m * m)
    return total


@cache
def _small_digammas() -> NDArray[np.float64]:
    """(m,) digamma(m); from their number on, three terms of the asymptotic series are exact to the last bits."""
    return digamma(np.maximum(1, np.arange(2**12)))


@cache
def _compiled() -> Callable[..., float]:
    """The loop over a class's values, compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_digammas_within)


MUTUAL_INFORMATION = Criterion(
    name="mutual_information",
    needs=frozenset({Need.SORTED_COLUMNS}),
    score=mutual_information,
    summary="information about the class in nats, by nearest neighbours; any kind of difference",
    per_class=False,
)
