"""The densities of many rows at few points each: binned samples, a Fourier transform, interpolation.

A table pays off where one density is evaluated at many points. This module is for few points and
many densities, so it does only a few operations per sample. In units of the bandwidth, phi(x) =
exp(-x^2 / 2), a bin of width w centred at c, and a sample at c + r, |r| <= h = w / 2: as a function
of r, phi(t - c - r) is replaced by the polynomial of degree p - 1 = 5 through its values at the
six Chebyshev points,

    phi(t - c - r) = sum_j a_j(t - c) r^j,    j < p = 6.

So the sums of r^j over each bin, convolved with the a_j, give the density g on the grid. One
Fourier transform computes this; in it phi is a wave exp(i omega r), and the a_j are the coefficients
of the polynomial through it. It gives g' and g'' too, all three on a grid of half the step. Between
the grid points the quintic that agrees with g, g' and g'' at both ends is evaluated.

Errors, as shares of the density's peak:

- By Cramer's inequality |phi^(6)(x)| <= 1.0865 sqrt(6!) exp(-x^2 / 4). A kernel s times as wide as
  phi is an average of shifted phi times s, so a sum of such kernels over the samples is at most
  s times the peak of g. The error of the polynomial is at most h^6 / (2^5 6!) max |phi^(6)|. The
  maximum is up to w away, which widens exp(-x^2 / 4) to at most 1.12 exp(-x^2 / (2 s^2)), s = 1.65:
  h^6 / (2^5 6!) 1.0865 sqrt(6!) 1.85 = 1.5e-7 for w = 0.4.
- The error of the quintic is at most h^6 / (64 6!) max |g^(6)|, and max |g^(6)| <= 1.0865 sqrt(6!) sqrt(2):
  5.8e-8.
- Samples farther than 7 from a point are left out, or wrap around the end of the transform: with
  s = 3, exp(-7^2 / 2 (1 - 1 / s^2)) s = 1.1e-9.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, lru_cache
from importlib import import_module
from math import sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft, rfftfreq

from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.scratch import Scratch
from fxdask.sizes import row_ranges

__all__ = ["BINNED_ERROR", "BinnedValues", "densities"]

BINNED_ERROR = 3e-7
"""Bound on the error of :func:`densities`, as a share of each density's peak."""

WIDTH = 0.4
ORDER = 6
REACH = 7.0
MARGIN = int(REACH / WIDTH) + 1
FINER = 2  # grid steps per bin
SHORTEST_GRID = 80
LONGEST_GRID = 5120
GRID_POINTS_AT_A_TIME = 2**15


def densities(
    points: NDArray[np.floating], ascending: NDArray[np.float32], bandwidth: NDArray[np.float64], scratch: Scratch
) -> NDArray[np.float64]:
    """(row, point), (row, sample) ascending values, (row,) bandwidth -> (row, point) Gaussian kernel density.

    A row whose samples span too many bandwidths for a transform uses a table instead.
    """
    length = _grid_lengths(ascending, bandwidth)
    result = np.empty(points.shape)
    # Rows of one length are transformed together, so that a row's last bits do not depend on other rows.
    for n_grid_points in np.unique(length).tolist():
        rows = np.flatnonzero(length == n_grid_points)
        if n_grid_points > LONGEST_GRID:
            for row in rows.tolist():
                tables = Lookup([DensityTable(ascending[row], float(bandwidth[row]))])
                result[row] = np.exp(tables(points[row : row + 1], scratch).logs[0])
            continue
        for low, high in row_ranges(len(rows), max(1, GRID_POINTS_AT_A_TIME // int(n_grid_points))):
            some = slice(low, high) if len(rows) == len(length) else rows[low:high]
            result[some] = _by_transform(points[some], ascending[some], bandwidth[some], int(n_grid_points))
    return result


def _grid_lengths(ascending: NDArray[np.float32], bandwidth: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, sample) ascending values, (row,) bandwidth -> (row,) length of a transform, one of a few lengths.

    The grid contains all bins from the first to the last sample, and the reach of a kernel on both
    sides. The possible lengths are far apart, so that most rows have the same length.
    """
    n_bins = (ascending[:, -1].astype(np.float64) - ascending[:, 0]) / (WIDTH * bandwidth)
    return SHORTEST_GRID * 2.0 ** np.maximum(0, np.ceil(np.log2((n_bins + 2 * MARGIN + 2) / SHORTEST_GRID)))


def _by_transform(
    points: NDArray[np.floating], ascending: NDArray[np.float32], bandwidth: NDArray[np.float64], length: int
) -> NDArray[np.float64]:
    """(row, point) densities of rows whose samples lie in ``length`` bins, excluding the margins on both sides."""
    low, per_bin = ascending[:, 0].astype(np.float64), 1 / (WIDTH * bandwidth)
    moments, current = np.zeros((len(ascending), ORDER, length)), np.zeros(len(ascending), np.int64)
    _compiled_bin_moments()(ascending, low, per_bin, moments[:, :, MARGIN:], current)
    return _interpolated(points, low, bandwidth, moments, ascending.shape[1])


class BinnedValues:
    """The density of one row whose ascending values come piece by piece, with the bits of :func:`densities`.

    Parameters
    ----------
    bandwidth : the samples must span at most 2,000 bandwidths
    """

    def __init__(self, bandwidth: float) -> None:
        self._bandwidth = np.array([bandwidth])
        self._moments, self._current = np.zeros((1, ORDER, LONGEST_GRID)), np.zeros(1, np.int64)
        self._ends = np.empty((1, 2), np.float32)
        self.count = 0

    def absorb(self, ascending: NDArray[np.float32]) -> None:
        """(sample,) next values, ascending."""
        if not len(ascending):
            return
        if not self.count:
            self._ends[0, 0] = ascending[0]
        self._ends[0, 1] = ascending[-1]
        self.count += len(ascending)
        low, per_bin = self._ends[:, 0].astype(np.float64), 1 / (WIDTH * self._bandwidth)
        _compiled_bin_moments()(ascending[None], low, per_bin, self._moments[:, :, MARGIN:], self._current)

    def densities(self, points: NDArray[np.floating]) -> NDArray[np.float64]:
        """(point,) points -> (point,) Gaussian kernel density."""
        length = int(_grid_lengths(self._ends, self._bandwidth)[0])
        low, moments = self._ends[:, 0].astype(np.float64), np.ascontiguousarray(self._moments[:, :, :length])
        return _interpolated(points[None], low, self._bandwidth, moments, self.count)[0]


def _interpolated(
    points: NDArray[np.floating],
    low: NDArray[np.float64],
    bandwidth: NDArray[np.float64],
    moments: NDArray[np.float64],
    n_samples: int,
) -> NDArray[np.float64]:
    """(row, point) points, (row,) lowest samples, (row, power, bin) moments -> (row, point) densities."""
    length, per_bin = moments.shape[2], 1 / (WIDTH * bandwidth[:, None])
    grid = _transformed(moments)
    at = FINER * ((points.astype(np.float64) - low[:, None]) * per_bin + MARGIN)
    outside = (at < 0) | (at >= FINER * length - 1)
    at[outside] = 0
    result = np.maximum(_quintic(grid, at), 0)
    result[outside] = 0
    return result / (sqrt(2 * np.pi) * n_samples * bandwidth[:, None])


def _bin_moments(
    ascending: NDArray[np.float32],
    low: NDArray[np.float64],
    per_bin: NDArray[np.float64],
    moments: NDArray[np.float64],
    last_bin: NDArray[np.int64],
) -> None:
    """(row, sample) ascending -> (row, power, bin) sums over each bin of (-r)^j, r in bins from its centre.

    The (row,) bins of the last values before these are known, and those of the last ones are set.
    """
    for row in range(len(ascending)):
        current = last_bin[row]
        sums = moments[row]
        m0, m1, m2 = sums[0, current], sums[1, current], sums[2, current]
        m3, m4, m5 = sums[3, current], sums[4, current], sums[5, current]
        for value in ascending[row]:
            position = (value - low[row]) * per_bin[row]
            nearest = int(np.rint(position))
            if nearest != current:
                sums[0, current], sums[1, current], sums[2, current] = m0, m1, m2
                sums[3, current], sums[4, current], sums[5, current] = m3, m4, m5
                m0 = m1 = m2 = m3 = m4 = m5 = 0.0
                current = nearest
            remainder = nearest - position
            square = remainder * remainder
            m0 += 1
            m1 += remainder
            m2 += square
            m3 += square * remainder
            m4 += square * square
            m5 += square * square * remainder
        sums[0, current], sums[1, current], sums[2, current] = m0, m1, m2
        sums[3, current], sums[4, current], sums[5, current] = m3, m4, m5
        last_bin[row] = current


@cache
def _compiled_bin_moments() -> Callable[..., None]:
    """:func:`_bin_moments` compiled to machine code on first use; later processes read it from a file.

    NumPy calls on whole arrays take three times as long, and a second thread gains little, because
    threads wait for the GIL between the calls. The compiler needs 60 MiB of memory, so it is
    imported only here.
    """
    return import_module("numba").njit(nogil=True, cache=True)(_bin_moments)


def _transformed(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, power, bin) moments -> (3, row, grid point) g, g', g'' along the grid, times sqrt(2 pi)."""
    length = moments.shape[2]
    transforms = rfft(moments, axis=2)
    transforms *= _wave_coefficients(length)
    total = transforms.sum(axis=1)
    frequency = 2 * np.pi * rfftfreq(length)
    # The transform of the kernel; it is negligible long before the highest frequency.
    kernel = np.exp(-0.5 * (frequency / WIDTH) ** 2) * (FINER * sqrt(2 * np.pi) / WIDTH)
    derivatives = kernel * (1j / FINER * frequency) ** np.arange(3)[:, None]
    return irfft(total * derivatives[:, None], FINER * length, axis=2)


@lru_cache(maxsize=32)
def _wave_coefficients(length: int) -> NDArray[np.complex128]:
    """(power, frequency) coefficients of the polynomial in r through exp(i omega r), r within half a bin."""
    chebyshev_points = 0.5 * np.cos(np.pi * (np.arange(ORDER) + 0.5) / ORDER)
    powers = chebyshev_points[:, None] ** np.arange(ORDER)
    return np.linalg.solve(powers, np.exp(2j * np.pi * chebyshev_points[:, None] * rfftfreq(length)))


def _quintic(grid: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, row, bin) values, slopes and curvatures per bin, (row, point) positions in bins -> (row, point) values."""
    first = at.astype(np.intp)
    x = at - first
    first += (np.arange(len(at)) * grid.shape[2])[:, None]
    (v0, s0, c0), (v1, s1, c1) = ([np.take(of_all, first + side) for of_all in grid.reshape(3, -1)] for side in (0, 1))
    y = 1 - x
    # Hermite's basis: the values at the left end, and by symmetry those at the right end.
    left = v0 * (1 + 3 * x + 6 * x**2) + s0 * x * (1 + 3 * x) + c0 * x**2 / 2
    right = v1 * (1 + 3 * y + 6 * y**2) - s1 * y * (1 + 3 * y) + c1 * y**2 / 2
    return y * y * y * left + x * x * x * right
