"""Sums without rounding: the same to the last bit for every order of the terms and every split into pieces."""

from __future__ import annotations

import math
from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fxdask.sizes import row_ranges

__all__ = ["ExactSums"]

ALL = slice(None)
GRID = -52  # the spacing of float64 just above a power of two, as an exponent relative to that power
BYTES_AT_A_TIME = 3 * 2**15  # small enough that malloc reuses memory instead of mapping it anew
MULTIPLE_OF_GRID = GRID + 23  # a float32 of this exponent or more is a multiple of the grid


class ExactSums:
    """(row,) sums of terms that arrive in any order and in any number of pieces.

    Each term is split at a power of two into a multiple of a grid and a remainder. The grid is so
    coarse that float64 represents every partial sum of multiples, so adding them never rounds. The
    remainders are split again on a finer grid, until none is left. Nearly all float32 values within a
    factor of some thousand of the largest need one grid only, and the few others two.

    Parameters
    ----------
    bounds : (row,) largest absolute value that a term of the row may have
    count : largest number of terms that a row may get
    """

    def __init__(self, bounds: NDArray[np.floating], count: int) -> None:
        self._count = max(2, count)
        self._bounds = [np.asarray(bounds, np.float64)]
        self._anchors: list[NDArray[np.float64]] = []
        self._sums: list[NDArray[np.float64]] = []

    def add(self, terms: NDArray[np.float64], rows: slice = ALL) -> None:
        """(row, term) float64 terms: add them to these rows."""
        for some, into in _few_rows(terms, rows):
            self._add_float64(terms[some], into)

    def add_squares(self, values: NDArray[np.float32], rows: slice = ALL) -> None:
        """(row, term) float32 values: add their squares to these rows."""
        for some, into in _few_rows(values, rows):
            self._add_float64(np.square(values[some], dtype=np.float64), into)

    def add_float32(self, terms: NDArray[np.float32], rows: slice = ALL) -> None:
        """(row, term) float32 terms: add them to these rows."""
        for some, into in _few_rows(terms, rows):
            self._add_float32(terms[some], into)

    def add_sorted(self, terms: NDArray[np.float32]) -> None:
        """(row, term) float32 terms, ascending in each row: add them to all rows.

        The small ones, which are not multiples of the grid, lie next to each other, so they are found at once.
        """
        rows, few = [], []
        for row, (of_row, bound) in enumerate(zip(terms, self._largest_small(ALL), strict=True)):
            low, high = of_row.searchsorted(-bound, side="right"), of_row.searchsorted(bound, side="left")
            for large in (of_row[:low], of_row[high:]):
                self._sums[0][row] += np.add.reduce(large, dtype=np.float64)
            rows.append(np.full(high - low, row))
            few.append(of_row[low:high])
        self._add_few(np.concatenate(rows), np.concatenate(few).astype(np.float64), level=0)

    def _add_float64(self, terms: NDArray[np.float64], rows: slice) -> None:
        anchors = self._anchor(0)[rows, None]
        multiples = terms + anchors
        multiples -= anchors
        self._sums[0][rows] += np.add.reduce(multiples, axis=1)
        inexact = np.flatnonzero(multiples != terms)
        remainders = terms.ravel()[inexact] - multiples.ravel()[inexact]
        self._add_few(rows.start + inexact // terms.shape[1], remainders, level=1)

    def _add_float32(self, terms: NDArray[np.float32], rows: slice) -> None:
        """A float32 has 24 binary digits, so one that is not small is already a multiple of the grid."""
        largest_small = self._largest_small(rows)
        small = np.flatnonzero(np.abs(terms) < largest_small[:, None])
        if len(small):
            indices = np.divmod(small, terms.shape[1])
            self._add_few(rows.start + indices[0], terms[indices].astype(np.float64), level=0)
            terms = terms.copy()
            terms[indices] = 0
        self._sums[0][rows] += np.add.reduce(terms, axis=1, dtype=np.float64)

    def _largest_small(self, rows: slice) -> NDArray[np.float32]:
        """(row,) absolute value below which a float32 may not be a multiple of the coarsest grid."""
        with np.errstate(over="ignore"):
            return np.ldexp(self._anchor(0)[rows] / 1.5, MULTIPLE_OF_GRID).astype(np.float32)

    def _add_few(self, rows: NDArray[np.intp], terms: NDArray[np.float64], level: int) -> None:
        """(term,) rows and terms that may need this grid and finer ones: add each term to its row."""
        while len(terms):
            anchors = self._anchor(level)[rows]
            multiples = (terms + anchors) - anchors
            self._sums[level] += np.bincount(rows, multiples, minlength=len(self._sums[level]))
            remainders = terms - multiples
            left = np.flatnonzero(remainders)
            rows, terms = rows[left], remainders[left]
            level += 1

    def _anchor(self, level: int) -> NDArray[np.float64]:
        """(row,) number that is added to a term and subtracted again, to round the term to the level's grid."""
        while len(self._anchors) <= level:
            bounds = self._bounds[-1]
            # count * bound < 2**(exponent - 1), so a term plus 1.5 * 2**exponent stays between two
            # powers of two, where float64 has one spacing: this spacing is the grid.
            exponent = np.frexp(self._count * bounds)[1] + 1
            self._anchors.append(np.ldexp(1.5, exponent))
            self._bounds.append(np.ldexp(0.5, exponent + GRID))
            self._sums.append(np.zeros(len(bounds)))
        return self._anchors[level]

    def totals(self) -> NDArray[np.float64]:
        """(row,) the sums, each rounded once."""
        if not self._sums:
            return np.zeros(len(self._bounds[0]))
        if len(self._sums) == 1:
            return self._sums[0].copy()
        total = self._sums[0] + self._sums[1]
        if len(self._sums) > 2:
            deep = np.flatnonzero(np.any(self._sums[2:], axis=0))
            total[deep] = [math.fsum(part[row] for part in self._sums) for row in deep]
        return total

    def parts(self, rows: NDArray[np.intp] | slice = ALL) -> NDArray[np.float64]:
        """(row, part) numbers whose exact sums are the sums of these rows."""
        if not self._sums:
            return np.zeros((len(self._bounds[0][rows]), 1))
        return np.stack([part[rows] for part in self._sums], axis=1)

    def fractions(self) -> list[Fraction]:
        """(row,) the exact sums."""
        return [sum(map(Fraction, of_row), Fraction()) for of_row in self.parts().tolist()]


def _few_rows(terms: NDArray[np.floating], rows: slice) -> Iterator[tuple[slice, slice]]:
    """Ranges of rows small enough for small intermediate arrays: (rows of ``terms``, rows of the sums) each."""
    first = rows.start or 0
    for start, stop in row_ranges(len(terms), max(1, BYTES_AT_A_TIME // max(1, 4 * terms.shape[1]))):
        yield slice(start, stop), slice(first + start, first + stop)
