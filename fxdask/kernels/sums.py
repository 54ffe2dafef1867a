"""Sums without rounding: the same to the last bit for every order and every cutting of the terms."""

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
BYTES_AT_A_TIME = 3 * 2**15  # what malloc serves without asking the system
MULTIPLE_OF_GRID = GRID + 23  # from here on, so is that of float32


class ExactSums:
    """(row,) sums of terms that arrive in any order and in any number of pieces.

    Each term is cut at a power of two into a multiple of a grid and a rest. The grid is so coarse
    that every partial sum of multiples has a place in float64, so adding them never rounds; the
    rests are cut again on a finer grid, until none is left. Nearly all float32 values within a
    factor of some thousand of the largest need one grid only, and the few others two.

    Parameters
    ----------
    bounds : (row,) no term of the row is larger in absolute value
    count : no row gets more terms than this
    """

    def __init__(self, bounds: NDArray[np.floating], count: int) -> None:
        self._count = max(2, count)
        self._bounds = [np.asarray(bounds, np.float64)]
        self._anchors: list[NDArray[np.float64]] = []
        self._sums: list[NDArray[np.float64]] = []

    def add(self, terms: NDArray[np.float64], rows: slice = ALL) -> None:
        """(row, term) float64: what is to be added to each of these rows."""
        for some, into in _few_rows(terms, rows):
            self._add_wide(terms[some], into)

    def add_squares(self, values: NDArray[np.float32], rows: slice = ALL) -> None:
        """(row, term) float32: whose squares are to be added to each of these rows."""
        for some, into in _few_rows(values, rows):
            self._add_wide(np.square(values[some], dtype=np.float64), into)

    def add_narrow(self, terms: NDArray[np.float32], rows: slice = ALL) -> None:
        """(row, term) float32: what is to be added to each of these rows."""
        for some, into in _few_rows(terms, rows):
            self._add_narrow(terms[some], into)

    def _add_wide(self, terms: NDArray[np.float64], rows: slice) -> None:
        anchors = self._anchor(0)[rows, None]
        multiples = terms + anchors
        multiples -= anchors
        self._sums[0][rows] += np.add.reduce(multiples, axis=1)
        inexact = np.flatnonzero(multiples != terms)
        rests = terms.ravel()[inexact] - multiples.ravel()[inexact]
        self._add_few(rows.start + inexact // terms.shape[1], rests, level=1)

    def _add_narrow(self, terms: NDArray[np.float32], rows: slice) -> None:
        """A float32 has 24 digits, so one that is not small is a multiple of the grid as it stands."""
        with np.errstate(over="ignore"):
            largest_small = np.ldexp(self._anchor(0)[rows] / 1.5, MULTIPLE_OF_GRID).astype(np.float32)
        small = np.flatnonzero(np.abs(terms) < largest_small[:, None])
        if len(small):
            places = np.divmod(small, terms.shape[1])
            self._add_few(rows.start + places[0], terms[places].astype(np.float64), level=0)
            terms = terms.copy()
            terms[places] = 0
        self._sums[0][rows] += np.add.reduce(terms, axis=1, dtype=np.float64)

    def _add_few(self, rows: NDArray[np.intp], terms: NDArray[np.float64], level: int) -> None:
        """(term,) rows and terms that may need this grid and finer ones."""
        while len(terms):
            anchors = self._anchor(level)[rows]
            multiples = (terms + anchors) - anchors
            self._sums[level] += np.bincount(rows, multiples, minlength=len(self._sums[level]))
            rests = terms - multiples
            left = np.flatnonzero(rests)
            rows, terms = rows[left], rests[left]
            level += 1

    def _anchor(self, level: int) -> NDArray[np.float64]:
        """(row,) what a term is added to and freed from again, to round it to the level's grid."""
        while len(self._anchors) <= level:
            bounds = self._bounds[-1]
            # count * bound < 2**(exponent - 1), so a term plus 1.5 * 2**exponent stays between two
            # powers of two, where float64 has one spacing: that is the grid.
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

    def parts(self, row: int) -> list[float]:
        """Numbers whose exact sum is that of the row."""
        return [float(part[row]) for part in self._sums]

    def fractions(self) -> list[Fraction]:
        """(row,) the sums as they are."""
        return [sum(map(Fraction, self.parts(row)), Fraction()) for row in range(len(self._bounds[0]))]


def _few_rows(terms: NDArray[np.floating], rows: slice) -> Iterator[tuple[slice, slice]]:
    """So many rows of the terms at a time that what is worked out on the way stays small; and where they belong."""
    first = rows.start or 0
    for start, stop in row_ranges(len(terms), max(1, BYTES_AT_A_TIME // max(1, 4 * terms.shape[1]))):
        yield slice(start, stop), slice(first + start, first + stop)
