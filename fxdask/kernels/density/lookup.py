"""Many densities at many points by few NumPy calls, from the tables of these densities."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.scratch import Scratch

__all__ = ["Lookup"]


class Lookup:
    """The tables of several densities, concatenated into common arrays.

    Threads wait for the GIL between NumPy calls. One call for all nodes and many points waits
    rarely; one call per node would wait often.
    """

    def __init__(self, tables: Sequence[DensityTable]) -> None:
        self.tables = tables
        self._origin = np.array([[table.origin] for table in tables])
        self._per_unit = np.array([[table.pieces_per_unit] for table in tables])
        self._start = np.array([[table.first_piece] for table in tables])
        self._last = np.array([[len(table.row_of_piece) - 1.0] for table in tables])
        self._pieces_before = _lengths_before([table.row_of_piece for table in tables])[:, None]
        rows_before = _lengths_before([table.rows for table in tables])
        self._rows = np.concatenate([table.rows for table in tables])
        self._row_of_piece = np.concatenate(
            [table.row_of_piece + before for table, before in zip(tables, rows_before, strict=True)]
        )

    def log_density(self, points: NDArray[np.float32], scratch: Scratch) -> tuple[NDArray[np.float64], int]:
        """(density, point) values -> (density, point) log densities, and how many of them were summed.

        The result is overwritten by the next call with the same scratch.
        """
        position = scratch("position", points.shape, np.float64)
        np.subtract(points, self._origin, out=position)
        position *= self._per_unit
        position += self._start
        np.clip(position, 0, self._last, out=position)
        piece = scratch("piece", points.shape, np.intp)
        np.copyto(piece, position, casting="unsafe")
        position -= piece
        piece += self._pieces_before
        # With mode="clip" NumPy writes directly into ``out``; every index is in range anyway.
        row = np.take(self._row_of_piece, piece, out=scratch("row", points.shape, np.intp), mode="clip")
        cubic = scratch("cubic", (*points.shape, 4), np.float64)
        np.take(self._rows, row, axis=0, out=cubic, mode="clip")
        result = np.multiply(cubic[..., 3], position, out=scratch("result", points.shape, np.float64))
        for power in (2, 1):
            result += cubic[..., power]
            result *= position
        result += cubic[..., 0]
        return result, self._fill(result, points)

    def _fill(self, result: NDArray[np.float64], points: NDArray[np.float32]) -> int:
        """Fill in the log densities at points that no table covers; return how many were summed."""
        n_summed = 0
        missing = np.isnan(result)
        for index in np.flatnonzero(missing.any(axis=1)).tolist():
            chosen = np.flatnonzero(missing[index])
            result[index, chosen], summed = self.tables[index].log_density_uncovered(points[index, chosen])
            n_summed += summed
        return n_summed


def _lengths_before(arrays: Sequence[NDArray]) -> NDArray[np.intp]:
    """(array,) total length of all arrays before each one."""
    return np.cumsum([0, *map(len, arrays)])[:-1]
