"""A kernel density beyond its outermost sample, as a table of its logarithm.

The edge is the outermost sample. In units of the bandwidth, the density at a distance u beyond the edge,
of samples at distances s_q behind it, is

    ln g = -u^2 / 2 + T(u),    T(u) = ln sum_q exp(-s_q^2 / 2 - u s_q).

T falls from about ln v to the log of the number of samples at the edge itself, and it varies on
the scale of u. So each octave of u has 32 equal cells, and the leading bits of u are the index of its
cell. On each cell, T is the cubic through four equidistant exact values. Its error bound follows as
in :mod:`fxdask.kernels.density.cells`, from the moments of s at both ends of the cell; cells whose bound
is too large are left out. Far out, where exp(-u s) of the second sample is negligible, T is constant.
"""

from __future__ import annotations

from functools import cache
from math import log

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.point_pairs import NEGLIGIBLE, pairs_of

__all__ = ["REACH_BEHIND", "TAIL_ERROR", "Tail", "cubic_through_four", "fourth_derivative_bound"]

TAIL_ERROR = 1e-7
START = 4.0
REACH_BEHIND = 2 * NEGLIGIBLE / (START + (START**2 + 2 * NEGLIGIBLE) ** 0.5)
"""Samples farther behind the edge than this many bandwidths are negligible from START on."""
CELLS_PER_OCTAVE = 32
BITS_BELOW_A_CELL = 52 - 5
MOST_OCTAVES = 64
# Errors of the sums, of the kernels that they leave out, and of the cubics' coefficients.
ROUNDING = 1e-9


class Tail:
    """ln g at distances of ``start`` or more beyond the edge.

    Parameters
    ----------
    behind : (sample,) distances of the samples from the edge, ascending from 0, in bandwidths
        Those of at least REACH_BEHIND may be left out.
    n_samples : int
        Number of all samples.
    """

    start = START

    def __init__(self, behind: NDArray[np.float64], n_samples: int) -> None:
        n_at_edge = int(np.searchsorted(behind, 0, side="right"))
        edges = _cell_edges(behind[n_at_edge] if n_at_edge < len(behind) else np.inf, n_samples)
        points = np.linspace(edges[:-1], edges[1:], 4, axis=1)
        log_sums, moments = _sums(behind, points.ravel())
        log_sums = log_sums.reshape(-1, 4)
        cubics = log_sums @ cubic_through_four().T
        cubics[_errors(log_sums, moments.reshape(-1, 4, 5), np.diff(edges)) > TAIL_ERROR] = np.nan
        # From the last edge on T is constant, unless the number of octaves was limited before.
        reaches_constant = len(edges) - 1 < MOST_OCTAVES * CELLS_PER_OCTAVE
        beyond = [log(n_at_edge) if reaches_constant else np.nan, 0.0, 0.0, 0.0]
        self._cubics = np.concatenate([cubics, [beyond]])
        self._edges = edges
        self._per_width = np.append(1 / np.diff(edges), 0.0)

    def log_sum(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """(point,) distances beyond the edge, ``start`` or more -> (point,) ln g; NaN where no cell covers them."""
        cell = (distance.view(np.int64) >> BITS_BELOW_A_CELL) - _FIRST_CELL
        np.minimum(cell, len(self._edges) - 1, out=cell)
        position = (distance - self._edges[cell]) * self._per_width[cell]
        cubics = self._cubics[cell]
        result = cubics[:, 3] * position
        for power in (2, 1):
            result += cubics[:, power]
            result *= position
        result += cubics[:, 0]
        return result - 0.5 * distance**2


_FIRST_CELL = int(np.float64(START).view(np.int64)) >> BITS_BELOW_A_CELL


def _cell_edges(second: float, n_samples: int) -> NDArray[np.float64]:
    """Distance of the first sample behind the edge -> edges of the cells, up to where that sample is negligible."""
    last = np.float64((NEGLIGIBLE + log(n_samples)) / float(second))
    n_cells = 0
    if last > START:
        n_cells = 1 + (int(last.view(np.int64)) >> BITS_BELOW_A_CELL) - _FIRST_CELL
    n_cells = min(n_cells, MOST_OCTAVES * CELLS_PER_OCTAVE)
    return ((_FIRST_CELL + np.arange(n_cells + 1, dtype=np.int64)) << BITS_BELOW_A_CELL).view(np.float64)


def _sums(behind: NDArray[np.float64], points: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sample,) distances behind the edge, (point,) beyond it -> (point,) T, (point, power) moments 0 to 4 of s."""
    reach = 2 * NEGLIGIBLE / (points + np.sqrt(points**2 + 2 * NEGLIGIBLE))
    stop = np.searchsorted(behind, reach, side="right")
    sums = np.empty((len(points), 5))
    for pairs in pairs_of(np.zeros_like(stop), stop):
        s = behind[pairs.sample]
        weight = np.exp(-s * (0.5 * s + points[pairs.point]))
        for power in range(5):
            sums[pairs.points, power] = pairs.totals(weight)
            weight *= s
    return np.log(sums[:, 0]), sums / sums[:, :1]


def _errors(
    log_sums: NDArray[np.float64], moments: NDArray[np.float64], width: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(cell, 4) T, (cell, 4, power) moments of s at the four points -> (cell,) bound on the cubics' error."""
    first, last, mean = moments[:, 0], moments[:, 3], moments[:, 0, 1]
    # The factor exp(-x (s - mean)) turns the weights of the first point into those of the last.
    carried = np.exp(log_sums[:, 3] - log_sums[:, 0] + width * mean)
    second = np.maximum(_about(first, mean, 2), _about(last, mean, 2) * carried)
    fourth = np.maximum(_about(first, mean, 4), _about(last, mean, 4) * carried)
    return 16 / 81 / 24 * (width / 2) ** 4 * fourth_derivative_bound(second, fourth, width) + ROUNDING


@cache
def cubic_through_four() -> NDArray[np.float64]:
    """(power, value): values at 0, 1/3, 2/3 and 1 -> coefficients."""
    return np.asarray(np.linalg.inv(np.vander(np.arange(4) / 3, increasing=True)), np.float64)


def fourth_derivative_bound(
    second: NDArray[np.float64], fourth: NDArray[np.float64], reach: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Bounds on R'' and R'''' of a function R >= 1 with R'(0) = 0, within reach of 0 -> a bound on (ln R)''''."""
    slope = reach * second
    bound = np.maximum(fourth, 3 * second**2) + 4 * slope * np.sqrt(second * fourth)
    return bound + 12 * slope**2 * second + 6 * slope**4


def _about(moments: NDArray[np.float64], centre: NDArray[np.float64], order: int) -> NDArray[np.float64]:
    """(cell, power) moments about 0 -> (cell,) moment of this even order about the centre."""
    one, two, three, four = moments[:, 1:].T
    if order == 2:
        result = two - 2 * centre * one + centre**2
    else:
        result = four - 4 * centre * three + 6 * centre**2 * two - 4 * centre**3 * one + centre**4
    return np.maximum(result, 0)
