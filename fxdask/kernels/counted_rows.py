"""Brackets made narrower by counting, for rows so long that the values inside their brackets do not fit into memory.

One pass over all values counts those inside each bracket in bins of equal width, and notes the lowest and
the highest value of every bin. Then the bin of every wanted order statistic is known, and brackets around
these few bins hold few values. The memory of a row is the same for any number of values.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.brackets import Brackets

__all__ = ["CountedRows", "NarrowBrackets"]

LARGEST = float(np.finfo(np.float32).max)


@dataclass(frozen=True)
class NarrowBrackets:
    """Brackets of some rows, with the number of values that each row has inside its own."""

    brackets: Brackets
    inside: NDArray[np.int64]
    """(row,) at least as many as a pass would keep"""
    missed: NDArray[np.bool_]
    """(row,) whether an order statistic lies outside the brackets that were counted"""


class CountedRows:
    """(row, value) values of one class that arrive in pieces; those inside brackets are counted in bins.

    Parameters
    ----------
    brackets : Brackets
    count : number of values in a row
    bounds : (row,) largest absolute value that a row may have
    n_bins : bins of each interval
    """

    def __init__(self, brackets: Brackets, count: int, bounds: NDArray[np.float64], n_bins: int) -> None:
        self.count, self._n_bins = count, n_bins
        self.edges = _finite(brackets.edges, bounds.astype(np.float32))
        self.below = np.zeros(self.edges.shape, np.int64)  # values less than each edge
        self.upto = np.zeros(self.edges.shape, np.int64)  # values at most each edge
        shape = (len(self.edges), self.edges.shape[1] // 2, n_bins)
        self.counts = np.zeros(shape, np.int64)
        self.lowest, self.highest = np.full(shape, np.inf, np.float32), np.full(shape, -np.inf, np.float32)
        lows, highs = self.edges[:, 0::2].astype(np.float64), self.edges[:, 1::2].astype(np.float64)
        width = np.subtract(highs, lows, out=np.ones(lows.shape), where=np.isfinite(lows) & (highs > lows))
        self._scale = np.minimum(n_bins / width, LARGEST).astype(np.float32)

    def absorb(self, rows: slice, values: NDArray[np.float32]) -> None:
        """(row, value) next values of these rows, each row sorted: count them at every edge and in every bin."""
        first, n_intervals = rows.indices(len(self.edges))[0], self.counts.shape[1]
        pieces, lengths = [], np.zeros((len(values), n_intervals), np.int64)
        for row, of_row in enumerate(values):
            edges = self.edges[first + row]
            below, upto = of_row.searchsorted(edges, "left"), of_row.searchsorted(edges, "right")
            self.below[first + row] += below
            self.upto[first + row] += upto
            starts, stops = upto[0::2], np.maximum(below[1::2], upto[0::2])
            lengths[row] = stops - starts
            pieces += [of_row[start:stop] for start, stop in zip(starts.tolist(), stops.tolist(), strict=True)]
        self._count(np.concatenate(pieces), np.repeat(first * n_intervals + np.arange(lengths.size), lengths.ravel()))

    def _count(self, values: NDArray[np.float32], places: NDArray[np.intp]) -> None:
        """(value,) values inside intervals, ascending in each, and (value,) numbers of row and interval."""
        if not len(values):
            return
        # Each step is monotone, so a bin holds neighbours, however its index is rounded.
        offset = values - self.edges[:, 0::2].ravel()[places]
        with np.errstate(over="ignore"):
            offset *= self._scale.ravel()[places]
        np.minimum(offset, self._n_bins - 1, out=offset)
        bins = places * self._n_bins + offset.astype(np.intp)
        starts = np.flatnonzero(np.concatenate([[True], bins[1:] != bins[:-1]]))
        lasts = np.append(starts[1:], len(bins)) - 1
        hit = bins[starts]
        counts, lowest, highest = self.counts.reshape(-1), self.lowest.reshape(-1), self.highest.reshape(-1)
        counts[hit] += lasts - starts + 1
        lowest[hit] = np.minimum(lowest[hit], values[starts])
        highest[hit] = np.maximum(highest[hit], values[lasts])

    def narrowed(self) -> NarrowBrackets:
        """Brackets of the same order statistics around their bins, after the last piece."""
        found = [_Groups.of_row(self, row) for row in range(len(self.edges))]
        intervals = [groups.intervals(self.count) for groups in found]
        missed = np.array([of_row is None for of_row in intervals])
        everything = [(-np.inf, np.inf)] * 5
        table = np.array([of_row or everything for of_row in intervals], np.float32)
        low, high, *others = ((table[:, at, 0], table[:, at, 1]) for at in range(table.shape[1]))
        brackets = Brackets.of(low, high, others)
        inside = [groups.inside(edges) for groups, edges in zip(found, brackets.edges, strict=True)]
        return NarrowBrackets(brackets, np.array(inside, np.int64), missed)


def _finite(edges: NDArray[np.float32], bounds: NDArray[np.float32]) -> NDArray[np.float32]:
    """(row, edge) edges, (row,) bounds -> (row, edge) edges; an interval without end ends at the bound."""
    edges = np.where(np.isneginf(edges), -bounds[:, None], edges)
    is_used = np.isfinite(edges[:, 0::2])
    edges[:, 1::2] = np.where(is_used & np.isinf(edges[:, 1::2]), bounds[:, None], edges[:, 1::2])
    return edges


@dataclass(frozen=True)
class _Groups:
    """All values of one row as ascending groups that are not empty: equal to an edge, in a bin, or in a gap."""

    low: NDArray[np.float32]
    high: NDArray[np.float32]
    counts: NDArray[np.int64]
    is_gap: NDArray[np.bool_]
    """Whether the values were not counted in bins, because they are outside all intervals."""

    @classmethod
    def of_row(cls, counted: CountedRows, row: int) -> _Groups:
        n_used = int(np.isfinite(counted.edges[row, 0::2]).sum())
        edges = counted.edges[row].reshape(-1, 2)[:n_used]
        below, upto = (table[row].reshape(-1, 2)[:n_used] for table in (counted.below, counted.upto))
        # The groups of an interval are the gap before it, its lower edge, its bins, its upper edge.
        shape = (n_used, counted.counts.shape[2] + 3)
        low, high, counts = np.empty(shape, np.float32), np.empty(shape, np.float32), np.empty(shape, np.int64)
        low[:, 0], high[:, 0] = np.append(np.float32(-np.inf), edges[:-1, 1]), edges[:, 0]
        counts[:, 0] = below[:, 0] - np.append(0, upto[:-1, 1])
        low[:, 1], low[:, 2:-1], low[:, -1] = edges[:, 0], counted.lowest[row, :n_used], edges[:, 1]
        high[:, 1], high[:, 2:-1], high[:, -1] = edges[:, 0], counted.highest[row, :n_used], edges[:, 1]
        counts[:, 1], counts[:, 2:-1] = upto[:, 0] - below[:, 0], counted.counts[row, :n_used]
        counts[:, -1] = np.where(edges[:, 0] == edges[:, 1], 0, upto[:, 1] - below[:, 1])
        is_gap = np.zeros(shape, bool)
        is_gap[:, 0] = True
        last = (edges[-1, 1], np.float32(np.inf), counted.count - upto[-1, 1], True)
        tables = [np.append(table, end) for table, end in zip((low, high, counts, is_gap), last, strict=True)]
        present = tables[2] > 0
        return cls(*(table[present] for table in tables))

    def intervals(self, count: int) -> list[tuple[float, float]] | None:
        """Narrow intervals of both quartiles, the median and both values at the MAD from it; None if a gap has one."""
        quarter, middle, ends = count // 4, count // 2, np.cumsum(self.counts)

        def groups_at(first: int, last: int) -> slice:
            at = np.searchsorted(ends, [max(0, first), min(count - 1, last)], "right")
            return slice(int(at[0]), int(at[1]) + 1)

        low = groups_at((count - 1) // 4, quarter + 1)
        high = groups_at(count - quarter - 2, count - quarter)
        centre = groups_at(middle - 1 + count % 2, middle)
        if any(self.is_gap[groups].any() for groups in (low, high, centre)):
            return None
        around = self._at_distance(centre, count)
        if around is None:
            return None
        return [*((self.low[groups][0], self.high[groups][-1]) for groups in (low, high, centre)), *around]

    def _at_distance(self, centre: slice, count: int) -> list[tuple[float, float]] | None:
        """Groups of the middle values -> intervals below and above with all values at the median distance from them.

        Distances are rounded to float32 as those of values are, which keeps their order.
        """
        (first, last), middle = (centre.start, centre.stop - 1), count // 2
        least, most = (
            np.float32((np.float64(ends[first]) + np.float64(ends[last])) / 2) for ends in (self.low, self.high)
        )
        near = np.maximum(np.maximum(self.low - most, least - self.high), np.float32(0))
        far = np.maximum(self.high - least, most - self.low)
        shortest = self._distance_at(near, middle - 1 + count % 2)
        longest = self._distance_at(far, middle)
        # The ends of a gap are not in it.
        if (self.is_gap & (near < longest) & (far > shortest)).any():
            return None
        possible = (near <= longest) & (far >= shortest) & ~self.is_gap
        is_left, is_right = self.high < least, self.low > most
        is_beyond = (near > longest) | (self.is_gap & (near == longest))
        begin, stop = int((is_left & is_beyond).sum()), len(near) - int((is_right & is_beyond).sum())
        end, start = begin + int((is_left & possible).sum()), stop - int((is_right & possible).sum())
        # An edge must be certainly nearer or farther: a value of these groups if one is, else of the next group.
        below = [self.low[begin], self.high[end - 1]]
        above = [self.low[start] if start < len(near) else self.high[-1], self.high[stop - 1]]
        if begin and (begin == end or least - below[0] < longest):
            below[0] = self.high[begin - 1]
        if begin == end or most - below[1] > shortest:
            below[1] = self.low[end]
        if start == stop or above[0] - least > shortest:
            above[0] = self.high[start - 1]
        if stop < len(near) and (start == stop or above[1] - most < longest):
            above[1] = self.low[stop]
        if possible[~(is_left | is_right)].any():
            below = above = [below[0], above[1]]
        return [(below[0], below[1]), (above[0], above[1])]

    def _distance_at(self, distances: NDArray[np.float32], position: int) -> np.float32:
        """(group,) distances -> the distance at this position, if all values of a group had it."""
        order = np.argsort(distances, kind="stable")
        return distances[order[np.searchsorted(np.cumsum(self.counts[order]), position, "right")]]

    def inside(self, edges: NDArray[np.float32]) -> int:
        """(edge,) edges of intervals -> how many values at most lie strictly inside them."""
        in_any = np.zeros(len(self.low), bool)
        for low, high in edges.reshape(-1, 2):
            in_any |= (self.high > low) & (self.low < high)
        return int(self.counts[in_any].sum())
