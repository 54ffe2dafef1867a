"""The cells of density tables: log densities as cubics, with error bounds computed from the samples.

In units of the bandwidth, near a node c of a grid of step w, the density of the samples t_q is

    g(c + x) = g(c) exp(m x - x^2 / 2) R(x),    R(x) = E[exp(x (d - m))],

where d = t_q - c has weights exp(-d^2 / 2) and m is its mean. The logarithm of the first factors is
a parabola, so only R has to be approximated. R is smooth, at least 1 (Jensen), and its even
derivatives E[(d - m)^j exp(x (d - m))] are log-convex in x: on the cell |x| <= w / 2 they are at
most Q_j, the geometric mean of the value at c and the larger of those at the nodes on both sides.
All of these are sums over the samples, computed at every node (:mod:`fxdask.kernels.density.grid_sums`).
Hence, with e = w / 2:

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

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from itertools import pairwise
from math import comb, factorial, log
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.exact import LOG_SQRT_2PI, log_density, log_density_nearby
from fxdask.kernels.density.grid_sums import FARTHEST, ORDER, REACH, STEP, CellSums, sums_around
from fxdask.kernels.density.score_table import CellBounds, CellGrid, Run, score_cubics, shares_at_ends
from fxdask.kernels.density.tails import TAIL_ERROR, cubic_through_four, fourth_derivative_bound
from fxdask.kernels.density.wide_normal import WideNormal
from fxdask.kernels.projection import row_products

__all__ = ["LARGEST_ERROR", "PIECES", "Density", "TableCells", "Tabulated", "table_cells"]

LARGEST_ERROR = 4e-7
"""Error bound of every table, relative to the density itself, so also relative to its peak."""

CELL_ERROR = 0.75 * LARGEST_ERROR
PIECES = 16
# Rounding of the coordinates, sums and coefficients, each of which takes some hundred operations.
ROUNDING = 1e-9
# Up to this number, summing all samples is faster than finding the nearby ones.
FEW_SAMPLES = 2**10
LEBESGUE = 1.64
SIXTH_ROW = (1, 6, 15, 20, 15, 6, 1)  # of Pascal's triangle


class Tabulated(Protocol):
    """A kernel density of which a table can be made."""

    @property
    def bandwidth(self) -> float:
        """Standard deviation of a kernel."""

    @property
    def wide(self) -> WideNormal | None:
        """The wide normal that is mixed with the kernels, if any."""

    @property
    def n_samples(self) -> int:
        """Number of samples."""

    @property
    def log_scale(self) -> float:
        """The log of what a sum of exp(-d^2 / 2) is divided by to be a density."""

    @property
    def origin(self) -> float:
        """The value from which cells are counted."""

    @property
    def positions(self) -> NDArray[np.float64]:
        """(sample,) values in bandwidths from the origin; only a mixture needs them."""

    @property
    def wide_in_bandwidths(self) -> WideNormal | None:
        """The wide normal in the same units."""

    @property
    def cell_sums(self) -> CellSums:
        """The cells that a table can have, with the sums over the samples."""

    def outermost(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """(sample,) ascending values near the lowest and near the highest sample; None if they are not known."""

    def summed(self, points: NDArray[np.float32]) -> NDArray[np.float64]:
        """(point,) values -> (point,) log densities by a sum of kernels; NaN if the samples are not known."""


@dataclass(frozen=True)
class Density:
    """One kernel density: (sample,) ascending values, the bandwidth, and the wide normal mixed with it, if any."""

    ascending: NDArray[np.float32]
    bandwidth: float
    wide: WideNormal | None = None

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return len(self.ascending)

    @property
    def n_kernels(self) -> int:
        """Number of samples, with the one that the wide normal stands for."""
        return self.n_samples + (self.wide is not None)

    @property
    def log_scale(self) -> float:
        """The log of what a sum of exp(-d^2 / 2) is divided by to be a density."""
        return LOG_SQRT_2PI + log(self.bandwidth) + log(self.n_kernels)

    @property
    def origin(self) -> float:
        """The middle sample: if the range is very long, most digits are needed near it."""
        return float(self.ascending[len(self.ascending) // 2])

    @cached_property
    def positions(self) -> NDArray[np.float64]:
        """(sample,) values in bandwidths from the origin."""
        return (self.ascending.astype(np.float64) - self.origin) / self.bandwidth

    @cached_property
    def wide_in_bandwidths(self) -> WideNormal | None:
        """The wide normal in the same units."""
        return None if self.wide is None else self.wide.in_units(self.origin, self.bandwidth)

    @property
    def cell_sums(self) -> CellSums:
        """The cells that a table can have, with the sums over the samples."""
        return sums_around(self.positions, self.wide_in_bandwidths)

    def outermost(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """All samples, for the tails below and above them."""
        return self.ascending, self.ascending

    def summed(self, points: NDArray[np.float32]) -> NDArray[np.float64]:
        """(point,) values -> (point,) log densities by a sum of kernels."""
        sums = log_density if len(self.ascending) <= FEW_SAMPLES else log_density_nearby
        return sums(points, self.ascending, self.bandwidth)


@dataclass(frozen=True, kw_only=True)
class TableCells:
    """The cells of one density."""

    first: int
    """Node of cell 0."""
    cells: NDArray[np.intp]
    """(cell,) indices of the cells that have cubics"""
    cubics: NDArray[np.float64]
    """(cell, piece, power) of ln f, then of the normal score if there is a wide normal"""
    error: float
    score_error: float


def table_cells(densities: Sequence[Tabulated]) -> list[TableCells]:
    """Several densities, all with a wide normal or all without -> their cells.

    Many small arrays are computed as few large ones, because a call of NumPy takes longer than its
    work on the cells of one density.
    """
    grids = [density.cell_sums for density in densities]
    edges = np.cumsum([0, *(len(grid.cells) for grid in grids)])
    owner = np.repeat(np.arange(len(densities)), np.diff(edges))
    counts = np.array([(density.n_samples, grid.n_added) for density, grid in zip(densities, grids, strict=True)])
    at, before, after = (np.concatenate([getattr(g, name) for g in grids]) for name in ("at", "before", "after"))
    values, bounds, error = _cell_values(at, (before, after), counts[owner])
    kept = np.flatnonzero(error <= CELL_ERROR)
    cubics = _pieces(values[kept]) @ cubic_through_four().T
    cubics[..., 0] -= np.array([density.log_scale for density in densities])[owner[kept]][:, None]
    score_error = np.zeros(len(kept))
    if densities[0].wide is not None:
        nodes = np.concatenate([grid.cells + grid.first for grid in grids])[kept]
        grid = CellGrid(STEP * nodes.astype(np.float64), values[kept], STEP)
        runs = _runs(grid.centres, owner[kept], densities)
        scores, score_error, is_sure = score_cubics(grid, bounds.take(kept), runs)
        cubics = np.concatenate([cubics, scores], axis=2)[is_sure]
        kept, score_error = kept[is_sure], score_error[is_sure]
    parts = [slice(*ends) for ends in pairwise(np.searchsorted(kept, edges).tolist())]
    return [
        TableCells(
            first=of_density.first,
            cells=of_density.cells[kept[some] - first_cell],
            cubics=cubics[some],
            error=max(float(error[kept[some]].max(initial=0.0)), TAIL_ERROR),
            score_error=float(score_error[some].max(initial=0.0)),
        )
        for of_density, first_cell, some in zip(grids, edges[:-1], parts, strict=True)
    ]


def _runs(centres: NDArray[np.float64], owner: NDArray[np.intp], densities: Sequence[Tabulated]) -> list[Run]:
    """(cell,) centres and densities -> the runs of neighbouring cells of one density."""
    is_break = (np.diff(centres) > 1.5 * STEP) | (np.diff(owner) > 0) | (np.diff(centres) < 0)
    edges = [0, *(np.flatnonzero(is_break) + 1).tolist(), len(centres)]
    runs = []
    for first, last in pairwise(edges):
        if first < last:
            density = densities[int(owner[first])]
            assert density.wide_in_bandwidths is not None, "only mixtures have normal scores"
            ends = (centres[first] - STEP / 2, centres[last - 1] + STEP / 2)
            below, above = shares_at_ends(density.positions, ends, density.wide_in_bandwidths)
            runs.append(Run(slice(first, last), below, above, density.n_samples))
    return runs


def _cell_values(
    at: NDArray[np.float64], around: tuple[NDArray[np.float64], NDArray[np.float64]], counts: NDArray[np.intp]
) -> tuple[NDArray[np.float64], CellBounds, NDArray[np.float64]]:
    """(cell, power) sums at nodes and around -> (cell, point) ln g at the points of all pieces, bounds, (cell,) error.

    The last point of a piece is the first of the next one, so a cell has 3 * PIECES + 1 points. Counts
    are (cell, 2): samples, and terms that were added one after another.
    """
    total, around_node = at[:, 0], at / at[:, :1]
    mean = around_node[:, 1]
    moments = _recentred(around_node, -mean)
    adjacent = [
        _recentred(sums / total[:, None], side * STEP - mean) * np.exp(STEP**2 / 2 - side * STEP * mean)[:, None]
        for side, sums in zip((-1, 1), around, strict=True)
    ]
    worst = np.sqrt(moments.clip(0) * np.maximum(*adjacent).clip(0))
    x, terms = _points_of_a_cell(PIECES, ORDER)
    values = np.log(row_products(np.ascontiguousarray(moments[:, :ORDER]), terms))
    values += mean[:, None] * x
    values += np.log(total)[:, None] - x**2 / 2
    bounds = _derivative_bounds(mean, worst, counts)
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


def _derivative_bounds(mean: NDArray[np.float64], worst: NDArray[np.float64], counts: NDArray[np.intp]) -> CellBounds:
    """(cell,) m, (cell, order) Q of even orders -> bounds on ln g and its derivatives, see the module docstring."""
    half, second, fourth = STEP / 2, worst[:, 2], worst[:, 4]
    n_samples, n_added = counts.T
    of_taylor = worst[:, ORDER] * half**ORDER / factorial(ORDER)
    dropped = n_samples * np.exp(-0.5 * (((FARTHEST + 0.5) * STEP - half) ** 2 - (REACH + STEP) ** 2))
    rounding = ROUNDING + 32 * n_added * np.finfo(np.float64).eps
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


def _recentred(sums: NDArray[np.float64], shift: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, power) sums of d^j, (row,) shifts -> (row, power) sums of (d + shift)^j."""
    powers = _powers(shift, ORDER + 1)
    binomials, exponents = _binomials()
    return (sums[:, None, :] @ (binomials * powers[:, exponents]))[:, 0]


@cache
def _binomials() -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """(l, j) binomial coefficients j over l, (l, j) exponents j - l where these coefficients are not zero."""
    lower, upper = np.indices((ORDER + 1, ORDER + 1))
    binomials = [[comb(j, power) for j in range(ORDER + 1)] for power in range(ORDER + 1)]
    return np.array(binomials, np.float64), np.maximum(upper - lower, 0)
