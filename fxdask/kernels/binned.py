"""The densities of many rows at few points each: binned samples, a Fourier transform, interpolation.

A table is worth its making where many points are asked of one density. Here are few points and
many densities, so each sample is touched only a few times. In units of the bandwidth, phi(x) =
exp(-x^2 / 2), a bin of width w centred at c, and a sample at c + r, |r| <= w / 2:

    phi(t - c - r) = sum_j (-r)^j / j! phi^(j)(t - c),    j < p = 6.

So the sums of r^j over each bin, convolved with phi's derivatives, give the density g on the grid;
one transform does that, and gives g' and g'' too. Between grid points the quintic that agrees with
g, g' and g'' at both ends is evaluated. Errors, as shares of the density's peak:

- By Cramer's inequality |phi^(6)(x)| <= 1.0865 sqrt(6!) exp(-x^2 / 4). A kernel s times as wide as
  phi is an average of shifted phi times s, so a sum of such kernels over the samples is at most
  s times the peak of g. Dropping j >= 6 errs by the sixth derivative at places moved by up to
  w / 2, which widens exp(-x^2 / 4) to s < 1.52 and adds a factor below 1.03: at most
  (w / 2)^6 / 6! 1.0865 sqrt(6!) 1.52 1.03 = 1.1e-7 for w = 0.22.
- The quintic errs by at most w^6 / (64 6!) max |g^(6)|, and max |g^(6)| <= 1.0865 sqrt(6!) sqrt(2): 1.1e-7.
- The sums of r^2 and up are in single precision. They are corrections: with |r| <= w / 2 and
  Cramer's bound on phi'' they come to 0.014 of the peak, and NumPy's sums of them to within 30
  units in the last place of the terms added up: 2.5e-8.
- Samples farther than 7 from a point are left out, or come round the transform's end: with s = 3,
  exp(-7^2 / 2 (1 - 1 / s^2)) s = 1.1e-9.
"""

from __future__ import annotations

from functools import lru_cache
from math import factorial, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft, rfftfreq

from fxdask.kernels.lookup import Lookup
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.table import DensityTable
from fxdask.plan import row_ranges

__all__ = ["BINNED_ERROR", "densities"]

BINNED_ERROR = 3e-7
"""Bound on the error of :func:`densities`, as a share of each density's peak."""

WIDTH = 0.22
ORDER = 6
REACH = 7.0
MARGIN = int(REACH / WIDTH) + 1
SHORTEST_GRID = 96
LONGEST_GRID = 6144
PLACES_AT_A_TIME = 2**16


def densities(
    points: NDArray[np.floating], ascending: NDArray[np.float32], bandwidth: NDArray[np.float64], scratch: Scratch
) -> NDArray[np.float64]:
    """(row, point), (row, sample) ascending values, (row,) bandwidth -> (row, point) Gaussian kernel density.

    A row whose samples range over too many bandwidths for a transform is tabulated instead.
    """
    length = _grid_lengths(ascending, bandwidth)
    result = np.empty(points.shape)
    # Rows of one length together: a row's last bits must not depend on the rows beside it.
    for n_places in np.unique(length).tolist():
        rows = np.flatnonzero(length == n_places)
        if n_places > LONGEST_GRID:
            for row in rows.tolist():
                tables = Lookup([DensityTable(ascending[row], float(bandwidth[row]))])
                result[row] = np.exp(tables.log_density(points[row : row + 1], scratch)[0][0])
            continue
        for low, high in row_ranges(len(rows), max(1, PLACES_AT_A_TIME // int(n_places))):
            some = slice(low, high) if len(rows) == len(length) else rows[low:high]
            result[some] = _by_transform(points[some], ascending[some], bandwidth[some], int(n_places), scratch)
    return result


def _grid_lengths(ascending: NDArray[np.float32], bandwidth: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, sample) ascending values, (row,) bandwidth -> (row,) length of a transform, one of a few.

    It holds all bins from the first sample's to the last one's, and the reach of a kernel on both
    sides. The lengths are far apart, so that most rows have the same.
    """
    n_bins = (ascending[:, -1].astype(np.float64) - ascending[:, 0]) / (WIDTH * bandwidth)
    return SHORTEST_GRID * 2.0 ** np.maximum(0, np.ceil(np.log2((n_bins + 2 * MARGIN + 2) / SHORTEST_GRID)))


def _by_transform(
    points: NDArray[np.floating],
    ascending: NDArray[np.float32],
    bandwidth: NDArray[np.float64],
    length: int,
    scratch: Scratch,
) -> NDArray[np.float64]:
    """The densities of rows whose samples lie in ``length`` bins, less the margins on both sides."""
    low, per_bin = ascending[:, :1].astype(np.float64), 1 / (WIDTH * bandwidth[:, None])
    places = points.astype(np.float64)
    moments = np.zeros((ORDER, len(places), length))
    _add_up(ascending, low, per_bin, moments[:, :, MARGIN:], scratch)
    transformed = rfft(moments, axis=2)
    transformed *= _derivative_kernels(length)[:, None]
    total = transformed.sum(axis=0)
    frequency = 2j * np.pi * rfftfreq(length)
    grid = irfft(np.stack([total, total * frequency, total * frequency**2]), length, axis=2)
    at = (places - low) * per_bin + MARGIN
    outside = (at < 0) | (at >= length - 1)
    at[outside] = 0
    result = np.maximum(_quintic(grid, at), 0)
    result[outside] = 0
    return result / (sqrt(2 * np.pi) * ascending.shape[1] * bandwidth[:, None])


def _add_up(
    ascending: NDArray[np.float32],
    low: NDArray[np.float64],
    per_bin: NDArray[np.float64],
    moments: NDArray[np.float64],
    scratch: Scratch,
) -> None:
    """(row, sample) ascending -> (power, row, bin) sums over each bin of (-r)^j / j!, r in bins from its centre."""
    rest = np.subtract(ascending, low, out=scratch("rest", ascending.shape, np.float64))
    rest *= per_bin
    bins = np.rint(rest, out=scratch("bins", ascending.shape, np.float64))
    np.subtract(bins, rest, out=rest)
    is_first = scratch("is first", bins.shape, np.bool_)
    is_first[:, 0] = True
    np.not_equal(bins[:, 1:], bins[:, :-1], out=is_first[:, 1:])
    starts = np.flatnonzero(is_first)
    row, column = starts // bins.shape[1], bins.ravel()[starts].astype(np.intp)
    moments[0, row, column] = np.diff(starts, append=bins.size)
    moments[1, row, column] = np.add.reduceat(rest.ravel(), starts)
    rest = rest.astype(np.float32).ravel()
    power = np.multiply(rest, rest, out=scratch("power", rest.shape))
    for j in range(2, ORDER):
        moments[j, row, column] = np.add.reduceat(power, starts) / factorial(j)
        power *= rest


@lru_cache(maxsize=32)
def _derivative_kernels(length: int) -> NDArray[np.complex128]:
    """(j, frequency) transforms of the j-th derivatives of exp(-(w x)^2 / 2) along the bins x."""
    offset = np.fft.fftfreq(length, 1 / length)
    kernel = rfft(np.exp(-0.5 * (WIDTH * offset) ** 2))
    return (2j * np.pi * rfftfreq(length)) ** np.arange(ORDER)[:, None] * kernel


def _quintic(grid: NDArray[np.float64], at: NDArray[np.float64]) -> NDArray[np.float64]:
    """(3, row, bin) values, slopes and curvatures per bin, (row, point) places in bins -> (row, point) values."""
    first = at.astype(np.intp)
    x = at - first
    first += (np.arange(len(at)) * grid.shape[2])[:, None]
    (v0, s0, c0), (v1, s1, c1) = ([np.take(of_all, first + side) for of_all in grid.reshape(3, -1)] for side in (0, 1))
    y = 1 - x
    # Hermite's basis: what is known at the left end, then at the right by symmetry.
    left = v0 * (1 + 3 * x + 6 * x**2) + s0 * x * (1 + 3 * x) + c0 * x**2 / 2
    right = v1 * (1 + 3 * y + 6 * y**2) - s1 * y * (1 + 3 * y) + c1 * y**2 / 2
    return y**3 * left + x**3 * right
