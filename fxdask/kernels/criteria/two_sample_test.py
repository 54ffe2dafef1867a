"""P-values of the two-sample Kolmogorov-Smirnov test, two-sided: exact for small samples, as SciPy's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import gcd

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST_EXACT", "two_sample_p_values"]

LARGEST_EXACT = 10_000
"""Samples of the larger class up to which p-values are exact, as with SciPy's ``method="auto"``."""


def two_sample_p_values(
    distance: NDArray[np.float64], n_first: NDArray[np.int64], n_second: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(...) distances of distribution functions, sizes of both samples -> (...) p-values; 1 if a sample is empty."""
    p_values = np.ones(distance.shape)
    large = (np.maximum(n_first, n_second) > LARGEST_EXACT) & (n_first > 0) & (n_second > 0)
    if large.any():
        first, second = n_first[large].astype(np.float64), n_second[large].astype(np.float64)
        harmonic = np.round(first * second / (first + second))
        # Two classes have the same distance to each other, and a p-value may take milliseconds.
        pairs, of_pair = np.unique(np.stack([distance[large], harmonic]), axis=1, return_inverse=True)
        # scipy.stats takes a second to import, which most workers never need.
        p_values[large] = import_module("scipy.stats").kstwo.sf(*pairs)[of_pair.ravel()]
    known: dict[tuple[int, int, int], float] = {}
    for at in zip(*np.nonzero(~large & (n_first > 0) & (n_second > 0)), strict=True):
        m, n = sorted((int(n_first[at]), int(n_second[at])))
        steps = round(float(distance[at]) * (n * m // gcd(n, m)))
        if (n, m, steps) not in known:
            known[n, m, steps] = _exact(n, m, steps)
        p_values[at] = known[n, m, steps]
    return np.clip(p_values, 0.0, 1.0)


def _exact(n: int, m: int, steps: int) -> float:
    """Sizes, n at least m, and the distance in steps of 1 / lcm(n, m) -> share of all orders that reach it."""
    if steps == 0:
        return 1.0
    if n == m:
        return _of_equal_sizes(n, steps)
    divisor = gcd(n, m)
    return _compiled()(n, m, n // divisor, m // divisor, steps)


def _of_equal_sizes(n: int, steps: int) -> float:
    """Gnedenko and Korolyuk's sum: 2 sum_j (-1)^(j+1) binom(2n, n - j steps) / binom(2n, n), as nested products."""
    share = 0.0
    for k in range(n // steps, -1, -1):
        at = np.arange(steps)
        share = float(np.prod((n - k * steps - at) / (n + k * steps + at + 1))) * (1 - share)
    return 2 * share


def _of_unequal_sizes(n: int, m: int, n_step: int, m_step: int, steps: int) -> float:
    """Share of paths from (0, 0) to (n, m) that touch ``abs(x m_step - y n_step) >= steps``, column by column.

    The share Q of paths to (x, y) that did so earlier is ``(x Q(x-1, y) + y Q(x, y-1)) / (x + y)``, and
    1 at the points outside. Only the points of a column that lie inside are kept.
    """
    low = 0
    shares = np.ones(m + 1)
    shares[: min(-(-steps // n_step), m + 1)] = 0.0
    for x in range(1, n + 1):
        low_before, low = low, min(max((m_step * x - steps) // n_step + 1, 0), m)
        high = min(-((-m_step * x - steps) // n_step), m + 1)
        if high <= low:
            return 1.0
        shares[low_before:low] = 1.0
        below = 0.0 if low == 0 else 1.0
        for y in range(low, high):
            below = (shares[y] * x + below * y) / (x + y)
            shares[y] = below
    return shares[m]


@cache
def _compiled() -> Callable[..., float]:
    """The loop over columns of paths, compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_of_unequal_sizes)
