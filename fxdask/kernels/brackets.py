"""Exact order statistics and sums of rows that do not fit into memory, from one pass over their values.

A few probed values show roughly where each wanted order statistic lies: its bracket. One pass over
all values counts those below each bracket, sums those between the quartiles' brackets, and keeps
only the values inside a bracket. From these the order statistics and the sums are known to the last
bit. If a bracket does not contain its order statistic, the row is marked as missed and must be repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.sums import ExactSums

__all__ = ["BracketedRows", "Brackets", "StreamedRows", "bracket", "bracket_all", "probe_indices"]


@dataclass(frozen=True)
class Brackets:
    """(row, edge) disjoint closed intervals in rising order, two edges each; unused ones lie at infinity.

    ``inner`` are the (row,) ends of the gap between the quartiles' intervals. Where both quartiles
    share one interval there is no gap, and both ends are zero.
    """

    edges: NDArray[np.float32]
    inner: tuple[NDArray[np.float32], NDArray[np.float32]]
    room: int
    """How many values of a row fit into the buffer: those expected inside its intervals, plus a margin."""

    def first(self, n_rows: int) -> Brackets:
        """The brackets of the first rows."""
        low, high = self.inner
        return replace(self, edges=self.edges[:n_rows], inner=(low[:n_rows], high[:n_rows]))

    @staticmethod
    def joined(parts: Sequence[Brackets]) -> Brackets:
        """The brackets of several groups of rows, concatenated."""
        low, high = (np.concatenate([part.inner[end] for part in parts]) for end in (0, 1))
        edges = np.concatenate([part.edges for part in parts])
        return Brackets(edges, (low, high), max(part.room for part in parts))


def probe_indices(codes: NDArray[np.integer], counts: Sequence[int]) -> NDArray[np.intp]:
    """(sample,) class codes, (class,) counts -> rising indices of samples that are spread over each class.

    Each class is cut into ``count`` ranges of equal length, and one random sample is taken from
    each: so neither a trend nor a period in the order of the samples biases the probes.
    """
    rng = np.random.default_rng(0)
    chosen = []
    for k, count in enumerate(counts):
        own = np.flatnonzero(codes == k)
        edges = np.arange(count + 1) * len(own) // count
        chosen.append(own[rng.integers(edges[:-1], edges[1:])])
    return np.sort(np.concatenate(chosen))


def bracket(probes: NDArray[np.float32], count: int, slack: float) -> Brackets:
    """(row, probe) sorted probed values -> brackets of the quartiles, the median and median -+ MAD of all values."""
    n_probes, quarter, middle = probes.shape[1], count // 4, count // 2
    low = _around(probes, count, (count - 1) // 4, quarter + 1, slack)
    high = _around(probes, count, count - quarter - 2, count - quarter, slack)
    centre = _around(probes, count, middle - 1, middle, slack)
    guess = probes[:, n_probes // 2]
    distances = np.abs(probes - guess[:, None])
    distances.sort(axis=1)
    nearest, farthest = _around(distances, count, middle - 1, middle, slack)
    distance = distances[:, n_probes // 2]
    # The errors of centre and distance are nearly independent; if every value was probed, they are not random.
    together = np.add if n_probes == count else np.hypot
    lower, upper = guess - centre[0], centre[1] - guess
    shorter, longer = distance - nearest, farthest - distance
    left = (guess - distance - together(lower, longer), guess - distance + together(upper, shorter))
    right = (guess + distance - together(lower, shorter), guess + distance + together(upper, longer))
    edges = _disjoint([low, high, centre, left, right])
    return Brackets(edges, _between(edges, low, high), _room(probes, edges, count))


def bracket_all(n_rows: int, count: int) -> Brackets:
    """One interval from -inf to inf that keeps every value, for rows whose brackets missed."""
    edges = np.tile(np.array([-np.inf, np.inf], np.float32), (n_rows, 1))
    nothing = np.zeros(n_rows, np.float32)
    return Brackets(edges, (nothing, nothing), count)


def _around(
    probes: NDArray[np.float32], count: int, first: int, last: int, slack: float
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(row,) ends of an interval that should contain the order statistics ``first`` to ``last`` of all values."""
    n_probes = probes.shape[1]
    share = (first + last + 1) / (2 * count)
    # Probes are drawn without replacement, so the deviation is zero if all values are probed.
    deviation = slack * math.sqrt(n_probes * share * (1 - share) * (1 - n_probes / count))
    low = math.floor(max(0, first) * n_probes / count - deviation) - 1
    high = math.ceil(min(count - 1, last) * n_probes / count + deviation) + 1
    infinite = np.full(len(probes), np.inf, np.float32)
    return (
        probes[:, low] if low >= 0 else -infinite,
        probes[:, high] if high < n_probes else infinite,
    )


def _disjoint(
    intervals: list[tuple[NDArray[np.floating], NDArray[np.floating]]],
) -> NDArray[np.float32]:
    """(row,) ends of intervals -> (row, edge) their union as disjoint intervals in rising order."""
    low = np.stack([ends[0] for ends in intervals], axis=1).astype(np.float32)
    high = np.stack([ends[1] for ends in intervals], axis=1).astype(np.float32)
    order = np.argsort(low, axis=1)
    low, high = np.take_along_axis(low, order, axis=1), np.take_along_axis(high, order, axis=1)
    reach = np.maximum.accumulate(high, axis=1)
    begins = np.ones(low.shape, bool)
    begins[:, 1:] = low[:, 1:] > reach[:, :-1]
    interval = np.cumsum(begins, axis=1) - 1
    edges = np.full((len(low), 2 * len(intervals)), np.inf, np.float32)
    rows = np.broadcast_to(np.arange(len(low))[:, None], low.shape)
    edges[rows[begins], 2 * interval[begins]] = low[begins]
    # Of intervals that were merged the last one reaches farthest, so its assignment must come last.
    for column in range(len(intervals)):
        edges[np.arange(len(low)), 2 * interval[:, column] + 1] = reach[:, column]
    return edges


def _between(
    edges: NDArray[np.float32],
    low: tuple[NDArray[np.floating], NDArray[np.floating]],
    high: tuple[NDArray[np.floating], NDArray[np.floating]],
) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(row,) upper edge of the interval that contains ``low``, lower edge of the one that contains ``high``."""
    lows, highs = edges[:, 0::2], edges[:, 1::2]
    of_low = (lows <= low[0].astype(np.float32)[:, None]).sum(axis=1) - 1
    of_high = (lows <= high[0].astype(np.float32)[:, None]).sum(axis=1) - 1
    rows = np.arange(len(edges))
    apart = of_low < of_high
    begin, end = np.where(apart, highs[rows, of_low], 0), np.where(apart, lows[rows, of_high], 0)
    return begin.astype(np.float32), end.astype(np.float32)


def _room(probes: NDArray[np.float32], edges: NDArray[np.float32], count: int) -> int:
    """(row, probe) sorted probes, (row, edge) intervals -> how many values the fullest row is expected to keep."""
    n_probes = probes.shape[1]
    if not len(probes):
        return 0
    inside = max(
        int((row.searchsorted(ends[1::2], "left") - row.searchsorted(ends[0::2], "right")).clip(0).sum())
        for row, ends in zip(probes, edges, strict=True)
    )
    # Each interval is cut by at most two probes beyond those counted; a count of s probes has an error of sqrt(s).
    expected = (inside + 2 * edges.shape[1] + 4 * math.sqrt(inside)) * count / n_probes
    return min(count, math.ceil(expected))


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
        for row in range(len(self.kept)):
            self.kept[row, : self.filled[row]].sort()
        return BracketedRows(self, np.arange(len(self.kept)))


@dataclass(frozen=True)
class BracketedRows:
    """Order statistics and sums of some of the rows; a row whose brackets cannot answer is marked as missed."""

    stream: StreamedRows
    rows: NDArray[np.intp]

    @property
    def count(self) -> int:
        """Number of values in a row."""
        return self.stream.count

    def take(self, rows: NDArray[np.intp]) -> BracketedRows:
        """These rows only."""
        return replace(self, rows=self.rows[rows])

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this index of the sorted row."""
        return np.array([self._at(row, position) for row in self.rows], np.float32)

    def _at(self, row: int, position: int) -> float:
        stream = self.stream
        edge = int(stream.upto[row].searchsorted(position, "right"))
        if edge < len(stream.edges[row]) and stream.below[row, edge] <= position:
            return float(stream.edges[row, edge])
        if edge % 2 == 0 or stream.missed[row]:
            return self._mark_missed(row)
        start = self._kept_before(row, edge // 2)
        return float(stream.kept[row, start + position - stream.upto[row, edge - 1]])

    def _kept_before(self, row: int, interval: int) -> int:
        """Number of kept values in the intervals before this one."""
        stream = self.stream
        return int((stream.below[row, 1 : 2 * interval : 2] - stream.upto[row, 0 : 2 * interval : 2]).clip(0).sum())

    def _mark_missed(self, row: int) -> float:
        self.stream.missed[row] = True
        return math.nan

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) centre -> (row,) median of the distances from it, each distance rounded to float32."""
        middle = self.count // 2
        positions = [middle] if self.count % 2 else [middle - 1, middle]
        found = [self._distances_at(row, of_row, positions) for row, of_row in zip(self.rows, centre, strict=True)]
        return np.array([sum(distances) / len(positions) for distances in found])

    def _distances_at(self, row: int, centre: np.float32, positions: list[int]) -> list[float]:
        """The distances at these indices of the sorted distances of one row.

        The kept values are known one by one. The rest is known in groups: values equal to an edge,
        and values in the gap between two intervals. Of a gap the count is known, and that its
        distances lie between those of its two ends. So an answer is certain if it is not in a gap,
        and if no gap has distances both below and above it.
        """
        stream = self.stream
        if stream.missed[row] or np.isnan(centre):
            return [self._mark_missed(row)] * len(positions)
        edges, below, upto = stream.edges[row], stream.below[row], stream.upto[row]
        edge_distances = np.abs(edges - centre)
        gap_counts = np.concatenate([below[:1], below[2::2] - upto[1:-1:2], [self.count - upto[-1]]])
        ends = np.concatenate([[np.inf], edge_distances, [np.inf]]).reshape(-1, 2)
        nearest, farthest = ends.min(axis=1), ends.max(axis=1)
        kept = np.sort(np.abs(stream.kept[row, : stream.filled[row]] - centre))
        # A gap is sorted by its far end, and before equal distances, as none of its values is farther.
        distances = np.concatenate([farthest, edge_distances])
        weights = np.concatenate([gap_counts, np.where(_differs_from_previous(edges), upto - below, 0)])
        order = np.argsort(distances, kind="stable")
        distances, weights = distances[order], weights[order]
        first = kept.searchsorted(distances, "left") + np.cumsum(weights) - weights
        answers = []
        for position in positions:
            passed = int((first + weights <= position).sum())
            special = passed < len(first) and first[passed] <= position
            distance = distances[passed] if special else kept[position - int(weights[:passed].sum())]
            in_gap = special and order[passed] < len(gap_counts)
            cut = (gap_counts > 0) & (nearest < distance) & (distance < farthest)
            answers.append(self._mark_missed(row) if in_gap or cut.any() else float(distance))
        return answers

    def total(self, trimmed: int = 0) -> NDArray[np.float64]:
        """(row,) sum without the ``trimmed`` lowest and the ``trimmed`` highest values, rounded once."""
        if trimmed == 0:
            return np.array([self._plain_total(row) for row in self.rows])
        return np.array([self._trimmed_total(row, trimmed) for row in self.rows])

    def _plain_total(self, row: int) -> float:
        sums = self.stream.sums
        return math.fsum(self._terms(row, 0, self.count) if sums is None else sums.parts(row))

    def _trimmed_total(self, row: int, trimmed: int) -> float:
        """Sum all values between the quartiles' intervals, and inside these intervals those that are not trimmed."""
        stream = self.stream
        if stream.missed[row] or stream.inner_sums is None:
            return self._mark_missed(row)
        low, high = (float(ends[row]) for ends in stream.brackets.inner)
        edges, below, upto = stream.edges[row], stream.below[row], stream.upto[row]
        last = self.count - trimmed
        if low == high == 0:
            return math.fsum(self._terms(row, trimmed, last))
        lower, upper = int(np.flatnonzero(edges == low)[-1]), int(np.flatnonzero(edges == high)[0])
        brackets_hold = below[lower - 1] <= trimmed < upto[lower] and below[upper] < last <= upto[upper + 1]
        if not brackets_hold:
            return self._mark_missed(row)
        terms = stream.inner_sums.parts(row)
        terms += _times(-int(upto[lower]), low) + _times(-int(self.count - below[upper]), high)
        terms += self._terms(row, trimmed, int(upto[lower])) + self._terms(row, int(below[upper]), last)
        return math.fsum(terms)

    def _terms(self, row: int, first: int, last: int) -> list[float]:
        """Numbers whose exact sum is the sum of the sorted values ``[first:last]``."""
        stream = self.stream
        edges, below, upto = stream.edges[row], stream.below[row], stream.upto[row]
        terms: list[float] = []
        known = 0
        for edge in range(len(edges)):
            if np.isfinite(edges[edge]) and _differs_from_previous(edges)[edge]:
                equal = min(last, int(upto[edge])) - max(first, int(below[edge]))
                terms += _times(max(0, equal), float(edges[edge]))
                known += max(0, equal)
            if edge % 2 == 0:
                begin, end = max(first, int(upto[edge])), min(last, int(below[edge + 1]))
                if end > begin:
                    offset = self._kept_before(row, edge // 2) - int(upto[edge])
                    terms += _exact_parts(stream.kept[row, begin + offset : end + offset])
                    known += end - begin
        if known != last - first:
            self._mark_missed(row)
        return terms

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""
        stream = self.stream
        if stream.sums is None or stream.squares is None:
            stream.without_moments[self.rows] = True
            nothing = [Fraction(0)] * len(self.rows)
            return nothing, nothing
        return (
            [_fraction(stream.sums.parts(row)) for row in self.rows],
            [_fraction(stream.squares.parts(row)) for row in self.rows],
        )


def _differs_from_previous(edges: NDArray[np.float32]) -> NDArray[np.bool_]:
    """(edge,) whether the edge differs from the one before it; both are equal if an interval is a single value."""
    return np.concatenate([[True], edges[1:] != edges[:-1]])


def _times(number: int, value: float) -> list[float]:
    """Terms whose exact sum is ``number * value``; a float32 times 24 bits of the number fits float64 exactly."""
    high, low = divmod(number, 2**24)
    return [high * value * 2.0**24, low * value]


def _exact_parts(values: NDArray[np.float32]) -> list[float]:
    sums = ExactSums(np.abs(values).max(keepdims=True), len(values))
    sums.add_float32(values[None])
    return sums.parts(0)


def _fraction(parts: Iterable[float]) -> Fraction:
    return sum(map(Fraction, parts), Fraction())
