"""One column, class by class ascending, in parts of rising values: all in one part, or each part by a pass of its own.

A column that does not fit into memory is cut at some of its order statistics. A pass over all its values
keeps those between two cuts, and sorts them. A value that more samples share than fit into memory is a part
of its own, of which only the numbers are known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.digit_counts import OrderStatistic
from fxdask.kernels.radix_sort import sort_rows
from fxdask.kernels.sorted_columns import SortedColumns

__all__ = ["ColumnParts", "CutColumn", "PartedColumns", "Piece", "Totals", "WholeColumn", "cut_positions"]

Totals = tuple[list[int], list[int], list[int]]
"""Of every class the exact sums of values, of squares and of absolute values, in the units of moments."""

ReadCoded = Callable[[], Iterable[tuple[NDArray[np.float32], NDArray[np.integer]]]]
"""Reads all values of a column with their class codes, some samples at a time."""


@dataclass(frozen=True)
class Piece:
    """Some values of a part: of each class ascending ones, and the rank of the first one within its class."""

    classes: list[NDArray[np.float32]]
    first: list[int]


class ColumnParts(Protocol):
    """One column in parts of rising values, which may be read in any order after they were read in this one."""

    index: int
    """Number of the column among all columns."""
    counts: NDArray[np.int64]
    """(class,) values that are not NaN"""
    totals: Totals | None
    most_waiting: int | None
    """Values of this column, as float64, that may be kept besides a part; None: all."""

    @property
    def n_parts(self) -> int:
        """Number of parts."""

    def bounds(self, part: int) -> tuple[float, float]:
        """Numbers between which the values of a part lie; earlier parts are not above the first, later not below it."""

    def pieces(self, part: int) -> Iterator[Piece]:
        """The values of a part, as many at a time as fit into memory; each class is ascending over all of them."""


@dataclass
class WholeColumn:
    """A column that is in memory: one part of one piece."""

    index: int
    counts: NDArray[np.int64]
    classes: list[NDArray[np.float32]]
    totals: Totals | None = None
    most_waiting: int | None = None
    n_parts: int = 1

    @classmethod
    def of(cls, columns: SortedColumns, column: int) -> WholeColumn:
        """One of several sorted columns."""
        classes = [columns.of_class(k, column) for k in range(columns.n_classes)]
        return cls(int(columns.indices[column]), columns.counts[:, column], classes)

    def bounds(self, part: int) -> tuple[float, float]:
        """Numbers between which all values lie."""
        return -np.inf, np.inf

    def pieces(self, part: int) -> Iterator[Piece]:
        """All values."""
        yield Piece(self.classes, [0] * len(self.classes))


def cut_positions(count: int, per_part: int) -> list[int]:
    """The positions among so many sorted values at which parts are cut."""
    return list(range(per_part, count, per_part))


@dataclass(frozen=True)
class _Part:
    """Values above ``low`` and up to ``high``, without it if it is the next part; or the value ``high`` alone."""

    low: np.float32
    high: np.float32
    is_one_value: bool = False
    excludes_high: bool = False


class CutColumn:
    """A column that does not fit into memory.

    Parameters
    ----------
    index : number of the column among all columns
    counts : (class,) values that are not NaN
    cuts : order statistics of all values of the column, at ``cut_positions``
    per_part : values between two cuts
    totals : exact sums
    read : reads all values
    """

    def __init__(
        self,
        index: int,
        counts: NDArray[np.int64],
        cuts: Sequence[OrderStatistic],
        per_part: int,
        totals: Totals,
        read: ReadCoded,
    ) -> None:
        self.index, self.counts = index, counts
        self.totals: Totals | None = totals
        self.most_waiting: int | None = 2 * per_part
        self._per_part, self._read = per_part, read
        self._parts = _parts(cuts, per_part)
        self._bounds: dict[int, tuple[float, float]] = {}
        self._starts: dict[int, NDArray[np.int64]] = {0: np.zeros(len(counts), np.int64)}
        self._ties: dict[int, NDArray[np.int64]] = {}
        self._last_read: tuple[int, Piece] | None = None

    @property
    def n_parts(self) -> int:
        """Number of parts."""
        return len(self._parts)

    def bounds(self, part: int) -> tuple[float, float]:
        """Numbers between which the values of a part lie: its own lowest and highest value if it was read before."""
        limits = self._parts[part]
        low = limits.high if limits.is_one_value else limits.low
        return self._bounds.get(part, (float(low), float(limits.high)))

    def pieces(self, part: int) -> Iterator[Piece]:
        """The values of a part; the part before it must have been read."""
        if self._parts[part].is_one_value:
            yield from self._equal_values(part)
            return
        if self._last_read is None or self._last_read[0] != part:
            self._last_read = None  # before the next one is in memory
            self._last_read = part, self._gathered(part)
        yield self._last_read[1]

    def _equal_values(self, part: int) -> Iterator[Piece]:
        start, counts, value = self._starts[part], self._ties[part], self._parts[part].high
        self._starts[part + 1] = start + counts
        nothing = np.empty(0, np.float32)
        for k, count in enumerate(counts.tolist()):
            for low in range(0, count, self._per_part):
                classes = [nothing] * len(counts)
                classes[k] = np.full(min(self._per_part, count - low), value)
                first = start.copy()
                first[:k] += counts[:k]
                first[k] += low
                yield Piece(classes, first.tolist())

    def _gathered(self, part: int) -> Piece:
        """One pass over all values: those of the part, ascending within each class."""
        wanted, n_classes = self._parts[part], len(self.counts)
        values: list[NDArray[np.float32]] = []
        codes: list[NDArray[np.integer]] = []
        ties = np.zeros(n_classes, np.int64)
        for some, of_some in self._read():
            inside = some > wanted.low
            if wanted.excludes_high:
                inside &= some < wanted.high
                ties += np.bincount(of_some[some == wanted.high], minlength=n_classes)
            else:
                inside &= some <= wanted.high
            values.append(some[inside])
            codes.append(of_some[inside])
        own, own_codes = np.concatenate(values), np.concatenate(codes)
        del values, codes
        classes = [own[own_codes == k] for k in range(n_classes)]
        for of_class in classes:
            sort_rows(of_class[None])
        if len(own):
            self._bounds[part] = float(own.min()), float(own.max())
        start = self._starts[part]
        self._starts[part + 1] = start + np.array([len(of_class) for of_class in classes])
        if wanted.excludes_high:
            self._ties[part + 1] = ties
        return Piece(classes, start.tolist())


def _parts(cuts: Sequence[OrderStatistic], per_part: int) -> list[_Part]:
    """Order statistics in rising order -> the parts between them."""
    parts, low = [], np.float32(-np.inf)
    for cut in cuts:
        if cut.value <= low:
            continue
        is_common = cut.upto - cut.below > per_part // 2
        parts.append(_Part(low, cut.value, excludes_high=is_common))
        if is_common:
            parts.append(_Part(low, cut.value, is_one_value=True))
        low = cut.value
    parts.append(_Part(low, np.float32(np.inf)))
    return parts


@dataclass(frozen=True, kw_only=True)
class PartedColumns:
    """Some columns that do not fit into memory, and what is known of them besides their parts."""

    columns: Sequence[ColumnParts]
    n_samples: NDArray[np.int64]
    """(class,) samples, with those whose value is missing"""
    spread: NDArray[np.float64]
    """(class, column) MAD with its fallbacks"""
    middle: NDArray[np.float64]
    """(class, column) value in the middle, the higher one of two"""
    ranges: NDArray[np.float64]
    """(2, class, column) lowest and highest values; inf and -inf where there are none"""
