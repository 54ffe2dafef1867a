"""P-values of the two-sample Kolmogorov-Smirnov test, two-sided: exact for small samples, as SciPy's."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import ceil, exp, gcd, lgamma, log, log1p, pi

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST_EXACT", "two_sample_p_values"]

LARGEST_EXACT = 10_000
"""Samples of the larger class up to which p-values are exact, as with SciPy's ``method="auto"``."""

# In SciPy: from this n d^2 on, and for more than this many samples, p-values are sums; from the last on they are 0.
TAIL, FEWEST_IN_TAIL, UNDERFLOW = 2.2, 140, 370.0
N_SMALL_ERRORS = 32
TERMS_AT_A_TIME = 2**14


def two_sample_p_values(
    distance: NDArray[np.float64], n_first: NDArray[np.int64], n_second: NDArray[np.int64]
) -> NDArray[np.float64]:
    """(...) distances of distribution functions, sizes of both samples -> (...) p-values; 1 if a sample is empty."""
    p_values = np.ones(distance.shape)
    large = (np.maximum(n_first, n_second) > LARGEST_EXACT) & (n_first > 0) & (n_second > 0)
    if large.any():
        first, second = n_first[large].astype(np.float64), n_second[large].astype(np.float64)
        p_values[large] = _of_large_samples(distance[large], np.round(first * second / (first + second)))
    known: dict[tuple[int, int, int], float] = {}
    for at in zip(*np.nonzero(~large & (n_first > 0) & (n_second > 0)), strict=True):
        m, n = sorted((int(n_first[at]), int(n_second[at])))
        steps = round(float(distance[at]) * (n * m // gcd(n, m)))
        if (n, m, steps) not in known:
            known[n, m, steps] = _exact(n, m, steps)
        p_values[at] = known[n, m, steps]
    return np.clip(p_values, 0.0, 1.0)


def _of_large_samples(distance: NDArray[np.float64], n: NDArray[np.float64]) -> NDArray[np.float64]:
    """(value,) distances, (value,) size of one sample with the same distribution -> (value,) p-values, as SciPy's.

    In the tail they are twice those of the one-sided test. SciPy computes the same sum with double-double
    numbers, which takes a second for half a million samples.
    """
    # Two classes have the same distance to each other.
    pairs, of_pair = np.unique(np.stack([distance, n]), axis=1, return_inverse=True)
    found = np.empty(pairs.shape[1])
    square = pairs[1] * pairs[0] ** 2
    tail = (pairs[1] > FEWEST_IN_TAIL) & (pairs[0] < 0.5) & (square >= TAIL) & (square < UNDERFLOW)
    for at in np.flatnonzero(tail).tolist():
        found[at] = 2 * _one_sided_tail(int(pairs[1, at]), float(pairs[0, at]))
    if not tail.all():
        # scipy.stats takes a second to import, which most workers never need.
        found[~tail] = import_module("scipy.stats").kstwo.sf(*pairs[:, ~tail])
    return found[of_pair.ravel()]


def _one_sided_tail(n: int, x: float) -> float:
    """Smirnov's sum of C(n, j) (x + j/n)^(j-1) (1 - x - j/n)^(n-j) x over j up to n (1 - x).

    With C(n, j) by Stirling's formula and its errors, powers of n and j cancel, and each term is the
    exponential of ``j ln(1 + n x / j) + (n - j) ln(1 - n x / (n - j))``, which has few digits before the point.
    """
    shift, total = n * x, exp(n * log1p(-x))
    for first in range(1, ceil(n - shift), TERMS_AT_A_TIME):
        j = np.arange(first, min(first + TERMS_AT_A_TIME, ceil(n - shift)), dtype=np.float64)
        rest = n - j
        exponent = j * np.log1p(shift / j) + rest * np.log1p(-shift / rest)
        exponent += _stirling_errors(np.array([n])) - _stirling_errors(j) - _stirling_errors(rest)
        total += float((shift / (shift + j) * np.exp(exponent) * np.sqrt(n / (2 * pi * j * rest))).sum())
    return total


def _stirling_errors(n: NDArray[np.floating] | NDArray[np.integer]) -> NDArray[np.float64]:
    """(value,) whole numbers from 1 on -> (value,) differences of ln n! and Stirling's formula."""
    square = 1.0 / (n * n)
    series = (1 / 12 - (1 / 360 - (1 / 1260 - square / 1680) * square) * square) / n
    is_small = n < len(_small_stirling_errors())
    if is_small.any():
        series[is_small] = _small_stirling_errors()[n[is_small].astype(np.intp)]
    return series


@cache
def _small_stirling_errors() -> NDArray[np.float64]:
    """(n,) differences of ln n! and Stirling's formula, for numbers at which the series is not exact enough."""
    small = range(1, N_SMALL_ERRORS)
    return np.array([0.0, *(lgamma(n + 1) - (n + 0.5) * log(n) + n - 0.5 * log(2 * pi) for n in small)])


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
    """Share of paths from (0, 0) to (n, m) that touch ``abs(x m_step - y n_step) >= steps``, by diagonals.

    The share Q of paths to (x, y) that did so earlier is ``(x Q(x-1, y) + y Q(x, y-1)) / (x + y)``, and
    1 at the points outside. So the points of a diagonal x + y depend on those of the diagonal before alone,
    and several are computed at once. ``shares[x + 1]`` belongs to x; only points inside are computed.
    """
    before, shares = np.ones(n + 3), np.ones(n + 3)
    before[1] = 0.0
    both = m_step + n_step
    for total in range(1, n + m + 1):
        # Inside is where -steps < x both - total n_step < steps.
        low = max((total * n_step - steps) // both + 1, 0, total - m)
        high = min(-((-total * n_step - steps) // both), total + 1, n + 1)
        if high <= low:
            return 1.0
        left, here, into = before[low : high + 1], before[low + 1 : high + 2], shares[low + 1 : high + 1]
        for i in range(high - low):
            x = np.float64(low + i)
            into[i] = (left[i] * x + here[i] * (total - x)) / total
        shares[low] = shares[high + 1] = 1.0
        before, shares = shares, before
    return before[n + 1]


@cache
def _compiled() -> Callable[..., float]:
    """The loop over columns of paths, compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_of_unequal_sizes)
