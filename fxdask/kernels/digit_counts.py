"""Order statistics of columns that do not fit into memory: passes over all values count them by their leading bits.

A float32 becomes a whole number of 32 bits in the same order, its key. The first pass counts how many
values have each of the 2,048 patterns of the leading 11 bits, so the leading bits of every wanted order
statistic are known. The second pass counts the next 11 bits of values that begin with those, the third
one the last 10 bits. The counts need the same memory for any number of values, and ties are only counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.projection import ColumnValues

__all__ = [
    "LEVELS",
    "DigitCounts",
    "MergedClasses",
    "OrderStatistic",
    "OrderStatisticPasses",
    "Passes",
    "Place",
    "PrefixRows",
    "WideMedianPasses",
    "run_passes",
]

LEVELS = ((21, 11), (10, 11), (0, 10))
"""Lowest bit and number of bits of each digit of a key, the leading one first."""

N_PREFIXES = 2**22
SIGN = np.uint32(2**31)
WIDE_SIGN = np.uint64(2**63)
WIDE_DIGIT = 16

Place = tuple[int, int]
"""Class and column."""


Piece_contra = TypeVar("Piece_contra", contravariant=True)


class Passes(Protocol[Piece_contra]):
    """Something that takes one or more passes over all values, which are read piece by piece."""

    @property
    def is_done(self) -> bool:
        """Whether no more passes are needed."""

    def absorb(self, values: Piece_contra) -> None:
        """The next values of this pass."""

    def end_pass(self) -> None:
        """All values have been absorbed once."""


def run_passes(read: Callable[[], Iterable[Piece_contra]], *wanted: Passes[Piece_contra]) -> None:
    """Read all values again and again, for all of these together, until none needs a further pass."""
    while unfinished := [one for one in wanted if not one.is_done]:
        for values in read():
            for one in unfinished:
                one.absorb(values)
        for one in unfinished:
            one.end_pass()


# Counts of digits


class PrefixRows:
    """A table from the leading bits of a key to a row of counts; 16 MiB, reused for all columns and classes."""

    def __init__(self) -> None:
        self._rows = np.full(N_PREFIXES, -1, np.int32)

    def count(self, values: NDArray[np.float32], counts: DigitCounts) -> None:
        """(value,) values, NaN among them: add those with the prefixes of these counts."""
        shift, width = LEVELS[counts.level]
        self._rows[counts.prefixes] = np.arange(len(counts.prefixes), dtype=np.int32)
        _compiled()(values.view(np.uint32), self._rows, shift, width, counts.table)
        self._rows[counts.prefixes] = -1


class DigitCounts:
    """(prefix, digit) numbers of values whose keys begin with a prefix and go on with a digit."""

    def __init__(self, level: int, prefixes: NDArray[np.int64]) -> None:
        self.level, self.prefixes = level, prefixes
        self.table = np.zeros((len(prefixes), 2 ** LEVELS[level][1]), np.int64)


def _add_digits(
    bits: NDArray[np.uint32], rows: NDArray[np.int32], shift: int, width: int, counts: NDArray[np.int64]
) -> None:
    """(value,) bits of float32 values, (prefix,) rows or -1: count the digits of each row."""
    mask = np.int64(2**width - 1)
    for at in range(len(bits)):
        own = np.int64(bits[at])
        if own & 0x7FFFFFFF > 0x7F800000:  # NaN
            continue
        # Flipping all bits of negative numbers, and the sign of the others, makes floats sort as integers.
        key = own ^ 0xFFFFFFFF if own > 0x80000000 else own | 0x80000000
        row = rows[key >> (shift + width)]
        if row >= 0:
            counts[row, (key >> shift) & mask] += 1


@cache
def _compiled() -> Callable[..., None]:
    """The loop compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_add_digits)


def value_of_key(key: int) -> np.float32:
    """The float32 with this key; -0.0 has the key of 0.0."""
    bits = key ^ 0x80000000 if key & 0x80000000 else key ^ 0xFFFFFFFF
    return np.uint32(bits).view(np.float32)


# Order statistics


@dataclass(frozen=True)
class OrderStatistic:
    """A value at a position of the sorted values, and how many values are below it, and at or below it."""

    value: np.float32
    below: int
    upto: int


class OrderStatisticPasses:
    """The values at some positions of every class and column, by three passes.

    Parameters
    ----------
    positions : positions of the sorted values, by class and column
    rows : the table that all counts of a task share
    centres : if given, distances from the centre of each class and column are sorted instead of values
    """

    def __init__(
        self,
        positions: Mapping[Place, Sequence[int]],
        rows: PrefixRows,
        centres: Mapping[Place, np.float32] | None = None,
    ) -> None:
        self._rows, self._centres, self._level = rows, centres, 0
        self._prefixes = {place: dict.fromkeys(wanted, 0) for place, wanted in positions.items()}
        self._below = {place: dict.fromkeys(wanted, 0) for place, wanted in positions.items()}
        self.found: dict[Place, dict[int, OrderStatistic]] = {place: {} for place in positions}
        self._counts: dict[Place, DigitCounts] = {}
        self._begin_pass()

    @property
    def is_done(self) -> bool:
        """Whether all values are known."""
        return self._level == len(LEVELS) or not self._prefixes

    def _begin_pass(self) -> None:
        for place, prefixes in self._prefixes.items():
            self._counts[place] = DigitCounts(self._level, np.unique(np.array([*prefixes.values()], np.int64)))

    def absorb(self, values: ColumnValues) -> None:
        """(column, sample) next values of this pass; each class is one run."""
        for (k, column), counts in self._counts.items():
            (run,) = values.runs[k]
            own = values.values[column, run]
            if self._centres is not None:
                own = np.abs(own - self._centres[k, column])
            self._rows.count(own, counts)

    def end_pass(self) -> None:
        """Go on with the next digit of every wanted value."""
        width = LEVELS[self._level][1]
        for place, counts in self._counts.items():
            upto = counts.table.cumsum(axis=1)
            for position, prefix in self._prefixes[place].items():
                row, before = int(np.searchsorted(counts.prefixes, prefix)), self._below[place][position]
                digit = int(np.searchsorted(upto[row], position - before, side="right"))
                below = before + int(upto[row, digit - 1] if digit else 0)
                key = prefix << width | digit
                self._prefixes[place][position], self._below[place][position] = key, below
                if self._level == len(LEVELS) - 1:
                    equal = int(counts.table[row, digit])
                    self.found[place][position] = OrderStatistic(value_of_key(key), below, below + equal)
        self._level += 1
        self._counts = {}
        if not self.is_done:
            self._begin_pass()


class MergedClasses:
    """Passes over the values of all classes together, as those of class 0."""

    def __init__(self, passes: OrderStatisticPasses) -> None:
        self.passes = passes

    @property
    def is_done(self) -> bool:
        """Whether no more passes are needed."""
        return self.passes.is_done

    def absorb(self, values: ColumnValues) -> None:
        """(column, sample) next values of this pass."""
        self.passes.absorb(ColumnValues(values.values, [[slice(0, values.values.shape[1])]]))

    def end_pass(self) -> None:
        """All values have been absorbed once."""
        self.passes.end_pass()


class WideMedianPasses:
    """The float64 value at one position of all values of some columns, by four passes.

    Parameters
    ----------
    positions : position of the sorted values, by column
    """

    def __init__(self, positions: Mapping[int, int]) -> None:
        self._below = dict.fromkeys(positions, 0)
        self._positions, self._prefixes, self._shift = positions, dict.fromkeys(positions, 0), 64 - WIDE_DIGIT
        self._counts = self._no_counts()

    def _no_counts(self) -> dict[int, NDArray[np.int64]]:
        return {column: np.zeros(2**WIDE_DIGIT, np.int64) for column in self._positions}

    @property
    def is_done(self) -> bool:
        """Whether all values are known."""
        return self._shift < 0 or not self._positions

    def absorb(self, values: NDArray[np.float64]) -> None:
        """(column, sample) next values of this pass."""
        for column in self._counts:
            own = values[column]
            bits = (own[~np.isnan(own)] + 0.0).view(np.uint64)
            keys = np.where(bits & WIDE_SIGN, ~bits, bits | WIDE_SIGN) >> np.uint64(self._shift)
            begins = keys >> np.uint64(WIDE_DIGIT) == np.uint64(self._prefixes[column])
            digits = keys[begins] & np.uint64(2**WIDE_DIGIT - 1)
            self._counts[column] += np.bincount(digits.astype(np.int64), minlength=2**WIDE_DIGIT)

    def end_pass(self) -> None:
        """Go on with the next digit of every wanted value."""
        for column, counts in self._counts.items():
            upto = counts.cumsum()
            digit = int(np.searchsorted(upto, self._positions[column] - self._below[column], side="right"))
            self._below[column] += int(upto[digit - 1] if digit else 0)
            self._prefixes[column] = self._prefixes[column] << WIDE_DIGIT | digit
        self._shift -= WIDE_DIGIT
        self._counts = self._no_counts()

    def value(self, column: int) -> float:
        """The value that was looked for."""
        key = self._prefixes[column]
        bits = key ^ 2**63 if key & 2**63 else key ^ (2**64 - 1)
        return float(np.uint64(bits).view(np.float64))
