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

With a wide normal (:mod:`fxdask.kernels.density.wide_normal`) a table holds normal scores too,
:mod:`fxdask.kernels.density.score_table`. All of the above stays true: the normal is a continuum of
samples that have the weight of one together.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, lru_cache
from importlib import import_module
from math import exp, factorial, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import comb

from fxdask.kernels.density.exact import LOG_SQRT_2PI, log_density, log_density_nearby
from fxdask.kernels.density.score_table import CellBounds, CellGrid, score_cubics
from fxdask.kernels.density.tails import TAIL_ERROR, Tail, cubic_through_four, fourth_derivative_bound
from fxdask.kernels.density.wide_normal import WideNormal

__all__ = ["FEWEST_TABULATED", "LARGEST_ERROR", "DensityTable"]

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
# Rounding of the coordinates, sums and coefficients, each of which takes some hundred operations.
ROUNDING = 1e-9
# Up to this number, summing all samples is faster than finding the nearby ones.
FEW_SAMPLES = 2**10
# Up to this number, summing a mixture's kernels takes little longer than a table, which would need 30 KiB.
FEWEST_TABULATED = 16
LEBESGUE = 1.64
SIXTH_ROW = (1, 6, 15, 20, 15, 6, 1)  # of Pascal's triangle


class DensityTable:
    """The log of one Gaussian kernel density, and with a wide normal also the normal scores of the mixture.

    :class:`fxdask.kernels.density.lookup.Lookup` and :class:`fxdask.kernels.density.mixed.MixedLookup` evaluate it.

    Parameters
    ----------
    ascending : (sample,) float32, ascending
    bandwidth : float
    wide : WideNormal, optional
        Mixed with the kernels as one more sample.

    Attributes
    ----------
    error : float
        Bound on the error of every log density, which is the relative error of the density;
        rounding in proportion to the log density is not included.
    score_error : float
        Bound on the error of every normal score; 0 without a wide normal.
    rows : (row, power) cubics of ln f along a piece, then those of the normal score; row 0 is NaN
    row_of_piece : (piece,) index of the row; 0 for pieces left out, and for the first and the last piece
    origin, pieces_per_unit, first_piece : float
        A value z lies in piece ``(z - origin) * pieces_per_unit + first_piece``.
    """

    def __init__(self, ascending: NDArray[np.float32], bandwidth: float, wide: WideNormal | None = None) -> None:
        self.ascending = ascending
        self.bandwidth = bandwidth
        self.wide = wide
        self._log_scale = LOG_SQRT_2PI + log(bandwidth) + log(len(ascending) + (wide is not None))
        # The middle sample is the origin: if the range is very long, most digits are needed near it.
        self.origin = np.float64(ascending[len(ascending) // 2])
        positions = (ascending.astype(np.float64) - self.origin) / bandwidth
        first, cells = _covered_cells(positions)
        if wide is not None and len(ascending) <= FEWEST_TABULATED:
            cells = cells[:0]
        in_bandwidths = None if wide is None else wide.in_units(float(self.origin), bandwidth)
        values, bounds, error = _cell_values(positions, cells + first, in_bandwidths)
        kept = np.flatnonzero(error <= CELL_ERROR)
        coefficients = _pieces(values[kept]) @ cubic_through_four().T
        coefficients[..., 0] -= self._log_scale
        self.score_error = 0.0
        if in_bandwidths is not None:
            grid = CellGrid(STEP * (cells[kept] + first).astype(np.float64), values[kept], STEP)
            scores, score_error, is_sure = score_cubics(grid, bounds.take(kept), positions, in_bandwidths)
            kept = kept[is_sure]
            coefficients = np.concatenate([coefficients, scores], axis=2)[is_sure]
            self.score_error = float(score_error[is_sure].max(initial=0.0))
        self.error = max(float(error[kept].max(initial=0.0)), TAIL_ERROR)
        n_rows = len(kept) * PIECES
        self.rows = np.concatenate(
            [np.full((1, coefficients.shape[2]), np.nan), coefficients.reshape(n_rows, coefficients.shape[2])]
        )
        n_cells = int(cells[-1]) + 1 if len(cells) else 0
        of_piece = np.zeros((n_cells, PIECES), np.intp)
        of_piece[cells[kept]] = 1 + np.arange(n_rows).reshape(-1, PIECES)
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


def _cell_values(
    positions: NDArray[np.float64], nodes: NDArray[np.intp], wide: WideNormal | None
) -> tuple[NDArray[np.float64], CellBounds, NDArray[np.float64]]:
    """(sample,) positions, (cell,) nodes -> (cell, point) ln g at the points of all pieces, bounds, (cell,) error.

    The last point of a piece is the first of the next one, so a cell has 3 * PIECES + 1 points.
    """
    if not len(nodes):
        return np.empty((0, 3 * PIECES + 1)), _derivative_bounds(np.empty(0), np.empty((0, ORDER + 1)), 1), np.empty(0)
    grid, lowest = _node_sums(positions, nodes, wide)
    at = nodes - lowest
    sums = grid[at]
    total, around_node = sums[:, 0], sums / sums[:, :1]
    mean = around_node[:, 1]
    moments = _recentred(around_node, -mean)
    adjacent = [
        _recentred(grid[at + side] / total[:, None], side * STEP - mean)
        * np.exp(STEP**2 / 2 - side * STEP * mean)[:, None]
        for side in (-1, 1)
    ]
    worst = np.sqrt(moments.clip(0) * np.maximum(*adjacent).clip(0))
    x, terms = _points_of_a_cell(PIECES, ORDER)
    values = np.log(moments[:, :ORDER] @ terms)
    values += mean[:, None] * x
    values += np.log(total)[:, None] - x**2 / 2
    bounds = _derivative_bounds(mean, worst, len(positions))
    of_cubic = 16 / 81 / 24 * (STEP / PIECES / 2) ** 4 * bounds.fourth
    return values, bounds, LEBESGUE * bounds.value_error + of_cubic


@lru_cache(maxsize=8)
def _points_of_a_cell(pieces: int, order: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(point,) distances from the node, (power, point) x^j / j!, the terms of a Taylor polynomial."""
    x = np.linspace(-STEP / 2, STEP / 2, 3 * pieces + 1)
    return x, _powers(x, order).T / np.array([[factorial(j)] for j in range(order)])


def _powers(values: NDArray[np.float64], count: int) -> NDArray[np.float64]:
    """(value,) -> (value, power) from the power 0 on; products are much faster than NumPy's power."""
    found = np.empty((len(values), count))
    found[:, 0] = 1
    for power in range(1, count):
        np.multiply(found[:, power - 1], values, out=found[:, power])
    return found


def _pieces(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(cell, point) values -> (cell, piece, 4) values at the four points of each piece."""
    return values[:, 3 * np.arange(PIECES)[:, None] + np.arange(4)]


def _derivative_bounds(mean: NDArray[np.float64], worst: NDArray[np.float64], n_samples: int) -> CellBounds:
    """(cell,) m, (cell, order) Q of even orders -> bounds on ln g and its derivatives, see the module docstring."""
    half, second, fourth = STEP / 2, worst[:, 2], worst[:, 4]
    of_taylor = worst[:, ORDER] * half**ORDER / factorial(ORDER)
    dropped = n_samples * exp(-0.5 * (((FARTHEST + 0.5) * STEP - half) ** 2 - (REACH + STEP) ** 2))
    rounding = ROUNDING + 32 * n_samples * np.finfo(np.float64).eps
    slope = half * second
    of_residual = [
        np.ones_like(slope),
        slope,
        second,
        np.sqrt(second * fourth),
        fourth,
        np.sqrt(fourth * worst[:, 6]),
        worst[:, 6],
    ]
    of_parabola = _parabola_derivatives(np.abs(mean) + half)
    return CellBounds(
        value_error=of_taylor / (1 - np.minimum(of_taylor, 0.5)) + dropped + rounding,
        first=np.abs(mean) + half + slope,
        second=np.maximum(1.0, second),
        third=np.sqrt(second * fourth) + 3 * second * slope + 2 * slope**3,
        fourth=fourth_derivative_bound(second, fourth, half),
        sixth_of_density=sum(
            (c * p * r for c, p, r in zip(SIXTH_ROW, of_parabola[::-1], of_residual, strict=True)), np.zeros(len(mean))
        ),
    )


def _parabola_derivatives(slope: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """Bound on |m - x| -> bounds on the derivatives of order 0 to 6 of exp(m x - x^2 / 2), divided by itself."""
    found = [np.ones_like(slope), slope]
    for order in range(1, 6):
        found.append(slope * found[order] + order * found[order - 1])
    return found


def _node_sums(
    positions: NDArray[np.float64], nodes: NDArray[np.intp], wide: WideNormal | None
) -> tuple[NDArray[np.float64], int]:
    """(sample,) ascending positions, (node,) -> (grid node, power) sums of d^j exp(-d^2 / 2), and the first grid node.

    d is the position minus the node; the grid contains all nodes and those next to them.
    """
    lowest, highest = int(nodes[0]) - 1, int(nodes[-1]) + 1
    ends = np.array([lowest - FARTHEST - 0.5, highest + FARTHEST + 0.5]) * STEP
    positions = positions[slice(*np.searchsorted(positions, ends))]
    nearest = np.rint(positions / STEP).astype(np.intp).clip(lowest - FARTHEST, highest + FARTHEST)
    sums = np.zeros((ORDER + 1, highest - lowest + 1 + 4 * FARTHEST))
    _compiled_sums()(positions, nearest, lowest - 2 * FARTHEST, _step_weights(), sums)
    grid = np.ascontiguousarray(sums[:, 2 * FARTHEST : -2 * FARTHEST].T)
    if wide is not None:
        grid += wide.kernel_sums(STEP * np.arange(lowest, highest + 1, dtype=np.float64), ORDER)
    return grid, lowest


@cache
def _step_weights() -> NDArray[np.float64]:
    """(step,) exp(-(k w)^2 / 2) for k = FARTHEST down to -FARTHEST."""
    return np.exp(-0.5 * (np.arange(FARTHEST, -FARTHEST - 1, -1) * STEP) ** 2)


def _add_sums(
    positions: NDArray[np.float64],
    nearest: NDArray[np.intp],
    first_node: int,
    step_weights: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add d^j exp(-d^2 / 2) of every sample to the (power, node) sums of the nodes around it.

    With a sample at b w + r and a node k steps below it, d = k w + r, and the weight exp(-d^2 / 2) is
    exp(-(k w)^2 / 2) exp(-w r)^k exp(-r^2 / 2): two exponentials per sample, and products.
    """
    n_steps = len(step_weights)
    distance, term = np.empty(n_steps), np.empty(n_steps)
    for sample in range(len(positions)):
        remainder = positions[sample] - nearest[sample] * STEP
        middle = np.exp(-0.5 * remainder * remainder)
        down, up = np.exp(-STEP * remainder), np.exp(STEP * remainder)
        term[FARTHEST] = middle
        below = above = middle
        for k in range(1, FARTHEST + 1):
            below *= down
            above *= up
            term[FARTHEST - k] = below
            term[FARTHEST + k] = above
        for step in range(n_steps):
            term[step] *= step_weights[step]
            distance[step] = remainder + (FARTHEST - step) * STEP
        first = nearest[sample] - first_node - FARTHEST
        for power in range(len(sums)):
            row = sums[power, first : first + n_steps]
            for step in range(n_steps):
                row[step] += term[step]
                term[step] *= distance[step]


@cache
def _compiled_sums() -> Callable[..., None]:
    """:func:`_add_sums` compiled to machine code on first use; importing the compiler takes half a second."""
    return import_module("numba").njit(nogil=True, cache=True)(_add_sums)


def _recentred(sums: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, power) sums of d^j, (row,) shifts -> (row, power) sums of (d + shift)^j."""
    powers = _powers(shift, ORDER + 1)
    binomials, exponents = _binomials()
    return (sums[:, None, :] @ (binomials * powers[:, exponents]))[:, 0]


@cache
def _binomials() -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """(l, j) binomial coefficients j over l, (l, j) exponents j - l where these coefficients are not zero."""
    lower, upper = np.indices((ORDER + 1, ORDER + 1))
    return comb(upper, lower), np.maximum(upper - lower, 0)
