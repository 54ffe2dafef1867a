"""A kernel density as a table of its logarithm, with an error bound; beyond the samples, tails and sums.

:mod:`fxdask.kernels.density.cells` makes the cubics of a table.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.cells import PIECES, Density, TableCells, Tabulated, table_cells
from fxdask.kernels.density.grid_sums import STEP
from fxdask.kernels.density.tails import Tail
from fxdask.kernels.density.wide_normal import WideNormal

__all__ = ["DensityTable"]


class DensityTable:
    """The log of one Gaussian kernel density, and with a wide normal also the normal scores of the mixture.

    :class:`fxdask.kernels.density.lookup.Lookup` evaluates it.

    Parameters
    ----------
    ascending : (sample,) float32, ascending
    bandwidth : float
    wide : WideNormal, optional
        Mixed with the kernels as one more sample.

    Attributes
    ----------
    error : float
        Bound on the error of every log density, which is the relative error of the density;
        rounding in proportion to the log density is not included.
    score_error : float
        Bound on the error of every normal score; 0 without a wide normal.
    rows : (row, power) cubics of ln f along a piece, then those of the normal score; row 0 is NaN
    row_of_piece : (piece,) index of the row; 0 for pieces left out, and for the first and the last piece
    origin, pieces_per_unit, first_piece : float
        A value z lies in piece ``(z - origin) * pieces_per_unit + first_piece``.
    """

    def __init__(self, ascending: NDArray[np.float32], bandwidth: float, wide: WideNormal | None = None) -> None:
        density = Density(ascending, bandwidth, wide)
        (cells,) = table_cells([density])
        self._set(density, cells)

    @classmethod
    def many(cls, densities: Sequence[Tabulated]) -> list[Self]:
        """The tables of several densities at once, which takes less time; all have a wide normal, or none has."""
        tables = []
        for density, cells in zip(densities, table_cells(densities) if densities else [], strict=True):
            table = cls.__new__(cls)
            table._set(density, cells)
            tables.append(table)
        return tables

    def _set(self, density: Tabulated, cells: TableCells) -> None:
        self.density, self.bandwidth, self.wide = density, density.bandwidth, density.wide
        self.error, self.score_error = cells.error, cells.score_error
        self._log_scale = density.log_scale
        self.origin = np.float64(density.origin)
        n_powers, n_rows = cells.cubics.shape[2], len(cells.cells) * PIECES
        self.rows = np.concatenate([np.full((1, n_powers), np.nan), cells.cubics.reshape(n_rows, n_powers)])
        n_cells = int(cells.cells[-1]) + 1 if n_rows else 0
        of_piece = np.zeros((n_cells, PIECES), np.intp)
        of_piece[cells.cells] = 1 + np.arange(n_rows).reshape(-1, PIECES)
        self.row_of_piece = np.concatenate([[0], of_piece.ravel(), [0]])
        self.pieces_per_unit = PIECES / STEP / self.bandwidth
        self.first_piece = 1 - (cells.first - 0.5) * PIECES

    @property
    def n_bytes(self) -> int:
        """Bytes of the table, without the samples."""
        return self.rows.nbytes + self.row_of_piece.nbytes

    @property
    def ascending(self) -> NDArray[np.float32]:
        """(sample,) values; only a table that was made of them has them."""
        assert isinstance(self.density, Density), "the samples are known"
        return self.density.ascending

    @cached_property
    def _tails(self) -> list[tuple[float, Tail] | None]:
        """The lowest and the highest sample with the tails beyond them, built on first use; None if not known."""
        found: list[tuple[float, Tail] | None] = []
        for side, values in enumerate(self.density.outermost()):
            if values is None:
                found.append(None)
                continue
            distances = values.astype(np.float64)
            behind = (distances[-1] - distances)[::-1] if side else distances - distances[0]
            edge = float(distances[-1] if side else distances[0])
            found.append((edge, Tail(behind / self.bandwidth, self.density.n_samples)))
        return found

    def log_density_uncovered(self, points: NDArray[np.float32]) -> tuple[NDArray[np.float64], int]:
        """(point,) values without a cell -> (point,) log density by the tails or by sums, and how many were summed.

        It is NaN where a sum would be needed of samples that are not known.
        """
        result = np.full(len(points), np.nan)
        values = points.astype(np.float64)
        for tail, sign in zip(self._tails, (-1, 1), strict=True):
            if tail is None:
                continue
            distance = (values - tail[0]) * (sign / self.bandwidth)
            inside = np.flatnonzero(distance >= Tail.start)
            if len(inside):
                result[inside] = tail[1].log_sum(distance[inside]) - self._log_scale
        missing = np.flatnonzero(np.isnan(result))
        if len(missing):
            result[missing] = self.density.summed(points[missing])
        return result, len(missing)
