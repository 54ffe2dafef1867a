"""Many densities at many points, looked up in their tables by compiled code.

NumPy reads and writes an array for every step of a look-up; compiled, one pass over the points does all
steps. A table is read from memory once for all points of a call, so a call should have thousands of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.mixed import mixed_sums
from fxdask.kernels.density.score_table import score_limit
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.scratch import Scratch

__all__ = ["Found", "Lookup"]


@dataclass(frozen=True)
class Found:
    """What tables tell of some points."""

    logs: NDArray[np.float64]
    """(density, point) log densities, or (1, point) the sum over all densities"""
    scores: NDArray[np.float64] | None
    """(density, point) normal scores, if the tables have them"""
    n_summed: int
    """Number of densities at points that no table covers"""


class Lookup:
    """The tables of several densities, concatenated into common arrays.

    Parameters
    ----------
    tables : sequence of DensityTable
        All with normal scores, or all without.
    """

    def __init__(self, tables: Sequence[DensityTable]) -> None:
        self.tables = tables
        pieces = np.cumsum([0, *(len(table.row_of_piece) for table in tables)])
        rows = np.cumsum([0, *(len(table.rows) for table in tables)])
        self._rows = np.concatenate([table.rows for table in tables])
        for table, first, last in zip(tables, rows[:-1], rows[1:], strict=True):
            table.rows = self._rows[first:last]  # frees the table's own copy
        self._row_of_piece = np.concatenate(
            [table.row_of_piece + before for table, before in zip(tables, rows[:-1], strict=True)]
        )
        self._scales = np.array(
            [
                (table.origin, table.pieces_per_unit, table.first_piece, score_limit(table.density.n_samples))
                for table in tables
            ]
        )
        self._pieces = np.stack([pieces[:-1], np.diff(pieces) - 1], axis=1)

    @property
    def has_scores(self) -> bool:
        """Whether the tables have normal scores."""
        return self._rows.shape[1] > 4

    def __call__(self, values: NDArray[np.floating], scratch: Scratch, rows: NDArray[np.intp] | None = None) -> Found:
        """(node, point) values, (density,) the row of each density's points -> all log densities and normal scores.

        Without ``rows``, density i is looked up at the points of row i. The results are overwritten by
        the next call with the same scratch.
        """
        rows = np.arange(len(self.tables)) if rows is None else rows
        logs, scores, is_covered = self._look_up(values, scratch, rows, len(rows))
        n_summed = 0
        if not is_covered:
            for index in np.flatnonzero(np.isnan(logs).any(axis=1)).tolist():
                missing = np.flatnonzero(np.isnan(logs[index]))
                found = self._uncovered(index, values[rows[index], missing])
                logs[index, missing] = found.logs
                if scores is not None:
                    scores[index, missing] = found.scores
                n_summed += found.n_summed
        return Found(logs, scores, n_summed)

    def totals(self, values: NDArray[np.float32], scratch: Scratch, rows: NDArray[np.intp]) -> Found:
        """The same, but with the sum of the log densities over all densities; it has the bits of a sum row by row."""
        logs, scores, is_covered = self._look_up(values, scratch, rows, 1)
        n_summed = 0
        if not is_covered:
            missing = np.flatnonzero(np.isnan(logs[0]))
            found = self(values[:, missing], Scratch(), rows)
            logs[0, missing] = sum(found.logs, np.zeros(len(missing)))
            if scores is not None:
                scores[:, missing] = found.scores
            n_summed = found.n_summed
        return Found(logs, scores, n_summed)

    def _look_up(
        self, values: NDArray[np.float32], scratch: Scratch, rows: NDArray[np.intp], n_logs: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64] | None, bool]:
        """Log densities or their sum, NaN where a table does not cover a point; scores; whether all are covered."""
        n_points = values.shape[1]
        logs = scratch("log densities", (n_logs, n_points), np.float64)
        scores = scratch("normal scores", (len(rows) if self.has_scores else 0, n_points), np.float64)
        logs[:] = 0
        tables = (self._scales, self._pieces, self._row_of_piece, self._rows)
        is_covered = _compiled()(values, rows, tables, logs, scores)
        return logs, scores if self.has_scores else None, is_covered

    def _uncovered(self, index: int, points: NDArray[np.float32]) -> Found:
        """(point,) values without a cell in this table -> (point,) log densities, and normal scores if it has them."""
        table = self.tables[index]
        if table.wide is None:
            logs, n_summed = table.log_density_uncovered(points)
            return Found(logs, None, n_summed)
        return Found(*mixed_sums(points, table), len(points))


def _look_up(
    values: NDArray[np.float32],
    rows: NDArray[np.intp],
    tables: tuple[NDArray[np.float64], NDArray[np.intp], NDArray[np.intp], NDArray[np.float64]],
    logs: NDArray[np.float64],
    scores: NDArray[np.float64],
) -> bool:
    """(node, point) values -> log densities added to ``logs``, NaN where no cell covers a point; whether all are."""
    scales, pieces, row_of_piece, cubics = tables
    n_missing = 0
    for density in range(len(rows)):
        origin, per_unit, start, limit = scales[density]
        before, last = pieces[density]
        of_piece = row_of_piece[before : before + last + 1]
        points, of_density = values[rows[density]], logs[density % len(logs)]
        for point in range(len(points)):
            position = (points[point] - origin) * per_unit + start
            position = min(max(position, 0.0), float(last))
            piece = int(position)
            cubic = cubics[of_piece[piece]]
            x = position - piece
            log = ((cubic[3] * x + cubic[2]) * x + cubic[1]) * x + cubic[0]
            of_density[point] += log
            n_missing += np.isnan(log)
            if len(scores):
                score = ((cubic[7] * x + cubic[6]) * x + cubic[5]) * x + cubic[4]
                scores[density, point] = min(max(score, -limit), limit)
    return n_missing == 0


@cache
def _compiled() -> Callable[..., bool]:
    """:func:`_look_up` compiled to machine code on first use."""
    return import_module("numba").njit(nogil=True, cache=True)(_look_up)
