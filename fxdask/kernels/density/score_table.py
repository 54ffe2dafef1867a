"""Normal scores of a mixture's distribution function as cubics, in the same cells as its log density.

In units of the bandwidth, N(x) = sum_q Phi(x - t_q) + Phi((x - m) / c) is the expected number of the
v + 1 samples below x, g / sqrt(2 pi) its derivative, and s = Phi^-1(N / (v + 1)) the normal score. A
score is clipped where N or v + 1 - N is below (v + 1) / (2 v).

- g is known at the points of all pieces. Integrals of the quintics through six of them, added up from
  the left end of a run of cells and from its right end, give N and v + 1 - N; both ends are summed
  directly. The error of an integral between two points is at most 863/60480 d^7 max |g^(6)|, d the
  distance of the points.
- Where the smaller of N and v + 1 - N has the relative error e, s is wrong by at most
  sqrt(pi / 2) e, because (1 - Phi(s)) / phi(s) is at most sqrt(pi / 2) for s >= 0.
- Between the points s is a cubic, with an error of at most 16/81 / 24 (h/2)^4 max |s''''| on a piece
  of length h. From s' = g / (sqrt(2 pi) (v + 1) phi(s)) follows s''/s' = B = L' + s s', and by
  differentiating further s''' = s' (B^2 + B') and s'''' = s'' (B^2 + B') + s' (2 B B' + B''), with
  B' = L'' + s'^2 + s s'' and B'' = L''' + 3 s' s'' + s s'''. Bounds on L', L'', L''', s and s' give
  one on s''''. As s' <= 1 everywhere (Bakry and Ledoux: g is a convolution with the normal density),
  s' on a piece is at most exp(h/6 (|L'| + |s|)) times its largest value at the points.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cache
from itertools import pairwise
from math import pi, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fxdask.kernels.density.tails import cubic_through_four
from fxdask.kernels.density.wide_normal import WideNormal

__all__ = ["CellBounds", "CellGrid", "score_cubics", "score_limit"]

LARGEST_SCORE_ERROR = 1e-7
SQRT_2PI = sqrt(2 * pi)
LEBESGUE = 1.64
# Rounding of counts, of their sums along a run, and of the inverse of the normal distribution function.
ROUNDING = 1e-12
# A normal share beyond this many units is 0 or 1 to float64's precision.
FAR = 9.0
# Integrals of the quintic through six points, between the first two of them, the second and the third pair.
INTEGRALS = np.array([[475, 1427, -798, 482, -173, 27], [-27, 637, 1022, -258, 77, -11], [11, -93, 802, 802, -93, 11]])


@dataclass(frozen=True)
class CellBounds:
    """(cell,) bounds on the error of L = ln g at the points, on its derivatives, and on ``g^(6) / g``."""

    value_error: NDArray[np.float64]
    first: NDArray[np.float64]
    second: NDArray[np.float64]
    third: NDArray[np.float64]
    fourth: NDArray[np.float64]
    sixth_of_density: NDArray[np.float64]

    def take(self, cells: NDArray[np.intp]) -> CellBounds:
        """These cells only."""
        return CellBounds(*(getattr(self, field.name)[cells] for field in fields(self)))


@dataclass(frozen=True)
class CellGrid:
    """Cells of one length in rising order, and ln g at equidistant points of each, its ends included."""

    centres: NDArray[np.float64]
    """(cell,)"""
    values: NDArray[np.float64]
    """(cell, point)"""
    length: float


def score_limit(n_samples: int) -> float:
    """The largest normal score, that of the share ``1 - 1 / (2 v)``."""
    return float(-ndtri(0.5 / n_samples))


def score_cubics(
    grid: CellGrid, bounds: CellBounds, positions: NDArray[np.float64], wide: WideNormal
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Cells, (sample,) positions -> (cell, piece, power) cubics, (cell,) error bounds, (cell,) whether they are small.

    The cubics are not clipped, except that those of a cell beyond the limit are constant.
    """
    n_points = grid.values.shape[1]
    n_all, limit = len(positions) + 1, score_limit(len(positions))
    below, above, relative = _counts(grid, bounds, positions, wide)
    low_half = below < above
    smaller = ndtri(np.minimum(below, above) / n_all)
    scores = np.where(low_half, smaller, -smaller)
    four = scores[:, np.arange(0, n_points - 1, 3)[:, None] + np.arange(4)]
    cubics = four @ cubic_through_four().T
    with np.errstate(over="ignore", invalid="ignore"):
        error = LEBESGUE * (sqrt(pi / 2) * 1.01 * relative + ROUNDING) + _cubic_errors(grid, bounds, scores, n_all)
    clipped = (np.abs(scores).min(axis=1) >= limit) & (scores[:, 0] * scores[:, -1] > 0)
    cubics[clipped] = 0
    cubics[clipped, :, 0] = np.copysign(limit, scores[clipped, :1])
    error[clipped] = ROUNDING
    return cubics, error, error <= LARGEST_SCORE_ERROR


def _counts(
    grid: CellGrid, bounds: CellBounds, positions: NDArray[np.float64], wide: WideNormal
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(cell, point) expected number of samples below and above each point, (cell,) bound on their relative error."""
    n_cells, n_points = grid.values.shape
    parts = np.exp(grid.values) @ _integral_weights(n_points).T
    parts *= grid.length / (n_points - 1) / SQRT_2PI
    mass_error = parts.sum(axis=1) * _relative_mass_error(bounds, grid.length, n_points)
    below, above, relative = np.empty_like(grid.values), np.empty_like(grid.values), np.empty(n_cells)
    breaks = np.flatnonzero(np.diff(grid.centres) > 1.5 * grid.length) + 1
    for first, last in pairwise([0, *breaks.tolist(), n_cells]):
        if first == last:
            continue
        run = slice(first, last)
        ends = grid.centres[[first, last - 1]] + np.array([-0.5, 0.5]) * grid.length
        start, end = _below(positions, ends[0], wide), _above(positions, ends[1], wide)
        flat = parts[run].ravel()
        rising = np.concatenate([[start], start + np.cumsum(flat)])
        falling = np.concatenate([end + np.cumsum(flat[::-1])[::-1], [end]])
        index = np.arange(last - first)[:, None] * (n_points - 1) + np.arange(n_points)
        below[run], above[run] = rising[index], falling[index]
        from_left = (np.cumsum(mass_error[run]) + ROUNDING * start) / below[run, 0]
        from_right = (np.cumsum(mass_error[run][::-1])[::-1] + ROUNDING * end) / above[run, -1]
        lower = below[run] < above[run]
        relative[run] = np.where(lower.any(axis=1), from_left, 0)
        relative[run] = np.maximum(relative[run], np.where(lower.all(axis=1), 0, from_right))
    return below, above, relative


def _relative_mass_error(bounds: CellBounds, length: float, n_points: int) -> NDArray[np.float64]:
    """(cell,) bound on the relative error of the integrals of g over a cell's pieces."""
    # The largest g of a cell divided by the smallest is at most exp(length |L'|).
    ratio = np.exp(np.minimum(length * bounds.first, 100))
    of_rule = 863 / 60480 * (length / (n_points - 1)) ** 6 * bounds.sixth_of_density * ratio
    return of_rule + 2.4 * bounds.value_error  # the absolute weights of a rule add up to at most 2.35


@cache
def _integral_weights(n_points: int) -> NDArray[np.float64]:
    """(interval, point) weights of the values at equidistant points in the integral between two neighbours."""
    weights = np.zeros((n_points - 1, n_points))
    for interval in range(n_points - 1):
        first = min(max(interval - 2, 0), n_points - 6)
        pair = interval - first
        rule = INTEGRALS[pair] if pair <= 2 else INTEGRALS[4 - pair][::-1]
        weights[interval, first : first + 6] = rule / 1440
    return weights


def _below(positions: NDArray[np.float64], x: float, wide: WideNormal) -> float:
    """The expected number of samples below x; each is spread by its kernel."""
    low, high = np.searchsorted(positions, [x - FAR, x + FAR])
    return float(low + ndtr(x - positions[low:high]).sum() + wide.share_below(np.array(x)))


def _above(positions: NDArray[np.float64], x: float, wide: WideNormal) -> float:
    """The expected number of samples above x."""
    low, high = np.searchsorted(positions, [x - FAR, x + FAR])
    return float(len(positions) - high + ndtr(positions[low:high] - x).sum() + wide.share_above(np.array(x)))


def _cubic_errors(grid: CellGrid, bounds: CellBounds, scores: NDArray[np.float64], n_all: int) -> NDArray[np.float64]:
    """(cell, point) scores -> (cell,) bound on the error of the cubics between the points."""
    piece = 3 * grid.length / (grid.values.shape[1] - 1)
    largest = np.abs(scores).max(axis=1)
    slopes = np.exp(grid.values + 0.5 * scores**2) / n_all
    slope = slopes.max(axis=1) * np.exp(piece / 6 * (bounds.first + largest))
    b = bounds.first + largest * slope
    second = slope * b
    b1 = bounds.second + slope**2 + largest * second
    third = slope * (b**2 + b1)
    b2 = bounds.third + 3 * slope * second + largest * third
    fourth = second * (b**2 + b1) + slope * (2 * b * b1 + b2)
    return 16 / 81 / 24 * (piece / 2) ** 4 * fourth
