"""Exact order statistics and sums of rows that do not fit into memory, from one pass over their values.

One pass over all values counts those below each bracket, sums those between the quartiles' brackets,
and keeps only the values inside a bracket. From these the order statistics and the sums are known to
the last bit. If a bracket does not contain its order statistic, the row is marked as missed and must
be repeated. Where brackets would hold most of the values, all of them are kept instead.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.brackets import Brackets
from fxdask.kernels.order_statistics import Ordered, SortedRows, row_groups
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.sums import ExactSums

__all__ = ["BracketedRows", "StreamedRows", "WholeRows"]

BYTES_PER_ROW_GROUP = 2**20


class StreamedRows:
    """(row, value) values of one class that arrive in pieces; only those inside brackets are kept."""

    def __init__(
        self, brackets: Brackets, count: int, *, trimmed_sums: bool, moments: bool, bounds: NDArray[np.float64]
    ) -> None:
        self.count = count
        self.brackets = brackets
        self.edges = brackets.edges
        n_rows = len(self.edges)
        self.below = np.zeros(self.edges.shape, np.int64)  # values less than each edge
        self.upto = np.zeros(self.edges.shape, np.int64)  # values at most each edge
        self.kept = np.empty((n_rows, brackets.room), np.float32)
        self.filled = np.zeros(n_rows, np.int64)
        self.missed = np.zeros(n_rows, bool)
        self.without_moments = np.zeros(n_rows, bool)  # rows whose moments were requested but not summed
        low, high = brackets.inner
        self.inner_sums = ExactSums(np.maximum(np.abs(low), np.abs(high)), count) if trimmed_sums else None
        self.sums = ExactSums(bounds, count) if moments else None
        self.squares = ExactSums(bounds**2, count) if moments else None

    def absorb(self, rows: slice, values: NDArray[np.float32]) -> None:
        """(row, value) next values of these rows, each row sorted: count, keep and sum them."""
        for row, of_row in zip(range(*rows.indices(len(self.edges))), values, strict=True):
            self._count_and_keep(row, of_row)
        if self.inner_sums is not None:
            low, high = (ends[rows][:, None] for ends in self.brackets.inner)
            self.inner_sums.add_float32(np.clip(values, low, high), rows)
        if self.sums is not None and self.squares is not None:
            self.sums.add_float32(values, rows)
            self.squares.add_squares(values, rows)

    def _count_and_keep(self, row: int, values: NDArray[np.float32]) -> None:
        """Count the sorted values at every edge, and keep those strictly inside the intervals.

        Values equal to an edge are only counted. A value that many samples share is likely an edge,
        because the probes contain it, so its repeats fill no buffer.
        """
        edges = self.edges[row]
        below, upto = values.searchsorted(edges, "left"), values.searchsorted(edges, "right")
        self.below[row] += below
        self.upto[row] += upto
        for first, last in zip(upto[0::2].tolist(), below[1::2].tolist(), strict=True):
            if last > first:
                start = self.filled[row]
                stop = start + last - first
                if stop > self.kept.shape[1]:
                    self.missed[row] = True
                    return
                self.kept[row, start:stop] = values[first:last]
                self.filled[row] = stop

    def settle(self) -> BracketedRows:
        """Sort the kept values after the last piece, and return the rows for queries."""
        slots = np.arange(self.kept.shape[1])
        for rows in row_groups(*self.kept.shape, BYTES_PER_ROW_GROUP):
            kept = self.kept[rows]
            np.copyto(kept, np.inf, where=slots >= self.filled[rows, None])
            kept.sort(axis=1)
        return BracketedRows(self, np.arange(len(self.kept)))


class WholeRows:
    """(row, value) values of one class that arrive in pieces and are all kept, for classes without brackets."""

    def __init__(self, n_rows: int, count: int) -> None:
        self.missed = np.zeros(n_rows, bool)
        self.without_moments = np.zeros(n_rows, bool)
        self._values = np.empty((n_rows, count), np.float32)
        self._filled = 0

    def absorb(self, values: ColumnValues, k: int) -> None:
        """(row, column) next values of all classes: keep those of class k."""
        filled = self._filled + values.count(k)
        values.gather(k, out=self._values[:, self._filled : filled])
        self._filled = filled

    def groups(self) -> Iterator[tuple[slice, Ordered]]:
        """Rows and their sorted values; few rows at a time, so that they stay in the CPU cache."""
        for rows in row_groups(*self._values.shape, BYTES_PER_ROW_GROUP):
            self._values[rows].sort(axis=1)
            yield rows, SortedRows(self._values[rows])


@dataclass(frozen=True)
class BracketedRows:
    """Order statistics and sums of some of the rows; a row whose brackets cannot answer is marked as missed."""

    stream: StreamedRows
    rows: NDArray[np.intp]

    @property
    def missed(self) -> NDArray[np.bool_]:
        """(row,) whether a bracket could not answer, of all rows of the stream."""
        return self.stream.missed

    @property
    def without_moments(self) -> NDArray[np.bool_]:
        """(row,) whether moments were requested but not summed, of all rows of the stream."""
        return self.stream.without_moments

    def groups(self) -> Iterator[tuple[slice, Ordered]]:
        """Few rows at a time, so that their kept values stay in the CPU cache."""
        for rows in row_groups(len(self.rows), self.stream.kept.shape[1], BYTES_PER_ROW_GROUP):
            yield rows, replace(self, rows=self.rows[rows])

    @property
    def count(self) -> int:
        """Number of values in a row."""
        return self.stream.count

    def take(self, rows: NDArray[np.intp]) -> BracketedRows:
        """These rows only."""
        return replace(self, rows=self.rows[rows])

    def _mark_missed(self, which: NDArray[np.bool_]) -> None:
        """(row,) whether the brackets cannot answer."""
        self.stream.missed[self.rows[which]] = True

    def _kept_before(self, position: NDArray[np.int64] | int) -> NDArray[np.int64]:
        """(row,) index of the sorted row -> (row,) number of kept values before it."""
        below, upto = self.stream.below[self.rows, 1::2], self.stream.upto[self.rows, 0::2]
        return (np.minimum(below, np.reshape(position, (-1, 1))) - upto).clip(0).sum(axis=1)

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this index of the sorted row."""
        stream, rows = self.stream, self.rows
        edges, below, upto = stream.edges[rows], stream.below[rows], stream.upto[rows]
        passed = np.count_nonzero(upto <= position, axis=1)
        edge = np.minimum(passed, edges.shape[1] - 1)
        at_edge = (passed == edge) & (_of_each(below, edge) <= position)
        values = np.where(at_edge, _of_each(edges, edge), np.float32(np.nan))
        inside = ~at_edge & (passed % 2 == 1) & ~stream.missed[rows]
        values[inside] = stream.kept[rows[inside], self._kept_before(position)[inside]]
        self._mark_missed(~(at_edge | inside))
        return values

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) centre -> (row,) median of the distances from it, each distance rounded to float32."""
        middle = self.count // 2
        if self.count % 2:
            return self._distances_at(centre, [middle])[0]
        lower, upper = self._distances_at(centre, [middle - 1, middle])
        return (lower + upper) / 2

    def _distances_at(self, centre: NDArray[np.float32], positions: list[int]) -> list[NDArray[np.float64]]:
        """(row,) centre -> the (row,) distances at these indices of the sorted distances.

        The kept values are known one by one. The rest is known in groups: values equal to an edge,
        and values in the gap between two intervals. Of a gap the count is known, and that its
        distances lie between those of its two ends. So an answer is certain if it is not in a gap,
        and if no gap has distances both below and above it.
        """
        stream, rows = self.stream, self.rows
        edges, n_equal = stream.edges[rows], stream.upto[rows] - stream.below[rows]
        edge_distances = np.abs(edges - centre[:, None])
        gap_counts, nearest, farthest = self._gaps(edge_distances)
        kept = np.abs(stream.kept[rows] - centre[:, None])
        kept.sort(axis=1)
        # A gap is sorted by its far end, and before equal distances, as none of its values is farther.
        distances = np.concatenate([farthest, edge_distances], axis=1)
        weights = np.concatenate([gap_counts, np.where(_differs_from_previous(edges), n_equal, 0)], axis=1)
        order = np.argsort(distances, axis=1, kind="stable")
        distances, weights = (np.take_along_axis(table, order, axis=1) for table in (distances, weights))
        before = np.cumsum(weights, axis=1) - weights
        first = before + [own.searchsorted(special) for own, special in zip(kept, distances, strict=True)]
        uncertain = stream.missed[rows] | np.isnan(centre)
        answers = []
        for position in positions:
            passed = np.count_nonzero(first + weights <= position, axis=1)
            group = np.minimum(passed, first.shape[1] - 1)
            special = (passed == group) & (_of_each(first, group) <= position)
            n_special = _of_each(before, group) + np.where(passed == group, 0, _of_each(weights, group))
            own = _of_each(kept, (position - n_special).clip(0, kept.shape[1] - 1))
            distance = np.where(special, _of_each(distances, group), own)
            cut = (gap_counts > 0) & (nearest < distance[:, None]) & (distance[:, None] < farthest)
            uncertain |= cut.any(axis=1) | (special & (_of_each(order, group) < gap_counts.shape[1]))
            answers.append(distance)
        self._mark_missed(uncertain)
        return [np.where(uncertain, np.nan, distance.astype(np.float64)) for distance in answers]

    def _gaps(self, edge_distances: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray, NDArray]:
        """(row, edge) distances -> (row, gap) numbers of values, and distances of the near and the far end."""
        below, upto = self.stream.below[self.rows], self.stream.upto[self.rows]
        starts = np.pad(upto[:, 1::2], ((0, 0), (1, 0)))
        stops = np.pad(below[:, 0::2], ((0, 0), (0, 1)), constant_values=self.count)
        ends = np.pad(edge_distances, ((0, 0), (1, 1)), constant_values=np.inf).reshape(len(below), -1, 2)
        return stops - starts, ends.min(axis=2), ends.max(axis=2)

    def total(self, trimmed: int = 0) -> NDArray[np.float64]:
        """(row,) sum without the ``trimmed`` lowest and the ``trimmed`` highest values, rounded once."""
        terms = np.concatenate(self._trimmed_terms(trimmed) if trimmed else self._all_terms(), axis=1)
        terms[self.stream.missed[self.rows]] = np.nan
        return np.array([math.fsum(of_row) for of_row in terms.tolist()])

    def _all_terms(self) -> list[NDArray[np.float64]]:
        """(row, term) numbers whose exact sums are the sums of all values."""
        if self.stream.sums is not None:
            return [self.stream.sums.parts(self.rows)]
        return self._terms(np.zeros(len(self.rows), np.int64), np.full(len(self.rows), self.count))

    def _trimmed_terms(self, trimmed: int) -> list[NDArray[np.float64]]:
        """(row, term) terms of all values between the quartiles' intervals, and of the untrimmed ones inside them."""
        stream, rows, last = self.stream, self.rows, self.count - trimmed
        if stream.inner_sums is None:
            self._mark_missed(np.ones(len(rows), bool))
            return [np.zeros((len(rows), 1))]
        edges, below, upto = stream.edges[rows], stream.below[rows], stream.upto[rows]
        low, high = (ends[rows].astype(np.float64) for ends in stream.brackets.inner)
        # The upper edge of the lower quartile's interval, and the lower edge of the upper quartile's.
        lower = edges.shape[1] - 1 - np.argmax(edges[:, ::-1] == low[:, None], axis=1)
        upper = np.argmax(edges == high[:, None], axis=1)
        n_low, n_below_high = _of_each(upto, lower), _of_each(below, upper)
        apart = (low != 0) | (high != 0)
        holds = (_of_each(below, lower - 1) <= trimmed) & (trimmed < n_low) & (n_below_high < last)
        holds &= last <= _of_each(upto, np.minimum(upper + 1, edges.shape[1] - 1))
        self._mark_missed(apart & ~holds)
        between = [stream.inner_sums.parts(rows), *_times(-n_low, low), *_times(n_below_high - self.count, high)]
        # Without a gap both quartiles are in one interval, whose values are all known.
        return [
            *(np.where(apart[:, None], part, 0) for part in between),
            *self._terms(np.full(len(rows), trimmed), np.where(apart, n_low, last)),
            *self._terms(np.where(apart, n_below_high, last), np.full(len(rows), last)),
        ]

    def _terms(self, first: NDArray[np.int64], last: NDArray[np.int64]) -> list[NDArray[np.float64]]:
        """(row,) indices -> (row, term) numbers whose exact sums are those of the sorted values ``[first:last]``."""
        stream, rows = self.stream, self.rows
        edges, below, upto = stream.edges[rows], stream.below[rows], stream.upto[rows]
        counted = np.isfinite(edges) & _differs_from_previous(edges)
        equal = (np.minimum(upto, last[:, None]) - np.maximum(below, first[:, None])).clip(0)
        equal[~counted] = 0
        begin, end = self._kept_before(first), self._kept_before(last)
        self._mark_missed(equal.sum(axis=1) + end - begin != last - first)
        end = np.where(stream.missed[rows], begin, end)
        return [*_times(equal, np.where(counted, edges, 0)), *_sums_of_ranges(stream.kept, rows, begin, end)]

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""
        stream = self.stream
        if stream.sums is None or stream.squares is None:
            stream.without_moments[self.rows] = True
            nothing = [Fraction(0)] * len(self.rows)
            return nothing, nothing
        return (
            [_fraction(of_row) for of_row in stream.sums.parts(self.rows).tolist()],
            [_fraction(of_row) for of_row in stream.squares.parts(self.rows).tolist()],
        )


def _of_each(table: NDArray, columns: NDArray[np.intp]) -> NDArray:
    """(row, column) table, (row,) columns -> (row,) the element of each row."""
    return table[np.arange(len(table)), columns]


def _differs_from_previous(edges: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(row, edge) whether the edge differs from the one before it; both are equal if an interval is a single value."""
    return np.pad(edges[:, 1:] != edges[:, :-1], ((0, 0), (1, 0)), constant_values=True)


def _times(number: NDArray[np.int64], value: NDArray[np.floating]) -> list[NDArray[np.float64]]:
    """(row,) or (row, term) -> (row, term) terms whose exact sums are those of ``number * value``.

    A float32 times 24 bits of the number fits float64 exactly.
    """
    high, low = np.divmod(number, 2**24)
    return [np.reshape(part, (len(number), -1)) for part in (high * value.astype(np.float64) * 2.0**24, low * value)]


def _sums_of_ranges(
    kept: NDArray[np.float32], rows: NDArray[np.intp], begin: NDArray[np.int64], end: NDArray[np.int64]
) -> list[NDArray[np.float64]]:
    """(row, slot) sorted values, (row,) ranges of slots -> (row, term) numbers whose exact sums are the ranges'."""
    first, last = int(begin.min()), int(end.max())
    if first >= last:
        return []
    values = kept[rows, first:last]
    slots = np.arange(first, last)
    outside = (slots < begin[:, None]) | (slots >= end[:, None])
    ends = (_of_each(values, np.clip(slot - first, 0, last - first - 1)) for slot in (begin, end - 1))
    largest = np.where(begin < end, np.maximum(*map(np.abs, ends)), 0)
    # Values outside become the largest one, because sums handle zeros one by one; its multiples are subtracted.
    np.copyto(values, largest[:, None], where=outside)
    sums = ExactSums(largest, last - first)
    sums.add_float32(values)
    return [sums.parts(), *_times(-np.count_nonzero(outside, axis=1), largest)]


def _fraction(parts: Iterable[float]) -> Fraction:
    return sum(map(Fraction, parts), Fraction())
