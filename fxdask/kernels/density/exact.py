"""The log of the Gaussian kernel density, as a sum of all kernels."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.point_pairs import NEGLIGIBLE, pairs_of

__all__ = ["LOG_SQRT_2PI", "RunningDensity", "kernel_totals", "log_density", "log_density_nearby", "reach_of_kernels"]

KERNELS_PER_STEP = 2**19
LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
ROOT_HALF = 0.5**0.5


def log_density(points: NDArray[np.floating], ascending: NDArray[np.floating], bandwidth: float) -> NDArray[np.float64]:
    """(point,) values, (sample,) ascending values, bandwidth -> (point,) log of the Gaussian kernel density.

    Every kernel is summed in float64, a bounded number at a time. Exponents are relative to that of
    the nearest sample, so that a point far from all samples has a finite log density instead of the
    log of zero. The result of a point does not depend on the other points.
    """
    samples: NDArray[np.float64] = np.asarray(ascending, dtype=np.float64)
    points64: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    scale = ROOT_HALF / bandwidth
    top = np.square(_distance_to_nearest(points64, samples) * scale)
    total = kernel_totals(points64, samples, scale, top)
    return np.log(total) - top - (LOG_SQRT_2PI + np.log(bandwidth) + np.log(len(samples)))


class RunningDensity:
    """The log of a Gaussian kernel density at some points, from samples that come in pieces.

    Parameters
    ----------
    points : (point,) values
    bandwidth : float
    """

    def __init__(self, points: NDArray[np.floating], bandwidth: float) -> None:
        self._points: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
        self._bandwidth, self._scale, self._n_samples = bandwidth, ROOT_HALF / bandwidth, 0
        self._top, self._total = np.full(len(points), np.inf), np.zeros(len(points))

    def absorb(self, ascending: NDArray[np.floating]) -> None:
        """Add the kernels of (sample,) ascending values."""
        if not len(ascending):
            return
        samples: NDArray[np.float64] = np.asarray(ascending, dtype=np.float64)
        top = np.square(_distance_to_nearest(self._points, samples) * self._scale)
        total = kernel_totals(self._points, samples, self._scale, top)
        nearest = np.minimum(self._top, top)
        self._total = self._total * np.exp(nearest - self._top) + total * np.exp(nearest - top)
        self._top, self._n_samples = nearest, self._n_samples + len(samples)

    def log_density(self) -> NDArray[np.float64]:
        """(point,) log of the density of all samples so far."""
        scale = LOG_SQRT_2PI + np.log(self._bandwidth) + np.log(self._n_samples)
        return np.log(self._total) - self._top - scale


def kernel_totals(
    points64: NDArray[np.float64], samples: NDArray[np.float64], scale: float, top: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(point,) values, (sample,) values -> (point,) sums of exp(top - (scale distance)^2), few kernels at a time."""
    result = np.empty(len(points64))
    samples_per_step = min(len(samples), KERNELS_PER_STEP)
    points_per_step = max(1, KERNELS_PER_STEP // samples_per_step)
    buffer = np.empty((min(points_per_step, len(points64)), samples_per_step))
    for start in range(0, len(points64), points_per_step):
        some = slice(start, start + points_per_step)
        total = np.zeros(len(points64[some]))
        for first in range(0, len(samples), samples_per_step):
            part = samples[first : first + samples_per_step]
            exponent = buffer[: len(total), : len(part)]
            # The difference comes first, because scaled coordinates far from zero would have lost their last digits.
            np.subtract(points64[some, None], part, out=exponent)
            exponent *= scale
            np.square(exponent, out=exponent)
            np.subtract(top[some, None], exponent, out=exponent)
            total += np.exp(exponent, out=exponent).sum(axis=1)
        result[some] = total
    return result


def log_density_nearby(
    points: NDArray[np.floating], ascending: NDArray[np.floating], bandwidth: float
) -> NDArray[np.float64]:
    """The same without far samples, each of which adds less than 3e-20 of a point's density."""
    samples: NDArray[np.float64] = np.asarray(ascending, dtype=np.float64)
    points64: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    nearest = _distance_to_nearest(points64, samples) / bandwidth
    reach = reach_of_kernels(points64, samples, bandwidth)
    start = np.searchsorted(samples, points64 - reach)
    stop = np.searchsorted(samples, points64 + reach, side="right")
    top = 0.5 * nearest**2
    total = np.empty(len(points64))
    for pairs in pairs_of(start, stop):
        distance = (points64[pairs.point] - samples[pairs.sample]) / bandwidth
        total[pairs.points] = pairs.totals(np.exp(top[pairs.point] - 0.5 * distance**2))
    return np.log(total) - top - (LOG_SQRT_2PI + np.log(bandwidth) + np.log(len(samples)))


def reach_of_kernels(
    points: NDArray[np.floating], ascending: NDArray[np.floating], bandwidth: float
) -> NDArray[np.float64]:
    """(point,) values -> (point,) distances from which on a sample adds less than 3e-20 of the density."""
    nearest = _distance_to_nearest(np.asarray(points, np.float64), np.asarray(ascending, np.float64)) / bandwidth
    return np.sqrt(nearest**2 + 2 * NEGLIGIBLE) * (bandwidth * (1 + 1e-9))


def _distance_to_nearest(points: NDArray[np.float64], ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    right = np.searchsorted(ascending, points).clip(max=len(ascending) - 1)
    left = (right - 1).clip(min=0)
    return np.minimum(np.abs(points - ascending[right]), np.abs(points - ascending[left]))
