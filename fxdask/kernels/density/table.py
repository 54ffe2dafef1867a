"""A kernel density as a table of its logarithm, with an error bound computed from the samples.

In units of the bandwidth, near a node c of a grid of step w, the density of the samples t_q is

    g(c + x) = g(c) exp(m x - x^2 / 2) R(x),    R(x) = E[exp(x (d - m))],

where d = t_q - c has weights exp(-d^2 / 2) and m is its mean. The logarithm of the first factors is
a parabola, so only R has to be approximated. R is smooth, at least 1 (Jensen), and its even
derivatives E[(d - m)^j exp(x (d - m))] are log-convex in x: on the cell |x| <= w / 2 they are at
most Q_j, the geometric mean of the value at c and the larger of those at the nodes on both sides.
All of these are sums over the samples, computed at every node. Hence, with e = w / 2:

- The error of R's Taylor polynomial of the central moments up to order p - 1 (p even) is at most
  Q_p e^p / p!, and since R >= 1 this bounds the relative error too.
- |R'| <= e Q_2, |R'''| <= sqrt(Q_2 Q_4), and differentiating ln R four times,
  |(ln R)''''| <= M = max(Q_4, 3 Q_2^2) + 4 e Q_2 sqrt(Q_2 Q_4) + 12 e^2 Q_2^3 + 6 e^4 Q_2^4.
- A cell is split into pieces of length h. On each, ln g is the cubic through four equidistant
  values. Its error is at most 16/81 / 24 (h/2)^4 M, plus at most 1.64 times the error of those
  values.

A cell whose sum of these errors is above the limit, as in the middle of a wide gap between samples,
is left out of the table, and so are cells farther than REACH from all samples. Beyond the outermost
samples :mod:`fxdask.kernels.density.tails` is used; the density at any other point without a cell is summed.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, cached_property
from itertools import pairwise
from math import exp, factorial, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from fxdask.kernels.density.exact import LOG_SQRT_2PI, log_density, log_density_nearby
from fxdask.kernels.density.tails import TAIL_ERROR, Tail, cubic_through_four, fourth_derivative_bound

__all__ = ["LARGEST_ERROR", "DensityTable"]

LARGEST_ERROR = 4e-7
"""Error bound of every table, relative to the density itself, so also relative to its peak."""

CELL_ERROR = 0.75 * LARGEST_ERROR
STEP = 0.5
PIECES = 16
ORDER = 12
REACH = 6.0
# Samples beyond this many steps of a node add less than exp(-48) of its density, times the number of samples.
FARTHEST = 24
LONGEST_GRID = 2**12
MOST_CELLS = 2**10
SAMPLES_AT_A_TIME = 2**14
# Rounding of the coordinates, sums and coefficients, each of which takes some hundred operations.
ROUNDING = 1e-9
# Up to this number, summing all samples is faster than finding the nearby ones.
FEW_SAMPLES = 2**10
LEBESGUE = 1.64


class DensityTable:
    """The log of one Gaussian kernel density; :class:`fxdask.kernels.density.lookup.Lookup` evaluates it.

    Parameters
    ----------
    ascending : (sample,) float32, ascending
    bandwidth : float

    Attributes
    ----------
    error : float
        Bound on the error of every log density, which is the relative error of the density;
        rounding in proportion to the log density is not included.
    rows : (row, power) cubics of ln f along a piece; row 0 is NaN, for points without a piece
    row_of_piece : (piece,) index of the row; 0 for pieces left out, and for the first and the last piece
    origin, pieces_per_unit, first_piece : float
        A value z lies in piece ``(z - origin) * pieces_per_unit + first_piece``.
    """

    def __init__(self, ascending: NDArray[np.float32], bandwidth: float) -> None:
        self.ascending = ascending
        self.bandwidth = bandwidth
        self._log_scale = LOG_SQRT_2PI + log(bandwidth) + log(len(ascending))
        # The middle sample is the origin: if the range is very long, most digits are needed near it.
        self.origin = np.float64(ascending[len(ascending) // 2])
        positions = (ascending.astype(np.float64) - self.origin) / bandwidth
        first, cells = _covered_cells(positions)
        coefficients, error = _cell_polynomials(positions, cells + first)
        kept = error <= CELL_ERROR
        self.error = max(float(error[kept].max(initial=0.0)), TAIL_ERROR)
        coefficients = coefficients[kept].reshape(-1, 4)
        coefficients[:, 0] -= self._log_scale
        self.rows = np.concatenate([np.full((1, 4), np.nan), coefficients])
        n_cells = int(cells[-1]) + 1 if len(cells) else 0
        of_piece = np.zeros((n_cells, PIECES), np.intp)
        of_piece[cells[kept]] = 1 + np.arange(len(coefficients)).reshape(-1, PIECES)
        self.row_of_piece = np.concatenate([[0], of_piece.ravel(), [0]])
        self.pieces_per_unit = PIECES / STEP / bandwidth
        self.first_piece = 1 - (first - 0.5) * PIECES

    @property
    def n_bytes(self) -> int:
        """Bytes of the table, without the samples."""
        return self.rows.nbytes + self.row_of_piece.nbytes

    @cached_property
    def _tails(self) -> tuple[Tail, Tail]:
        """The tails below the first and above the last sample, built on first use."""
        values = self.ascending.astype(np.float64)
        below, above = values - values[0], (values[-1] - values)[::-1]
        return Tail(below / self.bandwidth), Tail(above / self.bandwidth)

    def log_density_uncovered(self, points: NDArray[np.float32]) -> tuple[NDArray[np.float64], int]:
        """(point,) values without a cell -> (point,) log density by the tails or by sums, and how many were summed."""
        result = np.full(len(points), np.nan)
        values, edges = points.astype(np.float64), self.ascending[[0, -1]].astype(np.float64)
        for side, sign in enumerate((-1, 1)):
            distance = (values - edges[side]) * (sign / self.bandwidth)
            inside = np.flatnonzero(distance >= Tail.start)
            if len(inside):
                result[inside] = self._tails[side].log_sum(distance[inside]) - self._log_scale
        missing = np.flatnonzero(np.isnan(result))
        if len(missing):
            summed = log_density if len(self.ascending) <= FEW_SAMPLES else log_density_nearby
            result[missing] = summed(points[missing], self.ascending, self.bandwidth)
        return result, len(missing)


def _covered_cells(positions: NDArray[np.float64]) -> tuple[int, NDArray[np.intp]]:
    """(sample,) ascending positions -> node of cell 0, (cell,) indices of the cells within reach of a sample.

    If the range of the samples is longer than the longest grid, only its middle is covered. If more
    cells are within reach than a table may have, those with the most samples nearby are used.
    """
    margin, half = round(REACH / STEP), LONGEST_GRID // 2
    first = int(max(np.rint(positions[0] / STEP) - margin, -half))
    last = int(min(np.rint(positions[-1] / STEP) + margin, half))
    counts = np.diff(np.searchsorted(positions, (np.arange(first, last + 2) - 0.5) * STEP))
    total = np.concatenate([np.zeros(margin + 1, np.intp), np.cumsum(counts), np.full(margin, counts.sum())])
    near = total[2 * margin + 1 :] - total[: -2 * margin - 1]
    cells = np.flatnonzero(near)
    if len(cells) > MOST_CELLS:
        cells = np.sort(cells[np.argsort(-near[cells], kind="stable")[:MOST_CELLS]])
    return first, cells


def _cell_polynomials(
    positions: NDArray[np.float64], nodes: NDArray[np.intp]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sample,) positions, (cell,) nodes -> (cell, piece, power) cubics of ln g, (cell,) bounds on their errors."""
    wanted = np.unique(np.concatenate([nodes - 1, nodes, nodes + 1]))
    sums = _node_sums(positions, wanted)
    at = np.searchsorted(wanted, nodes)
    total, around_node = sums[at, 0], sums[at] / sums[at, :1]
    mean = around_node[:, 1]
    moments = _recentred(around_node, -mean)
    adjacent = [
        _recentred(sums[at + side] / total[:, None], side * STEP - mean)
        * np.exp(STEP**2 / 2 - side * STEP * mean)[:, None]
        for side in (-1, 1)
    ]
    worst = np.sqrt(moments.clip(0) * np.maximum(*adjacent).clip(0))
    taylor = moments[:, :ORDER] / [factorial(j) for j in range(ORDER)]
    x = np.linspace(-STEP / 2, STEP / 2, 3 * PIECES + 1)
    values = np.log(taylor @ np.power.outer(x, np.arange(ORDER)).T)
    values += np.log(total)[:, None] + mean[:, None] * x - x**2 / 2
    of_piece = values[:, 3 * np.arange(PIECES)[:, None] + np.arange(4)]
    return of_piece @ cubic_through_four().T, _cell_errors(worst, len(positions))


def _cell_errors(worst: NDArray[np.float64], n_samples: int) -> NDArray[np.float64]:
    """(cell, order) Q of even orders -> (cell,) bound on the error of ln g, derived in the module docstring."""
    half, second, fourth = STEP / 2, worst[:, 2], worst[:, 4]
    of_taylor = worst[:, ORDER] * half**ORDER / factorial(ORDER)
    of_cubic = 16 / 81 / 24 * (STEP / PIECES / 2) ** 4 * fourth_derivative_bound(second, fourth, half)
    dropped = n_samples * exp(-0.5 * (((FARTHEST + 0.5) * STEP - half) ** 2 - (REACH + STEP) ** 2))
    rounding = ROUNDING + 32 * n_samples * np.finfo(np.float64).eps
    return LEBESGUE * (of_taylor / (1 - np.minimum(of_taylor, 0.5)) + dropped + rounding) + of_cubic


def _node_sums(positions: NDArray[np.float64], nodes: NDArray[np.intp]) -> NDArray[np.float64]:
    """(sample,) ascending positions, (node,) -> (node, power) sums of d^j exp(-d^2 / 2), d = position - node.

    With a sample at b w + r and a node at i w, k = b - i, the weight exp(-(k w + r)^2 / 2) is
    exp(-(k w)^2 / 2) exp(-w r)^k exp(-r^2 / 2): two exponentials per sample, and products.
    """
    lowest, highest = int(nodes[0]) - FARTHEST, int(nodes[-1]) + FARTHEST
    bins, of_bin = _bin_sums(positions, lowest, highest)
    carried = of_bin.transpose(1, 0, 2) @ _bin_to_node_factors()
    on_grid = np.zeros((highest + FARTHEST - (lowest - FARTHEST) + 1, ORDER + 1))
    for k, of_step in zip(range(-FARTHEST, FARTHEST + 1), carried, strict=True):
        on_grid[bins - k - (lowest - FARTHEST)] += of_step
    return on_grid[nodes - (lowest - FARTHEST)]


def _bin_sums(
    positions: NDArray[np.float64], lowest: int, highest: int
) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """(sample,) ascending positions -> (bin,) non-empty bins, (bin, k, power) sums of r^j exp(-w r)^k exp(-r^2 / 2)."""
    positions = positions[slice(*np.searchsorted(positions, [(lowest - 0.5) * STEP, (highest + 0.5) * STEP]))]
    all_bins = np.rint(positions / STEP).astype(np.intp)
    bins = all_bins[np.flatnonzero(np.diff(all_bins, prepend=all_bins[0] - 1))]
    sums = np.zeros((len(bins), 2 * FARTHEST + 1, ORDER + 1))
    for start, weights, powers in _weights_and_powers(positions, all_bins):
        inside = all_bins[start : start + weights.shape[1]]
        edges = np.flatnonzero(np.diff(inside, prepend=inside[0] - 1, append=inside[-1] + 1))
        first = int(np.searchsorted(bins, inside[0]))
        for index, (low, high) in enumerate(pairwise(edges.tolist()), start=first):
            sums[index] += weights[:, low:high] @ powers[:, low:high].T
    return bins, sums


def _weights_and_powers(
    positions: NDArray[np.float64], bins: NDArray[np.intp]
) -> Iterator[tuple[int, NDArray[np.float64], NDArray[np.float64]]]:
    """Samples in groups -> index of the first one, (k, sample) exp(-w r)^k exp(-r^2 / 2), (power, sample) r^j."""
    for start in range(0, len(positions), SAMPLES_AT_A_TIME):
        part = slice(start, start + SAMPLES_AT_A_TIME)
        remainder = positions[part] - bins[part] * STEP
        weights = np.empty((2 * FARTHEST + 1, len(remainder)))
        weights[FARTHEST] = np.exp(-0.5 * remainder**2)
        for sign in (-1, 1):
            ratio = np.exp(-sign * STEP * remainder)
            for k in range(1, FARTHEST + 1):
                np.multiply(weights[FARTHEST + sign * (k - 1)], ratio, out=weights[FARTHEST + sign * k])
        powers = np.empty((ORDER + 1, len(remainder)))
        powers[0] = 1
        for j in range(1, ORDER + 1):
            np.multiply(powers[j - 1], remainder, out=powers[j])
        yield start, weights, powers


def _recentred(sums: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, power) sums of d^j, (row,) shifts -> (row, power) sums of (d + shift)^j."""
    powers = np.power.outer(shift, np.arange(ORDER + 1))
    binomials, exponents = _binomials()
    return (sums[:, None, :] @ (binomials * powers[:, exponents]))[:, 0]


@cache
def _binomials() -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """(l, j) binomial coefficients j over l, (l, j) exponents j - l where these coefficients are not zero."""
    lower, upper = np.indices((ORDER + 1, ORDER + 1))
    return comb(upper, lower), np.maximum(upper - lower, 0)


@cache
def _bin_to_node_factors() -> NDArray[np.float64]:
    """(k, l, j) factors from a bin's sums of r^l to a node's sums of (k w + r)^j exp(-(k w)^2 / 2), k steps apart."""
    distance = np.arange(-FARTHEST, FARTHEST + 1) * STEP
    binomials, exponents = _binomials()
    powers = np.power.outer(distance, np.arange(ORDER + 1))[:, exponents]
    return binomials * powers * np.exp(-0.5 * distance**2)[:, None, None]
