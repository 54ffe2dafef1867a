"""Exact moments of all features from rows as they are stored, without a transposed copy.

The method is that of :mod:`fxdask.kernels.moments`. Here the grids of a feature are the same for all
classes, so that one look at the range of a feature is enough, and neighbouring features are added side
by side.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.moments import SEGMENT, SQUARE_GRIDS, SUM_GRIDS, UNIT, Moments, exact_sums, grids_of, sum_in_units

__all__ = ["moments_of_rows"]

N_LANES = 64
ROWS_PER_TILE = 32
FEATURES_PER_PANEL = 16 * N_LANES
N_GRIDS = SUM_GRIDS + SQUARE_GRIDS
REST = N_GRIDS
N_FIELDS = N_GRIDS + 1
MISSING, LOWEST, HIGHEST = range(3)
ALL_BUT_SIGN = np.uint32(2**31 - 1)
INFINITY_BITS = np.float32(np.inf).view(np.uint32)


def moments_of_rows(rows: NDArray, codes: NDArray[np.integer], n_classes: int) -> Moments:
    """(sample, feature) values of a type that float32 represents, (sample,) class codes -> (class, feature) moments.

    NaN counts as missing. With infinite values the sums are undefined, but ``lowest`` and ``highest`` are infinite.
    """
    rows = np.ascontiguousarray(rows)
    if rows.dtype.kind == "b" or rows.dtype == np.float16 or not rows.dtype.isnative:
        rows = rows.astype(np.float32)
    with np.errstate(all="ignore"):
        return _moments(rows, codes, n_classes)


def _moments(rows: NDArray, codes: NDArray[np.integer], n_classes: int) -> Moments:
    n_features = rows.shape[1]
    bounds = _largest(rows)
    exponents = np.hstack([grids_of(bounds, SUM_GRIDS), grids_of(bounds**2, SQUARE_GRIDS)])
    anchors, per_grid = _in_lanes(np.ldexp(1.5, exponents + 52)), _in_lanes(np.ldexp(1.0, -exponents))
    n_blocks = len(anchors)
    multiples = np.zeros((n_blocks, n_classes, N_GRIDS, N_LANES), np.int64)
    fields = np.zeros((n_blocks, n_classes, N_FIELDS, N_LANES))
    ends = np.zeros((n_classes, 3, n_features), np.float32)
    ends[:, LOWEST], ends[:, HIGHEST] = np.inf, -np.inf
    missing = np.zeros((n_classes, n_features), np.int64)
    inexact = np.zeros((n_blocks, n_classes, N_LANES), bool)
    flat_anchors = anchors.reshape(n_blocks, N_GRIDS * N_LANES)
    flat_fields = fields.reshape(n_blocks, n_classes, N_FIELDS * N_LANES)
    for start in range(0, len(rows), SEGMENT):
        part = slice(start, start + SEGMENT)
        order = np.argsort(codes[part], kind="stable").astype(np.uintp)
        starts = np.searchsorted(codes[part][order], np.arange(n_classes + 1))
        _compiled()[1](rows[part], order, starts, flat_anchors, flat_fields, ends)
        multiples += (fields[:, :, :N_GRIDS] * per_grid[:, None]).astype(np.int64)
        inexact |= fields[:, :, REST] != 0
        missing += ends[:, MISSING].astype(np.int64)
        fields[...], ends[:, MISSING] = 0.0, 0.0
    found = _without_sums(np.bincount(codes.astype(np.intp), minlength=n_classes)[:, None] - missing, ends)
    by_class = multiples.transpose(1, 0, 3, 2).reshape(n_classes, -1, N_GRIDS)[:, :n_features]
    for k in range(n_classes):
        found.sums[k] = sum_in_units(by_class[k, :, :SUM_GRIDS], exponents[:, :SUM_GRIDS] + UNIT)
        found.squares[k] = sum_in_units(by_class[k, :, SUM_GRIDS:], exponents[:, SUM_GRIDS:] + 2 * UNIT)
        for feature in np.flatnonzero(_features(inexact[:, k], n_features)).tolist():
            values = rows[codes == k, feature].astype(np.float32)
            found.sums[k, feature], found.squares[k, feature] = exact_sums(np.where(np.isfinite(values), values, 0))
    return found


def _largest(rows: NDArray) -> NDArray[np.float64]:
    """(feature,) largest absolute value that is not NaN; 0 if there is none."""
    if rows.dtype == np.float32:
        # Without their sign, the bits of float32 have the order of the values, and NaN comes after infinity.
        bits = np.zeros(rows.shape[1], np.uint32)
        _compiled()[0](rows.view(np.uint32), bits)
        if bits.max(initial=0) <= INFINITY_BITS:
            return bits.view(np.float32).astype(np.float64)
    lowest, highest = rows.min(axis=0, initial=0).astype(np.float64), rows.max(axis=0, initial=0).astype(np.float64)
    for feature in np.flatnonzero(np.isnan(lowest)).tolist():
        present = rows[:, feature][~np.isnan(rows[:, feature])]
        lowest[feature], highest[feature] = present.min(initial=0), present.max(initial=0)
    return np.maximum(-lowest, highest)


def _in_lanes(of_grids: NDArray[np.float64]) -> NDArray[np.float64]:
    """(feature, grid) numbers -> (block, grid, lane), the last block filled up with ones."""
    n_features, n_grids = of_grids.shape
    padded = np.ones((-(-n_features // N_LANES) * N_LANES, n_grids))
    padded[:n_features] = of_grids
    return np.ascontiguousarray(padded.reshape(-1, N_LANES, n_grids).transpose(0, 2, 1))


def _features(of_lanes: NDArray, n_features: int) -> NDArray:
    """(block, lane) numbers -> (feature,) without those that fill up the last block."""
    return of_lanes.reshape(-1)[:n_features]


def _without_sums(counts: NDArray[np.int64], ends: NDArray[np.float32]) -> Moments:
    """Counts and ranges of all classes, with sums of zero."""
    zeros = np.zeros(counts.shape, np.int64).astype(object)
    return Moments(
        counts=counts,
        sums=zeros,
        squares=zeros.copy(),
        # Adding 0.0 turns -0.0 into 0.0, because it is arbitrary which of several zeros is the lowest value.
        lowest=ends[:, LOWEST] + np.float32(0),
        highest=ends[:, HIGHEST] + np.float32(0),
    )


def _largest_bits(rows: NDArray[np.uint32], largest: NDArray[np.uint32]) -> None:
    """(sample, feature) bits of float32: raise the (feature,) largest ones without their sign."""
    for sample in range(len(rows)):
        row = rows[sample]
        for feature in range(len(largest)):
            largest[feature] = max(largest[feature], row[feature] & ALL_BUT_SIGN)


def _add_rows(
    rows: NDArray,
    order: NDArray[np.uintp],
    starts: NDArray[np.intp],
    anchors: NDArray[np.float64],
    fields: NDArray[np.float64],
    ends: NDArray[np.float32],
) -> None:
    """(sample, feature) values, (block, grid x lane) anchors: add to the (block, class, field x lane) fields.

    ``order`` are the samples ordered by class, of which class k begins at ``starts[k]``. A tile of rows is first
    copied row by row, because memory is read quickest in long runs; this pass also counts missing values and
    finds the (class, 3, feature) ends. Then each block of features is added, two rows at once, which halves how
    often the fields are loaded and stored. The fields of a class are one array with fixed offsets, so the
    compiler sees that they do not overlap and adds several lanes at once.
    """
    n_features = rows.shape[1]
    tile = np.zeros((ROWS_PER_TILE, FEATURES_PER_PANEL), np.float32)
    for k in range(len(starts) - 1):
        for first in range(starts[k], starts[k + 1], ROWS_PER_TILE):
            n_rows = min(ROWS_PER_TILE, starts[k + 1] - first)
            for left in range(0, n_features, FEATURES_PER_PANEL):
                right = min(left + FEATURES_PER_PANEL, n_features)
                missing, lowest, highest = ends[k, 0, left:right], ends[k, 1, left:right], ends[k, 2, left:right]
                for i in range(n_rows):
                    row, copy = rows[order[first + i], left:right], tile[i]
                    for lane in range(len(row)):
                        value = np.float32(row[lane])
                        copy[lane] = np.float32(0) if np.isnan(value) else value
                        missing[lane] += np.float32(1) if np.isnan(value) else np.float32(0)
                        lowest[lane] = value if value < lowest[lane] else lowest[lane]
                        highest[lane] = value if value > highest[lane] else highest[lane]
                if n_rows % 2:
                    tile[n_rows] = np.float32(0)  # the partner of the last row
                for block in range(left // N_LANES, (right + N_LANES - 1) // N_LANES):
                    anchor, own, begin = anchors[block], fields[block, k], block * N_LANES - left
                    for i in range(0, n_rows, 2):
                        row, partner = tile[i, begin : begin + N_LANES], tile[i + 1, begin : begin + N_LANES]
                        for lane in range(N_LANES):
                            x, y = np.float64(row[lane]), np.float64(partner[lane])
                            grid, finer = anchor[lane], anchor[N_LANES + lane]
                            on_grid, other_on_grid = (x + grid) - grid, (y + grid) - grid
                            own[lane] += on_grid + other_on_grid
                            left_x, left_y = x - on_grid, y - other_on_grid
                            on_grid, other_on_grid = (left_x + finer) - finer, (left_y + finer) - finer
                            own[N_LANES + lane] += on_grid + other_on_grid
                            rest = abs(left_x - on_grid) + abs(left_y - other_on_grid)
                            left_x, left_y = x * x, y * y
                            grid = anchor[2 * N_LANES + lane]
                            on_grid, other_on_grid = (left_x + grid) - grid, (left_y + grid) - grid
                            own[2 * N_LANES + lane] += on_grid + other_on_grid
                            left_x, left_y = left_x - on_grid, left_y - other_on_grid
                            grid = anchor[3 * N_LANES + lane]
                            on_grid, other_on_grid = (left_x + grid) - grid, (left_y + grid) - grid
                            own[3 * N_LANES + lane] += on_grid + other_on_grid
                            left_x, left_y = left_x - on_grid, left_y - other_on_grid
                            grid = anchor[4 * N_LANES + lane]
                            on_grid, other_on_grid = (left_x + grid) - grid, (left_y + grid) - grid
                            own[4 * N_LANES + lane] += on_grid + other_on_grid
                            own[5 * N_LANES + lane] += rest + abs(left_x - on_grid) + abs(left_y - other_on_grid)


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """Both loops compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_largest_bits), njit(_add_rows)
