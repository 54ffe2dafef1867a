"""Log densities and normal scores of mixtures of kernels and a wide normal, as sums.

At points that no table covers, the kernels nearby are summed; far from all samples only the wide normal
is left.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module
from math import erfc, log

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fxdask.kernels.density.exact import KERNELS_PER_STEP, LOG_SQRT_2PI, ROOT_HALF, log_density
from fxdask.kernels.density.point_pairs import NEGLIGIBLE
from fxdask.kernels.density.score_table import FAR, score_limit
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.density.wide_normal import WideNormal

__all__ = ["mixed_log_density", "mixed_sums", "normal_scores"]


def mixed_log_density(
    points: NDArray[np.floating], ascending: NDArray[np.float32], bandwidth: float, wide: WideNormal
) -> NDArray[np.float64]:
    """(point,) values, (sample,) ascending values -> (point,) log density of the kernels and the wide normal."""
    n_samples = len(ascending)
    kernels = log_density(points, ascending, bandwidth) + log(n_samples / (n_samples + 1))
    return np.logaddexp(kernels, wide.log_density(np.asarray(points, np.float64)) - log(n_samples + 1))


def normal_scores(
    points: NDArray[np.floating], ascending: NDArray[np.float32], bandwidth: float, wide: WideNormal
) -> NDArray[np.float64]:
    """(point,) values, (sample,) ascending values -> (point,) clipped normal scores, from all kernels."""
    points64, samples = np.asarray(points, np.float64), ascending.astype(np.float64)
    n_samples = len(samples)
    # The smaller share is summed, because one minus a share near one would have lost its digits.
    upper = np.searchsorted(samples, points64) > n_samples // 2
    sign = np.where(upper, -1.0, 1.0)
    share = np.where(upper, wide.share_above(points64), wide.share_below(points64))
    samples_per_step = min(n_samples, KERNELS_PER_STEP)
    points_per_step = max(1, KERNELS_PER_STEP // samples_per_step)
    for start in range(0, len(points64), points_per_step):
        some = slice(start, start + points_per_step)
        for first in range(0, n_samples, samples_per_step):
            distance = points64[some, None] - samples[first : first + samples_per_step]
            distance *= sign[some, None] / bandwidth
            share[some] += ndtr(distance, out=distance).sum(axis=1)
    limit = score_limit(n_samples)
    return sign * np.clip(ndtri(share / (n_samples + 1)), -limit, limit)


def mixed_sums(points: NDArray[np.float32], table: DensityTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(point,) values without a cell -> (point,) log densities and normal scores, from the kernels nearby."""
    assert table.wide is not None, "a mixture has a wide normal"
    n_samples, limit = len(table.ascending), score_limit(len(table.ascending))
    logs, counts = np.empty(len(points)), np.empty(len(points))
    _compiled()(points, table.ascending, table.bandwidth, (table.wide.location, table.wide.scale), logs, counts)
    logs -= LOG_SQRT_2PI + log(table.bandwidth) + log(n_samples + 1)
    scores = np.clip(ndtri(np.abs(counts) / (n_samples + 1)), -limit, limit)
    return logs, np.copysign(1.0, counts) * scores


def _sum_nearby(
    points: NDArray[np.float32],
    ascending: NDArray[np.float32],
    bandwidth: float,
    wide: tuple[float, float],
    logs: NDArray[np.float64],
    counts: NDArray[np.float64],
) -> None:
    """(point,) values -> (point,) log of the sum of all kernels, and the expected number of samples below.

    Where more samples are below than above, it is the number above instead, with a minus sign.
    """
    n_samples = len(ascending)
    location, scale = wide
    for point in range(len(points)):
        z = np.float64(points[point])
        right = np.searchsorted(ascending, points[point])
        nearest = np.inf
        if right < n_samples:
            nearest = (ascending[right] - z) / bandwidth
        if right > 0:
            nearest = min(nearest, (z - ascending[right - 1]) / bandwidth)
        of_wide = (z - location) / scale
        log_wide = -0.5 * of_wide * of_wide - np.log(scale / bandwidth)
        top = max(log_wide, -0.5 * nearest * nearest)
        total = np.exp(log_wide - top)
        sign = 1.0 if 2 * right <= n_samples else -1.0
        count = 0.5 * erfc(-sign * of_wide * ROOT_HALF)
        # The kernels of samples on both sides, outwards until they are negligible; far samples are counted whole.
        index = right
        while index < n_samples:
            distance = (ascending[index] - z) / bandwidth
            exponent = top + 0.5 * distance * distance
            if exponent > NEGLIGIBLE and distance > FAR:
                break
            total += np.exp(-exponent)
            count += 0.5 * erfc(sign * distance * ROOT_HALF)
            index += 1
        if sign < 0:
            count += n_samples - index
        index = right - 1
        while index >= 0:
            distance = (z - ascending[index]) / bandwidth
            exponent = top + 0.5 * distance * distance
            if exponent > NEGLIGIBLE and distance > FAR:
                break
            total += np.exp(-exponent)
            count += 0.5 * erfc(-sign * distance * ROOT_HALF)
            index -= 1
        if sign > 0:
            count += index + 1
        logs[point] = top + np.log(total)
        counts[point] = sign * count


@cache
def _compiled() -> Callable[..., None]:
    """:func:`_sum_nearby` compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_sum_nearby)
