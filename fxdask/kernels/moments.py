"""Exact sums and sums of squares of every class at every column, which can be added in any order.

A sum is a whole number of the smallest float32, 2^-149, and a sum of squares one of 2^-298: Python's
integers, which never round. So the result depends neither on how the samples were split nor on their
order.

The compiled loop does not touch integers of that size. As in :mod:`fxdask.kernels.sums`, a term is
rounded to a multiple of a coarse grid, and the remainder to a multiple of a finer one. The grids are
chosen so that float64 adds all multiples of a segment without rounding. Two grids hold a float32 down to
2^-47 of the largest, three grids its square down to 2^-29; a column with smaller values is summed with
integers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib import import_module
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.order_statistics import row_groups
from fxdask.kernels.projection import ValuesByClass
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import SPREAD_SOURCES, ZERO, ClassStatistics

__all__ = [
    "SEGMENT",
    "SQUARE_GRIDS",
    "SUM_GRIDS",
    "UNIT",
    "Exact",
    "Moments",
    "class_moments",
    "exact_sums",
    "grids_of",
    "merge_moments",
    "moment_statistics",
    "sum_in_units",
]

UNIT = 149
"""A sum is a whole number of 2^-UNIT, a sum of squares one of 2^-(2 UNIT)."""

N_LANES = 64
SEGMENT = 2**15
# The integer sums of this many segments fit into 64 bits.
MOST_VALUES = 2**11 * SEGMENT
SUM_GRIDS, SQUARE_GRIDS = 2, 3
BYTES_PER_ROW_GROUP = 2**22
FLOAT32_DIGITS = 24

Exact = NDArray[np.object_]
"""Python's integers."""


@dataclass(frozen=True, kw_only=True)
class Moments:
    """(class, column) counts, exact sums and ranges of values that are not NaN."""

    counts: NDArray[np.int64]
    sums: Exact
    """Python integers, in units of 2^-149."""
    squares: Exact
    """Python integers, in units of 2^-298."""
    lowest: NDArray[np.float32]
    """Inf where a class has no value."""
    highest: NDArray[np.float32]
    """-inf where a class has no value."""

    @classmethod
    def joined(cls, parts: Sequence[Moments]) -> Moments:
        """Moments of the same samples at different columns -> those of all columns."""
        named = {field.name: [getattr(part, field.name) for part in parts] for field in fields(cls)}
        return cls(**{name: np.concatenate(arrays, axis=1) for name, arrays in named.items()})


def merge_moments(parts: Sequence[Moments]) -> Moments:
    """Moments of disjoint samples of the same columns, in any order -> their moments together."""
    total = parts[0]
    for part in parts[1:]:
        total = Moments(
            counts=total.counts + part.counts,
            sums=total.sums + part.sums,
            squares=total.squares + part.squares,
            lowest=np.minimum(total.lowest, part.lowest),
            highest=np.maximum(total.highest, part.highest),
        )
    return total


def class_moments(values: ValuesByClass, scratch: Scratch | None = None) -> Moments:
    """(column, sample) values, NaN where one is missing -> (class, column) moments."""
    scratch = scratch or Scratch()
    shape = (values.n_classes, values.n_nodes)
    result = _no_moments(shape)
    for k in range(shape[0]):
        count = values.count(k)
        for rows in row_groups(shape[1], count, BYTES_PER_ROW_GROUP) if count else ():
            gathered = values.gather(k, rows, scratch("class values", (rows.stop - rows.start, count)))
            _put(result, k, rows, gathered)
    return result


def _no_moments(shape: tuple[int, int]) -> Moments:
    sums, squares = np.empty(shape, object), np.empty(shape, object)
    sums[...], squares[...] = 0, 0
    return Moments(
        counts=np.zeros(shape, np.int64),
        sums=sums,
        squares=squares,
        lowest=np.full(shape, np.inf, np.float32),
        highest=np.full(shape, -np.inf, np.float32),
    )


def _put(result: Moments, k: int, rows: slice, values: NDArray[np.float32]) -> None:
    """(row, value) values of one class at these columns: store their moments; NaN is overwritten by 0."""
    lowest, highest = np.minimum.reduce(values, axis=1), np.maximum.reduce(values, axis=1)
    result.counts[k, rows] = values.shape[1]
    for row in np.flatnonzero(np.isnan(lowest)).tolist():
        missing = np.isnan(values[row])
        result.counts[k, rows.start + row] -= np.count_nonzero(missing)
        lowest[row] = np.min(values[row], where=~missing, initial=np.inf)
        highest[row] = np.max(values[row], where=~missing, initial=-np.inf)
        values[row, missing] = 0.0
    # Adding 0.0 turns -0.0 into 0.0, because it is arbitrary which of several zeros is the lowest value.
    result.lowest[k, rows], result.highest[k, rows] = lowest + np.float32(0), highest + np.float32(0)
    bounds = np.where(lowest <= highest, np.maximum(np.abs(lowest), np.abs(highest)), 0).astype(np.float64)
    exponents = np.hstack([grids_of(bounds, SUM_GRIDS), grids_of(bounds**2, SQUARE_GRIDS)])
    anchors, per_grid = np.ldexp(1.5, exponents + 52), np.ldexp(1.0, -exponents)
    for start in range(0, values.shape[1], MOST_VALUES):
        piece = values[:, start : start + MOST_VALUES]
        multiples = np.zeros(exponents.shape, np.int64)
        inexact = np.zeros(len(values), bool)
        _compiled_add_multiples()(piece, anchors, per_grid, multiples, inexact)
        sums = sum_in_units(multiples[:, :SUM_GRIDS], exponents[:, :SUM_GRIDS] + UNIT)
        squares = sum_in_units(multiples[:, SUM_GRIDS:], exponents[:, SUM_GRIDS:] + 2 * UNIT)
        for row in np.flatnonzero(inexact).tolist():
            sums[row], squares[row] = exact_sums(piece[row])
        result.sums[k, rows] += sums
        result.squares[k, rows] += squares


def grids_of(bounds: NDArray[np.float64], n_grids: int) -> NDArray[np.int64]:
    """(row,) largest absolute term -> (row, grid) exponents of the spacings of the grids, coarse first."""
    found = []
    for _ in range(n_grids):
        # Anchor and bound as in ExactSums: a whole segment of terms stays between two powers of two.
        found.append(np.frexp(SEGMENT * bounds)[1].astype(np.int64) + 1 - 52)
        bounds = np.ldexp(0.5, found[-1])
    return np.stack(found, axis=1)


def sum_in_units(multiples: NDArray[np.int64], exponents: NDArray[np.int64]) -> Exact:
    """(row, grid) multiples of 2^exponent -> (row,) their exact sums, which are whole numbers."""
    left, right = np.maximum(exponents, 0).astype(object), np.maximum(-exponents, 0).astype(object)
    return ((multiples.astype(object) << left) >> right).sum(axis=1)


def exact_sums(values: NDArray[np.float32]) -> tuple[int, int]:
    """(value,) values -> exact sum and sum of squares in units, from the sums of all values of one exponent."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    digits = np.ldexp(mantissa, FLOAT32_DIGITS).astype(np.int64)
    total = squares = 0
    for one in np.unique(exponent).tolist():
        of_one, shift = digits[exponent == one], one - FLOAT32_DIGITS + UNIT
        high, low = of_one >> 12, of_one & (2**12 - 1)
        square = (int((high * high).sum()) << 24) + (int((high * low).sum()) << 13) + int((low * low).sum())
        total += _shifted(int(of_one.sum()), shift)
        squares += _shifted(square, 2 * shift)
    return total, squares


def _shifted(number: int, shift: int) -> int:
    return number << shift if shift >= 0 else number >> -shift


def _add_multiples(
    values: NDArray[np.float32],
    anchors: NDArray[np.float64],
    per_grid: NDArray[np.float64],
    multiples: NDArray[np.int64],
    inexact: NDArray[np.bool_],
) -> None:
    """(row, value), (row, grid) anchors -> (row, grid) sums in multiples of each grid; a row that needs more is marked.

    A lane is one of 64 sums side by side, so that the compiler can add several values at once.
    """
    n_values = values.shape[1]
    s0, s1, q0, q1, q2, rest = (
        np.empty(N_LANES),
        np.empty(N_LANES),
        np.empty(N_LANES),
        np.empty(N_LANES),
        np.empty(N_LANES),
        np.empty(N_LANES),
    )
    piece = np.zeros(N_LANES, np.float32)
    for row in range(len(values)):
        a0, a1, b0, b1, b2 = anchors[row, 0], anchors[row, 1], anchors[row, 2], anchors[row, 3], anchors[row, 4]
        for first in range(0, n_values, SEGMENT):
            s0[:], s1[:], q0[:], q1[:], q2[:], rest[:] = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
            last = min(n_values, first + SEGMENT)
            for start in range(first, last, N_LANES):
                if start + N_LANES <= last:
                    lanes = values[row, start : start + N_LANES]
                else:
                    piece[:] = 0.0
                    # A copy of a slice would compile for seconds: the compiler adds checks of shapes.
                    for lane in range(last - start):
                        piece[lane] = values[row, start + lane]
                    lanes = piece
                for lane in range(N_LANES):
                    x = np.float64(lanes[lane])
                    multiple = (x + a0) - a0
                    s0[lane] += multiple
                    left = x - multiple
                    multiple = (left + a1) - a1
                    s1[lane] += multiple
                    rest[lane] += abs(left - multiple)
                    left = x * x
                    multiple = (left + b0) - b0
                    q0[lane] += multiple
                    left -= multiple
                    multiple = (left + b1) - b1
                    q1[lane] += multiple
                    left -= multiple
                    multiple = (left + b2) - b2
                    q2[lane] += multiple
                    rest[lane] += abs(left - multiple)
            for grid, of_grid in enumerate((s0, s1, q0, q1, q2)):
                multiples[row, grid] += np.int64(of_grid.sum() * per_grid[row, grid])
            inexact[row] |= rest.max() > 0


@cache
def _compiled_add_multiples() -> Callable[..., None]:
    """The loop compiled to machine code on first use: a nanosecond a value, a tenth of the time of NumPy's calls."""
    return import_module("numba").njit(nogil=True, cache=True)(_add_multiples)


def moment_statistics(moments: Moments, tolerance: NDArray[np.float64]) -> ClassStatistics:
    """(class, column) moments and tolerance -> mean and standard deviation, with the bits that sorted values give.

    A deviation within the tolerance is exactly 0.
    """
    result = ClassStatistics.empty(*moments.counts.shape)
    for at in np.ndindex(moments.counts.shape):
        n, total, square = int(moments.counts[at]), moments.sums[at], moments.squares[at]
        # Python rounds a quotient of two integers once, however long they are.
        result.location[at] = (total / 2**UNIT) / n if n else 0.0
        result.spread[at] = sqrt((n * square - total * total) / (n * n * 2 ** (2 * UNIT))) if n else 0.0
    result.source[...] = SPREAD_SOURCES.index("std")
    flat = result.spread <= tolerance
    result.spread[flat], result.source[flat] = 0.0, ZERO
    return result
