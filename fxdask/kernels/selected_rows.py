"""Order statistics and exact sums of rows that are not sorted: brackets are counted until few values are inside."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, cached_property
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.order_statistics import SortedRows, row_groups
from fxdask.kernels.sums import ExactSums
from fxdask.sizes import BYTES_PER_SORTED_GROUP

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

    Parameters
    ----------
    values : (row, value)
    together : sequence of int
        Positions that will be asked for, and are selected together at the first question, while a row is in the cache.
    """

    def __init__(self, values: NDArray[np.float32], together: Sequence[int] = ()) -> None:
        self.values = values
        self._together = together
        self._known: dict[int, NDArray[np.float32]] = {}

    @property
    def count(self) -> int:
        """Number of values in a row."""
        return self.values.shape[1]

    @cached_property
    def _some(self) -> NDArray[np.float32]:
        """(row, value) a few values of each row."""
        return self.values[:, :: max(1, self.count // SAMPLED)]

    def take(self, rows: NDArray[np.intp]) -> SelectedRows:
        """These rows only."""
        return SelectedRows(self.values[rows])

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this index of the sorted row."""
        if position not in self._known:
            wanted = {position, *self._together} - self._known.keys()
            # The value before each costs nothing more, and a median asks for it too.
            pairs = np.array([(max(0, last - 1), last) for last in sorted(wanted)])
            for pair, found in zip(pairs.tolist(), self._select(pairs), strict=True):
                self._known |= dict(zip(pair, found, strict=True))
        return self._known[position]

    def _select(self, pairs: NDArray[np.int64], centre: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(pair, 2) ranks, neighbours or equal -> (pair, 2, row) the values there, or their distances from a centre."""
        some = self._some if centre is None else np.abs(self._some - centre[:, None])
        sampled, n_rows = np.sort(some, axis=1), len(self.values)
        share, n_sampled = (pairs.sum(axis=1) + 1) / (2 * self.count), some.shape[1]
        steps = OFFSETS * np.sqrt(n_sampled * share * (1 - share))[:, None]
        found, few = np.empty((len(pairs), 2, n_rows), np.float32), np.empty((len(pairs), n_rows), np.bool_)
        centres = np.empty(0, np.float32) if centre is None else centre
        _compiled().select((self.values, centres), sampled, (share * n_sampled)[:, None] + steps, pairs, (found, few))
        for pair, of_pair, few_inside in zip(pairs, found, few, strict=True):
            for rows, ascending in self._sorted(~few_inside, centre):
                of_pair[:, rows] = ascending[:, pair].T
        return found

    def _sorted(
        self, wanted: NDArray[np.bool_], centre: NDArray[np.float32] | None = None
    ) -> Iterator[tuple[NDArray[np.intp], NDArray[np.float32]]]:
        """(row,) which rows -> some of them at a time, and their sorted values or distances from a centre."""
        found = np.flatnonzero(wanted)
        for some in row_groups(len(found), self.count, BYTES_PER_SORTED_GROUP) if len(found) else ():
            rows = found[some]
            values = self.values[rows]
            if centre is not None:
                np.abs(np.subtract(values, centre[rows, None], out=values), out=values)
            yield rows, np.sort(values, axis=1)

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) centre -> (row,) median of the distances from it, each distance rounded to float32."""
        middle = self.count // 2
        ((lower, upper),) = self._select(np.array([(max(0, middle - 1), middle)]), centre).astype(np.float64)
        return upper if self.count % 2 else (upper + lower) / 2

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
        for rows, ascending in self._sorted(~is_exact):
            totals[rows] = SortedRows(ascending).total(trimmed)
        return totals

    def _all_terms(self) -> ExactSums:
        sums = ExactSums(self._largest(), self.count)
        sums.add_float32(self.values)
        return sums

    def _largest(self) -> NDArray[np.float32]:
        """(row,) largest absolute value, without a copy of the values."""
        return np.maximum(self.values.max(axis=1), -self.values.min(axis=1))

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""
        squares = ExactSums(self._largest().astype(np.float64) ** 2, self.count)
        squares.add_squares(self.values)
        return self._all_terms().fractions(), squares.fractions()


# Loops over slices become vector instructions.


def _select_ranks(
    given: tuple[NDArray[np.float32], NDArray[np.float32]],
    sampled: NDArray[np.float32],
    positions: NDArray[np.float64],
    pairs: NDArray[np.int64],
    results: tuple[NDArray[np.float32], NDArray[np.bool_]],
) -> None:
    """(row, value) values, (row,) centres or none -> (pair, 2, row) values at pairs of ranks, or their distances.

    ``sampled`` are (row, place) some of the values or distances, sorted; ``positions`` are the (pair, 4) places of
    the first thresholds. (pair, row) whether few values were left is false where nothing was found.
    """
    (values, centres), (found, few), n_values = given, results, given[0].shape[1]
    distances = np.empty(n_values if len(centres) else 0, np.float32)
    kept, thresholds = np.empty(MOST_INSIDE + 1, np.float32), np.empty(4, np.float32)
    for row in range(len(values)):
        of_row = values[row]
        if len(centres):
            for i in range(n_values):
                distances[i] = abs(of_row[i] - centres[row])
            of_row = distances
        for pair in range(len(pairs)):
            first, last = pairs[pair]
            low, high, below, above = _narrow(of_row, sampled[row], positions[pair], (first, last), thresholds)
            few[pair, row] = above - below <= MOST_INSIDE
            if few[pair, row]:
                _keep_inside(of_row, low, high, kept)
                found[pair, 0, row], found[pair, 1, row] = kept[first - below], kept[last - below]


def _narrow(
    values: NDArray[np.float32],
    sampled: NDArray[np.float32],
    positions: NDArray[np.float64],
    ranks: tuple[int, int],
    thresholds: NDArray[np.float32],
) -> tuple[np.float32, np.float32, int, int]:
    """(value,) values -> an interval that contains two neighbouring ranks, and the values below each of its ends."""
    (first, last), n_values, n_sampled = ranks, len(values), len(sampled)
    reach, shift = positions[3] - positions[0], 0.0
    low, high, below, above = np.float32(-np.inf), np.float32(np.inf), 0, n_values
    for _ in range(MOST_COUNTS):
        if above - below <= MOST_INSIDE:
            break
        inside = above - below
        for k in range(4):
            if low == -np.inf or high == np.inf:
                thresholds[k] = sampled[min(max(int(positions[k] + shift + 0.5), 0), n_sampled - 1)]
            else:
                rank = (first + last + 1) / 2 - below + OFFSETS[k] * (3 + np.sqrt(inside) / 2)
                width = np.float64(high) - np.float64(low)  # which float32 may not hold
                thresholds[k] = np.float64(low) + width * min(max(rank / inside, 0.0), 1.0)
        t0, t1, t2, t3 = thresholds[0], thresholds[1], thresholds[2], thresholds[3]
        c0 = c1 = c2 = c3 = np.int32(0)
        for i in range(n_values):
            x = values[i]
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
    return low, high, below, above


def _keep_inside(values: NDArray[np.float32], low: np.float32, high: np.float32, kept: NDArray[np.float32]) -> None:
    """(value,) values, an interval that holds few of them -> these few, in rising order."""
    kept_bits, all_bits, n_values, n_kept = kept.view(np.int32), values.view(np.int32), len(values), 0
    for start in range(0, n_values, VALUES_PER_CHECK):
        some, bits = values[start : start + VALUES_PER_CHECK], all_bits[start : start + VALUES_PER_CHECK]
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
    select: Callable[..., None]
    add_between: Callable[..., None]


@cache
def _compiled() -> _Compiled:
    """The loops compiled to machine code on first use."""
    for part in (_narrow, _keep_inside):
        import_module("numba.extending").register_jitable(part)
    njit = import_module("numba").njit(nogil=True, cache=True)
    return _Compiled(njit(_select_ranks), njit(_add_between))
