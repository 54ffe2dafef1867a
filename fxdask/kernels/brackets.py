"""Brackets: a few probed values show roughly where each wanted order statistic of all values lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

__all__ = ["Brackets", "Interval", "bracket", "bracket_all", "probe_indices"]

Interval = tuple[NDArray[np.floating], NDArray[np.floating]]
"""(row,) lower and upper ends."""


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

    def take(self, rows: slice | NDArray[np.intp]) -> Brackets:
        """The brackets of these rows."""
        low, high = self.inner
        return replace(self, edges=self.edges[rows], inner=(low[rows], high[rows]))

    def with_room(self, room: int) -> Brackets:
        """The same brackets with a buffer of this many values."""
        return replace(self, room=room)

    @staticmethod
    def of(low: Interval, high: Interval, others: Sequence[Interval], room: int = 0) -> Brackets:
        """Intervals around the lower and the upper quartile and other ones; those that overlap are merged."""
        edges = _disjoint([low, high, *others])
        return Brackets(edges, _between(edges, low, high), room)

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
    found = Brackets.of(low, high, [centre, left, right])
    return found.with_room(_room(probes, found.edges, count))


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


def _disjoint(intervals: list[Interval]) -> NDArray[np.float32]:
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
    edges: NDArray[np.float32], low: Interval, high: Interval
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
