"""Log densities and normal scores of mixtures: many tables looked up in compiled code, and exact sums.

NumPy reads and writes an array for every step of a look-up; compiled, one pass over the points does
all steps, with the table of one density in the CPU cache. At points that no table covers, the kernels
nearby are summed; far from all samples only the wide normal is left.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
from fxdask.kernels.scratch import Scratch

__all__ = ["MixedLookup", "mixed_log_density", "normal_scores"]


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


class MixedLookup:
    """The tables of several mixtures, concatenated into common arrays."""

    def __init__(self, tables: Sequence[DensityTable]) -> None:
        self.tables = tables
        pieces = np.cumsum([0, *(len(table.row_of_piece) for table in tables)])
        rows = np.cumsum([0, *(len(table.rows) for table in tables)])
        self._rows = np.concatenate([table.rows for table in tables])
        self._row_of_piece = np.concatenate(
            [table.row_of_piece + before for table, before in zip(tables, rows[:-1], strict=True)]
        )
        self._places = np.array(
            [
                (table.origin, table.pieces_per_unit, table.first_piece, score_limit(len(table.ascending)))
                for table in tables
            ]
        )
        self._pieces = np.stack([pieces[:-1], np.diff(pieces) - 1], axis=1)

    def __call__(
        self, points: NDArray[np.float32], scratch: Scratch
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], int]:
        """(density, point) values -> (density, point) log densities and normal scores, and how many were summed.

        The results are overwritten by the next call with the same scratch.
        """
        logs, scores = (scratch(name, points.shape, np.float64) for name in ("log densities", "normal scores"))
        look_up, _ = _compiled()
        n_missing = look_up(points, self._places, self._pieces, (self._row_of_piece, self._rows), (logs, scores))
        if n_missing:
            for index in np.flatnonzero(np.isnan(logs).any(axis=1)).tolist():
                missing = np.flatnonzero(np.isnan(logs[index]))
                found = _sums(points[index, missing], self.tables[index])
                logs[index, missing], scores[index, missing] = found
        return logs, scores, n_missing


def _sums(points: NDArray[np.float32], table: DensityTable) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(point,) values without a cell -> (point,) log densities and normal scores, from the kernels nearby."""
    assert table.wide is not None, "a mixture has a wide normal"
    n_samples, limit = len(table.ascending), score_limit(len(table.ascending))
    logs, counts = np.empty(len(points)), np.empty(len(points))
    _, sum_nearby = _compiled()
    sum_nearby(points, table.ascending, table.bandwidth, (table.wide.location, table.wide.scale), logs, counts)
    logs -= LOG_SQRT_2PI + log(table.bandwidth) + log(n_samples + 1)
    scores = np.clip(ndtri(np.abs(counts) / (n_samples + 1)), -limit, limit)
    return logs, np.copysign(1.0, counts) * scores


def _look_up(
    points: NDArray[np.float32],
    places: NDArray[np.float64],
    pieces: NDArray[np.intp],
    tables: tuple[NDArray[np.intp], NDArray[np.float64]],
    found: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> int:
    """(density, point) values -> log densities, NaN where no cell covers a point, and scores; number of NaN."""
    row_of_piece, rows = tables
    logs, scores = found
    n_missing = 0
    for density in range(len(points)):
        origin, per_unit, start, limit = places[density]
        before, last = pieces[density]
        of_piece = row_of_piece[before : before + last + 1]
        values, log_row, score_row = points[density], logs[density], scores[density]
        for point in range(len(values)):
            position = (values[point] - origin) * per_unit + start
            position = min(max(position, 0.0), float(last))
            piece = int(position)
            row = rows[of_piece[piece]]
            x = position - piece
            log_row[point] = ((row[3] * x + row[2]) * x + row[1]) * x + row[0]
            score = ((row[7] * x + row[6]) * x + row[5]) * x + row[4]
            score_row[point] = min(max(score, -limit), limit)
            n_missing += log_row[point] != log_row[point]
    return n_missing


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
def _compiled() -> tuple[Callable[..., int], Callable[..., None]]:
    """:func:`_look_up` and :func:`_sum_nearby` compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_look_up), njit(_sum_nearby)
