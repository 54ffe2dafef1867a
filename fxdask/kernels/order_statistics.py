"""Order statistics and exact sums of rows of values."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.sums import ExactSums
from fxdask.sizes import row_ranges

__all__ = ["Ordered", "SortedRows", "row_groups"]


LONG_ROW = 2**12
"""From this length on, one row at a time is added faster than several."""


def row_groups(n_rows: int, n_values: int, bytes_at_a_time: int) -> list[slice]:
    """Slices of nearly equal numbers of rows of float32 values, each of which fits into these bytes."""
    n_groups = math.ceil(n_rows / max(1, bytes_at_a_time // (4 * n_values)))
    return [slice(*edges) for edges in row_ranges(n_rows, math.ceil(n_rows / n_groups))]


class Ordered(Protocol):
    """(row, value) values, through the queries that location and spread need."""

    @property
    def count(self) -> int:
        """Number of values in a row."""

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this index of the sorted row."""

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) centre -> (row,) median of the distances from it, each distance rounded to float32."""

    def total(self, trimmed: int = 0) -> NDArray[np.float64]:
        """(row,) sum without the ``trimmed`` lowest and the ``trimmed`` highest values, rounded once."""

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""

    def take(self, rows: NDArray[np.intp]) -> Self:
        """These rows only."""


class SortedRows:
    """(row, value) values in memory, every row sorted."""

    def __init__(self, values: NDArray[np.float32]) -> None:
        self.values = values

    @property
    def count(self) -> int:
        """Number of values in a row."""
        return self.values.shape[1]

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this index of the sorted row."""
        return self.values[:, position]

    def take(self, rows: NDArray[np.intp]) -> SortedRows:
        """These rows only."""
        return SortedRows(self.values[rows])

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) centre -> (row,) median of the distances from it, each distance rounded to float32.

        The values nearest to the centre are neighbours in the sorted row: a window. Of all windows
        of this length it has the smallest largest distance, which is that of its left or of its right
        end. When the window moves right, the first falls and the second grows; bisection finds where
        they cross.
        """
        middle = self.count // 2
        last = self.count - 1 - middle
        low = np.zeros(len(self.values), np.intp)
        high = low + last
        for _ in range(last.bit_length()):
            probe = (low + high) // 2
            crossed = self._at_each(probe + middle) - centre >= centre - self._at_each(probe)
            high = np.where(crossed, probe, high)
            low = np.where(crossed, low, np.minimum(probe + 1, high))
        # The window is the first one after the crossing or the one before it: the one with the smaller distance.
        before = np.maximum(high - 1, 0)
        reach, reach_before = (
            np.maximum(self._at_each(start + middle) - centre, centre - self._at_each(start))
            for start in (high, before)
        )
        start = np.where(reach_before < reach, before, high)
        farthest = np.minimum(reach, reach_before).astype(np.float64)
        if self.count % 2:
            return farthest
        left, right = centre - self._at_each(start), self._at_each(start + middle) - centre
        next_left, next_right = centre - self._at_each(start + 1), self._at_each(start + middle - 1) - centre
        second = np.where(left > right, np.maximum(next_left, right), np.maximum(left, next_right))
        return (farthest + second) / 2

    def _at_each(self, positions: NDArray[np.intp]) -> NDArray[np.float32]:
        """(row,) positions -> (row,) value of each row at its position."""
        return self.values[np.arange(len(self.values)), positions]

    def total(self, trimmed: int = 0) -> NDArray[np.float64]:
        """(row,) sum without the ``trimmed`` lowest and the ``trimmed`` highest values, rounded once."""
        kept = self.values[:, trimmed : self.count - trimmed]
        bounds = np.maximum(np.abs(kept[:, 0]), np.abs(kept[:, -1]))
        sums = ExactSums(bounds, kept.shape[1])
        if kept.shape[1] >= LONG_ROW:
            sums.add_sorted(kept)
        else:
            sums.add_float32(kept)
        return sums.totals()

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""
        bounds = np.maximum(np.abs(self.values[:, 0]), np.abs(self.values[:, -1])).astype(np.float64)
        sums, squares = ExactSums(bounds, self.count), ExactSums(bounds**2, self.count)
        sums.add_float32(self.values)
        squares.add_squares(self.values)
        return sums.fractions(), squares.fractions()
