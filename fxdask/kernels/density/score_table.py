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

from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from math import pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fxdask.kernels.density.tails import cubic_through_four
from fxdask.kernels.density.wide_normal import WideNormal
from fxdask.kernels.projection import row_products

__all__ = ["CellBounds", "CellGrid", "Run", "score_cubics", "score_limit", "shares_at_ends"]

LARGEST_SCORE_ERROR = 1e-7
SQRT_2PI = sqrt(2 * pi)
LEBESGUE = 1.64
# Rounding of counts, of their sums along a run, and of the inverse of the normal distribution function.
ROUNDING = 1e-12
# A normal share beyond this many units is 0 or 1 to float64's precision.
FAR = 9.0
# Integrals of the quintic through six points, between the first two of them, the second and the third pair.
INTEGRALS = np.array([[475, 1427, -798, 482, -173, 27], [-27, 637, 1022, -258, 77, -11], [11, -93, 802, 802, -93, 11]])


@dataclass(frozen=True, kw_only=True)
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
        return CellBounds(**{field.name: getattr(self, field.name)[cells] for field in fields(self)})


@dataclass(frozen=True)
class CellGrid:
    """Cells of one length in rising order, and ln g at equidistant points of each, its ends included."""

    centres: NDArray[np.float64]
    """(cell,)"""
    values: NDArray[np.float64]
    """(cell, point)"""
    length: float


def score_limit(n_samples: Any) -> Any:
    """Number of samples v -> the largest normal score, that of the share ``1 - 1 / (2 v)``."""
    return -ndtri(0.5 / n_samples)


@dataclass(frozen=True)
class Run:
    """Neighbouring cells of one mixture, and the expected numbers of samples below its left and above its right end."""

    cells: slice
    below: float
    above: float
    n_samples: int


def score_cubics(
    grid: CellGrid, bounds: CellBounds, runs: Sequence[Run]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.bool_]]:
    """Cells of mixtures -> (cell, piece, power) cubics, (cell,) error bounds, (cell,) whether they are small.

    The cubics are not clipped, except that those of a cell beyond the limit are constant.
    """
    n_points = grid.values.shape[1]
    n_samples = np.repeat([run.n_samples for run in runs], [run.cells.stop - run.cells.start for run in runs])
    n_all, limit = n_samples[:, None] + 1, score_limit(n_samples)
    below, above, relative = _counts(grid, bounds, runs)
    smaller = ndtri(np.minimum(below, above) / n_all)
    scores = np.where(below < above, smaller, -smaller)
    four = scores[:, np.arange(0, n_points - 1, 3)[:, None] + np.arange(4)]
    cubics = four @ cubic_through_four().T
    with np.errstate(over="ignore", invalid="ignore"):
        error = LEBESGUE * (sqrt(pi / 2) * 1.01 * relative + ROUNDING) + _cubic_errors(grid, bounds, scores, n_all)
    clipped = (np.abs(scores).min(axis=1) >= limit) & (scores[:, 0] * scores[:, -1] > 0)
    cubics[clipped] = 0
    cubics[clipped, :, 0] = np.copysign(limit[clipped, None], scores[clipped, :1])
    error[clipped] = ROUNDING
    return cubics, error, error <= LARGEST_SCORE_ERROR


def _counts(
    grid: CellGrid, bounds: CellBounds, runs: Sequence[Run]
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """(cell, point) expected number of samples below and above each point, (cell,) bound on their relative error."""
    n_cells, n_points = grid.values.shape
    parts = row_products(np.exp(grid.values), _integral_weights(n_points).T)
    parts *= grid.length / (n_points - 1) / SQRT_2PI
    mass_error = parts.sum(axis=1) * _relative_mass_error(bounds, grid.length, n_points)
    below, above = np.empty_like(grid.values), np.empty_like(grid.values)
    from_left, from_right = np.empty(n_cells), np.empty(n_cells)
    for run in runs:
        some, flat = run.cells, parts[run.cells].ravel()
        rising, falling = run.below + np.cumsum(flat), run.above + np.cumsum(flat[::-1])[::-1]
        below[some, 1:], above[some, :-1] = (of_all.reshape(-1, n_points - 1) for of_all in (rising, falling))
        below[some, 0] = np.concatenate([[run.below], below[some, -1][:-1]])
        above[some, -1] = np.concatenate([above[some, 0][1:], [run.above]])
        from_left[some] = np.cumsum(mass_error[some]) + ROUNDING * run.below
        from_right[some] = np.cumsum(mass_error[some][::-1])[::-1] + ROUNDING * run.above
    lower = below < above
    relative = np.where(lower.any(axis=1), from_left / below[:, 0], 0)
    return below, above, np.maximum(relative, np.where(lower.all(axis=1), 0, from_right / above[:, -1]))


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


def shares_at_ends(positions: NDArray[np.float64], ends: tuple[float, float], wide: WideNormal) -> tuple[float, float]:
    """(sample,) positions, ends of a run -> expected numbers of samples below the first and above the second."""
    left, right = ends
    low, high = np.searchsorted(positions, [left - FAR, left + FAR])
    below = low + ndtr(left - positions[low:high]).sum() + ndtr((left - wide.location) / wide.scale)
    low, high = np.searchsorted(positions, [right - FAR, right + FAR])
    above = len(positions) - high + ndtr(positions[low:high] - right).sum()
    return float(below), float(above + ndtr((wide.location - right) / wide.scale))


def _cubic_errors(
    grid: CellGrid, bounds: CellBounds, scores: NDArray[np.float64], n_all: NDArray[np.intp]
) -> NDArray[np.float64]:
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
