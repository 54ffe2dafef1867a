"""Order statistics and exact sums of rows that are not sorted: brackets are counted until few values are inside."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.sums import ExactSums

__all__ = ["SELECTED_LENGTHS", "SelectedRows"]

SELECTED_LENGTHS = range(2**10, 2**17)
"""Shorter rows are sorted faster, and too many sums of longer ones are not exact with one grid."""
SAMPLED = 96
MOST_INSIDE = 24
MOST_COUNTS = 6
VALUES_PER_CHECK = 64
VALUES_PER_SUM = 256
# The thresholds of a count, in standard deviations from where the order statistic is expected.
OFFSETS = np.array([-2.2, -0.7, 0.7, 2.2])
BITS_OF_TERM, BITS_OF_SUM = 50, 62  # of the numbers of multiples, which float64 and int64 represent


class SelectedRows:
    """(row, value) values in any order, with the same order statistics and sums as :class:`SortedRows`.

    A few values of a row show roughly where an order statistic lies. Counts of the values below some
    thresholds around it leave few values to sort. A row that resists, because of equal values for
    example, is sorted.
    """

    def __init__(self, values: NDArray[np.float32], scratch: Scratch | None = None) -> None:
        self.values = values
        self._scratch = scratch or Scratch()
        self._sampled: NDArray[np.float32] | None = None
        self._known: dict[int, NDArray[np.float32]] = {}

    @property
    def count(self) -> int:
        """Number of values in a row."""
        return self.values.shape[1]

    def take(self, rows: NDArray[np.intp]) -> SelectedRows:
        """These rows only."""
        return SelectedRows(self.values[rows])

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this index of the sorted row."""
        if position not in self._known:
            # The value before it costs nothing more, and a median asks for it too.
            first = max(0, position - 1)
            self._known[first], self._known[position] = self._select(first, position)
        return self._known[position]

    def _select(self, first: int, last: int) -> NDArray[np.float32]:
        """(2, row) values at these two indices of the sorted row, which are neighbours or the same."""
        if self._sampled is None:
            self._sampled = np.sort(self.values[:, :: max(1, self.count // SAMPLED)], axis=1)
        share, n_sampled = (first + last + 1) / (2 * self.count), self._sampled.shape[1]
        steps = OFFSETS * np.sqrt(n_sampled * share * (1 - share))
        n_rows = len(self.values)
        bounds, counts = np.empty((2, n_rows), np.float32), np.empty((2, n_rows), np.int64)
        _compiled().narrow(self.values, self._sampled, share * n_sampled + steps, first, last, (bounds, counts))
        found, few = np.empty((2, n_rows), np.float32), counts[1] - counts[0] <= MOST_INSIDE
        _compiled().select_inside(self.values, bounds, first - counts[0], few, found)
        if not few.all():
            others = np.flatnonzero(~few)
            found[:, others] = np.sort(self.values[others], axis=1)[:, [first, last]].T
        # With one rank only, both rows of ``found`` would have to be the same.
        return found if last > first else found[[0, 0]]

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) centre -> (row,) median of the distances from it, each distance rounded to float32."""
        values = self._scratch("distances", self.values.shape)
        np.abs(np.subtract(self.values, centre[:, None], out=values), out=values)
        distances, middle = SelectedRows(values), self.count // 2
        upper = distances.at(middle).astype(np.float64)
        return upper if self.count % 2 else (upper + distances.at(middle - 1)) / 2

    def total(self, trimmed: int = 0) -> NDArray[np.float64]:
        """(row,) sum without the ``trimmed`` lowest and the ``trimmed`` highest values, rounded once."""
        if trimmed == 0:
            return self._all_terms().totals()
        ends = np.stack([self.at(trimmed), self.at(self.count - 1 - trimmed)])
        _, exponents = np.frexp(np.abs(ends).max(axis=0).astype(np.float64))
        # Multiples of 2**grid, so fine that few float32 values are none, and so coarse that int64 holds their sum.
        grid = exponents - min(BITS_OF_TERM, BITS_OF_SUM - self.count.bit_length())
        sums, is_exact = np.empty(len(grid), np.int64), np.empty(len(grid), np.bool_)
        _compiled().add_between(self.values, ends, trimmed, np.ldexp(1.5, grid + 52), sums, is_exact)
        totals = np.ldexp(sums.astype(np.float64), grid)
        if not is_exact.all():
            others = np.flatnonzero(~is_exact)
            totals[others] = SortedRows(np.sort(self.values[others], axis=1)).total(trimmed)
        return totals

    def _all_terms(self) -> ExactSums:
        sums = ExactSums(np.abs(self.values).max(axis=1), self.count)
        sums.add_float32(self.values)
        return sums

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""
        squares = ExactSums(np.abs(self.values).max(axis=1).astype(np.float64) ** 2, self.count)
        squares.add_squares(self.values)
        return self._all_terms().fractions(), squares.fractions()


# Loops over slices become vector instructions.


def _narrow(
    values: NDArray[np.float32],
    sampled: NDArray[np.float32],
    positions: NDArray[np.float64],
    first: int,
    last: int,
    found: tuple[NDArray[np.float32], NDArray[np.int64]],
) -> None:
    """(row, value) values, (row, place) some of them sorted -> (2, row) brackets, and the values below their ends.

    The brackets contain the ranks ``first`` and ``last``; ``positions`` are the places of the first thresholds.
    """
    (bounds, counts), (n_rows, n_values), n_sampled = found, values.shape, sampled.shape[1]
    reach = positions[3] - positions[0]
    for row in range(n_rows):
        of_row = values[row]
        low, high, below, above, shift = np.float32(-np.inf), np.float32(np.inf), 0, n_values, 0.0
        thresholds = np.empty(4, np.float32)
        for _ in range(MOST_COUNTS):
            if above - below <= MOST_INSIDE:
                break
            inside = above - below
            for k in range(4):
                if low == -np.inf or high == np.inf:
                    thresholds[k] = sampled[row, min(max(int(positions[k] + shift + 0.5), 0), n_sampled - 1)]
                else:
                    rank = (first + last + 1) / 2 - below + OFFSETS[k] * (3 + np.sqrt(inside) / 2)
                    width = np.float64(high) - np.float64(low)  # which float32 may not hold
                    thresholds[k] = np.float64(low) + width * min(max(rank / inside, 0.0), 1.0)
            t0, t1, t2, t3 = thresholds[0], thresholds[1], thresholds[2], thresholds[3]
            c0 = c1 = c2 = c3 = np.int32(0)
            for i in range(n_values):
                x = of_row[i]
                c0 = np.int32(c0 + (x < t0))
                c1 = np.int32(c1 + (x < t1))
                c2 = np.int32(c2 + (x < t2))
                c3 = np.int32(c3 + (x < t3))
            for threshold, count in ((t0, c0), (t1, c1), (t2, c2), (t3, c3)):
                if below <= count <= first:
                    low, below = threshold, int(count)
                elif last < count < above:
                    high, above = threshold, int(count)
            shift = -reach if low == -np.inf else reach
        bounds[0, row], bounds[1, row], counts[0, row], counts[1, row] = low, high, below, above


def _select_inside(
    values: NDArray[np.float32],
    bounds: NDArray[np.float32],
    places: NDArray[np.int64],
    few: NDArray[np.bool_],
    found: NDArray[np.float32],
) -> None:
    """(row, value) values, (2, row) brackets -> (2, row) the values at two places among those inside.

    Rows that do not have few values inside are left out.
    """
    n_rows, n_values = values.shape
    kept = np.empty(MOST_INSIDE + 1, np.float32)
    kept_bits, all_bits = kept.view(np.int32), values.view(np.int32)
    for row in range(n_rows):
        if not few[row]:
            continue
        low, high, n_kept = bounds[0, row], bounds[1, row], 0
        for start in range(0, n_values, VALUES_PER_CHECK):
            some, bits = values[row, start : start + VALUES_PER_CHECK], all_bits[row, start : start + VALUES_PER_CHECK]
            n_inside = total = np.int32(0)
            if len(some) == VALUES_PER_CHECK:
                for i in range(VALUES_PER_CHECK):
                    inside = (some[i] >= low) & (some[i] < high)
                    n_inside = np.int32(n_inside + inside)
                    total = np.int32(total + (bits[i] if inside else np.int32(0)))
            if len(some) < VALUES_PER_CHECK or n_inside > 1:
                for x in some:
                    kept[n_kept] = x  # without a branch, which the processor would often predict wrongly
                    n_kept += (x >= low) & (x < high)
            else:
                kept_bits[n_kept] = total  # the sum of one value's bits is this value
                n_kept += int(n_inside)
        for i in range(1, n_kept):
            x, place = kept[i], i
            while place > 0 and kept[place - 1] > x:
                kept[place] = kept[place - 1]
                place -= 1
            kept[place] = x
        kept[n_kept] = kept[n_kept - 1]
        found[0, row], found[1, row] = kept[places[row]], kept[places[row] + 1]


def _add_between(
    values: NDArray[np.float32],
    ends: NDArray[np.float32],
    trimmed: int,
    anchors: NDArray[np.float64],
    sums: NDArray[np.int64],
    is_exact: NDArray[np.bool_],
) -> None:
    """(row, value) values, (2, row) lowest and highest values to add -> (row,) sums in units of the grid.

    Adding the anchor rounds a value to a multiple of the grid, whose number is then in the last bits.
    """
    n_values = values.shape[1]
    rounded = np.empty(VALUES_PER_SUM)
    numbers = rounded.view(np.int64)
    for row in range(len(values)):
        low, high, anchor = ends[0, row], ends[1, row], anchors[row]
        until_low = before_high = inexact = total = 0
        rounded[0] = anchor
        zero = numbers[0]
        for start in range(0, n_values, VALUES_PER_SUM):
            some = values[row, start : min(start + VALUES_PER_SUM, n_values)]
            for i in range(len(some)):
                x = some[i]
                inside = (x > low) & (x < high)
                term = np.float64(x) if inside else 0.0
                rounded[i] = term + anchor
                inexact += (rounded[i] - anchor) != term
                until_low += x <= low
                before_high += x < high
            for i in range(len(some)):
                total += numbers[i] - zero
        if low == high:
            until_low, before_high = n_values - trimmed, n_values - trimmed
        rounded[0], rounded[1] = np.float64(low) + anchor, np.float64(high) + anchor
        total += (until_low - trimmed) * (numbers[0] - zero) + (n_values - trimmed - before_high) * (numbers[1] - zero)
        sums[row] = total
        is_exact[row] = inexact == 0 and rounded[0] - anchor == low and rounded[1] - anchor == high


@dataclass(frozen=True)
class _Compiled:
    narrow: Callable[..., None]
    select_inside: Callable[..., None]
    add_between: Callable[..., None]


@cache
def _compiled() -> _Compiled:
    """The loops compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return _Compiled(njit(_narrow), njit(_select_inside), njit(_add_between))
