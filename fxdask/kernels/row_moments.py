"""Exact moments of all features from rows as they are stored, without a transposed copy.

The method is that of :mod:`fxdask.kernels.moments`. Here the grids of a feature are the same for all
classes, so that one look at the range of a feature is enough, and neighbouring features are added side
by side.

The few values of a tile of rows need no grids, unless some are smaller than 2^-24 of the largest: float64
adds them exactly, and their squares in two parts, whose digits do not reach far. Only the sums of a tile
are split at the grids.
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
N_SUMS = 3
"""Sums of a tile: of the values, and of both parts of their squares."""
GRIDS_OF_SUMS = ((0, 0), (0, 1), (1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4))
"""(sum of a tile, grid) pairs: the values have the first two grids, their squares the other three."""
SMALLEST_SHARE = -24
LAST_BIT = -46
"""Of the first part of a square, relative to the largest one; the smallest values and 32 rows allow -50 to -45."""
MISSING, LOWEST, HIGHEST = range(3)
ALL_BITS = np.uint32(2**32 - 1)
ALL_BUT_SIGN = np.uint32(2**31 - 1)
ONE = np.uint32(1)
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
    size = np.frexp(bounds)[1]
    splits = _in_lanes(np.ldexp(1.5, 2 * size + LAST_BIT + 52)[:, None])[:, 0]
    # Bits of positive floats have their order. One less, because zero, which may always be added, then is the largest.
    fewest_bits = np.maximum(np.ldexp(1.0, size + SMALLEST_SHARE).astype(np.float32).view(np.uint32), 1) - np.uint32(1)
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
        n_tiles = len(order) // ROWS_PER_TILE + n_classes
        uneven = np.zeros((n_tiles, n_blocks), bool)
        _, add_rows, add_uneven = _compiled()
        add_rows(rows[part], (order, starts), (flat_anchors, splits, fewest_bits), flat_fields, ends, uneven)
        if uneven.any():
            add_uneven(rows[part], (order, starts), flat_anchors, flat_fields, uneven)
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


def _add_rows(  # noqa: PLR0912 - one compiled loop; calls between compiled functions would need numba at import
    rows: NDArray,
    order_and_starts: tuple[NDArray[np.uintp], NDArray[np.intp]],
    grids: tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.uint32]],
    fields: NDArray[np.float64],
    ends: NDArray[np.float32],
    uneven: NDArray[np.bool_],
) -> None:
    """(sample, feature) values: add to the (block, class, field x lane) fields and the (class, 3, feature) ends.

    The samples are ordered by class, of which class k begins at ``starts[k]``. A tile of rows is first copied
    row by row, because memory is read quickest in long runs; this pass also counts missing values and finds
    the ends. Then each block of features is added, four rows at once, so that sums are loaded and stored less
    often. The sums of a tile are one array with fixed offsets, so the compiler sees that they do not overlap
    and adds several lanes at once. Tiles and blocks whose values are too uneven are marked, not added.
    """
    (order, starts), (anchors, splits, fewest_bits) = order_and_starts, grids
    n_features, n_tiles = rows.shape[1], 0
    tile, sums = np.zeros((ROWS_PER_TILE, FEATURES_PER_PANEL), np.float32), np.empty(N_SUMS * N_LANES)
    smallest = np.empty(FEATURES_PER_PANEL, np.uint32)
    for k in range(len(starts) - 1):
        for first in range(starts[k], starts[k + 1], ROWS_PER_TILE):
            n_rows = min(ROWS_PER_TILE, starts[k + 1] - first)
            for left in range(0, n_features, FEATURES_PER_PANEL):
                right = min(left + FEATURES_PER_PANEL, n_features)
                missing, lowest, highest = ends[k, 0, left:right], ends[k, 1, left:right], ends[k, 2, left:right]
                smallest[:] = ALL_BITS
                for i in range(n_rows):
                    row, copy = rows[order[first + i], left:right], tile[i]
                    bits = copy.view(np.uint32)
                    for lane in range(len(row)):
                        value = np.float32(row[lane])
                        copy[lane] = np.float32(0) if np.isnan(value) else value
                        missing[lane] += np.float32(1) if np.isnan(value) else np.float32(0)
                        lowest[lane] = value if value < lowest[lane] else lowest[lane]
                        highest[lane] = value if value > highest[lane] else highest[lane]
                    for lane in range(len(row)):
                        smallest[lane] = min(smallest[lane], np.uint32((bits[lane] & ALL_BUT_SIGN) - ONE))
                for i in range(n_rows, (n_rows + 3) // 4 * 4):
                    tile[i] = np.float32(0)  # partners of the last rows
                for block in range(left // N_LANES, (right + N_LANES - 1) // N_LANES):
                    begin, split = block * N_LANES - left, splits[block]
                    n_small = 0
                    for lane in range(min(N_LANES, right - left - begin)):
                        n_small += smallest[begin + lane] < fewest_bits[left + begin + lane]
                    if n_small:
                        uneven[n_tiles, block] = True
                        continue
                    sums[:] = 0.0
                    for i in range(0, n_rows, 4):
                        one, two = tile[i, begin : begin + N_LANES], tile[i + 1, begin : begin + N_LANES]
                        three, four = tile[i + 2, begin : begin + N_LANES], tile[i + 3, begin : begin + N_LANES]
                        for lane in range(N_LANES):
                            w, x = np.float64(one[lane]), np.float64(two[lane])
                            y, z = np.float64(three[lane]), np.float64(four[lane])
                            sums[lane] += (w + x) + (y + z)
                            w, x, y, z, at = w * w, x * x, y * y, z * z, split[lane]
                            high_w, high_x, high_y, high_z = (w + at) - at, (x + at) - at, (y + at) - at, (z + at) - at
                            sums[N_LANES + lane] += (high_w + high_x) + (high_y + high_z)
                            sums[2 * N_LANES + lane] += ((w - high_w) + (x - high_x)) + ((y - high_y) + (z - high_z))
                    anchor, own = anchors[block], fields[block, k]
                    for term, grid in GRIDS_OF_SUMS:
                        for lane in range(N_LANES):
                            at = anchor[grid * N_LANES + lane]
                            on_grid = (sums[term * N_LANES + lane] + at) - at
                            own[grid * N_LANES + lane] += on_grid
                            sums[term * N_LANES + lane] -= on_grid
                    for lane in range(N_LANES):
                        rest = abs(sums[lane]) + abs(sums[N_LANES + lane]) + abs(sums[2 * N_LANES + lane])
                        own[REST * N_LANES + lane] += rest
            n_tiles += 1


def _add_uneven(
    rows: NDArray,
    order_and_starts: tuple[NDArray[np.uintp], NDArray[np.intp]],
    anchors: NDArray[np.float64],
    fields: NDArray[np.float64],
    uneven: NDArray[np.bool_],
) -> None:
    """(sample, feature) values of very different size: add those of the marked tiles and blocks, each to the grids."""
    order, starts = order_and_starts
    n_tiles = 0
    for k in range(len(starts) - 1):
        for first in range(starts[k], starts[k + 1], ROWS_PER_TILE):
            for block in np.flatnonzero(uneven[n_tiles]):
                anchor, own = anchors[block], fields[block, k]
                for i in range(first, min(first + ROWS_PER_TILE, starts[k + 1])):
                    some = rows[order[i], block * N_LANES : (block + 1) * N_LANES]
                    for lane in range(len(some)):
                        raw = np.float32(some[lane])
                        value = np.float64(0) if np.isnan(raw) else np.float64(raw)
                        left_over, rest = value, np.float64(0)
                        for grid in range(N_GRIDS):
                            if grid == SUM_GRIDS:
                                left_over, rest = value * value, abs(left_over)
                            at = anchor[grid * N_LANES + lane]
                            on_grid = (left_over + at) - at
                            own[grid * N_LANES + lane] += on_grid
                            left_over -= on_grid
                        own[REST * N_LANES + lane] += rest + abs(left_over)
            n_tiles += 1


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None], Callable[..., None]]:
    """The loops compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_largest_bits), njit(_add_rows), njit(_add_uneven)
