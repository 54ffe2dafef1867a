"""The largest distance of distribution functions of columns that do not fit into memory, by passes that count values.

Counts by leading bits give the distance at the end of every bin exactly. Within a bin it is at most what it
would be if all values of the class came before those of the others, or after them. So only bins where
this bound exceeds the largest known distance are looked at again, by their next bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.digit_counts import LEVELS, DigitCounts, PrefixRows
from fxdask.kernels.projection import ColumnValues

__all__ = ["DistancePasses", "Distances"]

INNER_SHARE = 4  # fewer bins at a time before the last digit, because each of them is split into thousands


@dataclass(frozen=True)
class Distances:
    """(class, column) values, and largest ``abs(i n - c n_k)`` for i values of the class and c of all below a point."""

    counts: NDArray[np.int64]
    largest: NDArray[np.int64]


@dataclass(frozen=True)
class _Bins:
    """Bins of one column that may have the largest distance of a class, the most promising ones first."""

    level: int
    prefixes: NDArray[np.int64]
    """(bin,)"""
    below: NDArray[np.int64]
    """(class, bin) values below the bin"""
    bounds: NDArray[np.int64]
    """(class, bin) largest possible distance within the bin"""

    def take(self, some: slice | NDArray[np.intp]) -> _Bins:
        """These bins only."""
        return _Bins(self.level, self.prefixes[some], self.below[:, some], self.bounds[:, some])


class DistancePasses:
    """The largest distances of all classes of some columns, by three or more passes.

    Parameters
    ----------
    counts : (class, column) values that are not NaN
    rows : the table that all counts of a task share
    most_rows : bins of a column that are counted at a time
    """

    def __init__(self, counts: NDArray[np.int64], rows: PrefixRows, most_rows: int) -> None:
        self._columns = [_ColumnDistances(of_column, rows, most_rows) for of_column in counts.T]
        self._n_per_class = counts

    @property
    def is_done(self) -> bool:
        """Whether no bin can have a larger distance than the largest known one."""
        return all(column.now is None for column in self._columns)

    def absorb(self, values: ColumnValues) -> None:
        """(column, sample) next values of this pass; each class is one run."""
        for column, own in zip(self._columns, values.values, strict=True):
            if column.now is not None:
                column.absorb([own[run] for (run,) in values.runs])

    def end_pass(self) -> None:
        """Split the bins that were counted, and choose the next ones."""
        for column in self._columns:
            if column.now is not None:
                column.end_pass()

    @property
    def found(self) -> Distances:
        """The result of all passes."""
        return Distances(self._n_per_class, np.stack([column.largest for column in self._columns], axis=1))


class _ColumnDistances:
    """The bins of one column: a stack, so that the bins of the last digits are counted first and few are kept."""

    def __init__(self, counts: NDArray[np.int64], rows: PrefixRows, most_rows: int) -> None:
        n_classes, self._rows, self._most_rows = len(counts), rows, most_rows
        self._own, self._others = counts, counts.sum() - counts
        self.largest = np.zeros(n_classes, np.int64)
        # A class without values, or without others beside it, has no distance.
        bounds = np.minimum(self._own, 1) * self._others
        nothing = np.zeros((n_classes, 1), np.int64)
        self._stack = [_Bins(0, np.zeros(1, np.int64), nothing, bounds[:, None])]
        self.now: _Bins | None = None
        self._tables: list[DigitCounts] = []
        self._choose()

    def _choose(self) -> None:
        """The bins to count in the next pass; None if all are settled."""
        self.now = None
        while self._stack and self.now is None:
            bins = self._stack.pop()
            bins = bins.take(np.flatnonzero(np.any(bins.bounds > self.largest[:, None], axis=0)))
            is_last = bins.level == len(LEVELS) - 1
            n_now = self._most_rows if is_last else max(1, self._most_rows // INNER_SHARE)
            if len(bins.prefixes) > n_now:
                self._stack.append(bins.take(slice(n_now, None)))
            if len(bins.prefixes):
                self.now = bins.take(slice(n_now))
                self._tables = [DigitCounts(bins.level, self.now.prefixes) for _ in self.largest]

    def absorb(self, classes: list[NDArray[np.float32]]) -> None:
        """(value,) next values of every class."""
        for own, counts in zip(classes, self._tables, strict=True):
            self._rows.count(own, counts)

    def end_pass(self) -> None:
        """Look at the distances at the ends of all counted parts, and keep the parts that may have larger ones."""
        bins = self.now
        assert bins is not None, "the caller checked it"
        n_digits, is_last = 2 ** LEVELS[bins.level][1], bins.level == len(LEVELS) - 1
        split = []
        for row in range(len(bins.prefixes)):
            parts = self._split(bins, row)
            if not is_last:
                split.append(parts)
        if split:
            prefixes = (bins.prefixes[:, None] * n_digits + np.arange(n_digits)).ravel()
            below, bounds = (np.concatenate(parts, axis=1) for parts in zip(*split, strict=True))
            inner = _Bins(bins.level + 1, prefixes, below, bounds)
            inner = inner.take(np.flatnonzero(np.any(bounds > self.largest[:, None], axis=0)))
            self._stack.append(inner.take(np.argsort(-inner.bounds.max(axis=0), kind="stable")))
        self._choose()

    def _split(self, bins: _Bins, row: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """One counted bin -> (class, digit) values below each of its parts, and bounds of the distances within them."""
        inside = np.stack([table.table[row] for table in self._tables])
        upto = inside.cumsum(axis=1) + bins.below[:, row, None]
        all_upto, all_inside = upto.sum(axis=0), inside.sum(axis=0)
        own, others = self._own[:, None], self._others[:, None]
        # With n values, n_k of them of the class: i n - c n_k = i (n - n_k) - (c - i) n_k.
        at_end = upto * others - (all_upto - upto) * own
        np.maximum(self.largest, np.abs(at_end).max(axis=1), out=self.largest)
        above = at_end + (all_inside - inside) * own
        under = at_end - inside * others
        return upto - inside, np.maximum(above, -under)
