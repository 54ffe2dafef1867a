"""The interface of a criterion: a score of columns, and the measurements that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.counted_distances import Distances
from fxdask.kernels.moments import Moments
from fxdask.kernels.sorted_columns import SortedColumns
from fxdask.kernels.sorted_parts import ColumnParts, PartedColumns, WholeColumn
from fxdask.kernels.statistics import ClassStatistics

__all__ = ["Criterion", "Measurements", "Need", "Rows", "Scores", "column_parts", "required"]

Scores = NDArray[np.float64]
Part = TypeVar("Part")


class Need(Enum):
    """Measurements of columns that a criterion may need."""

    LOCATION_AND_SPREAD = "location and spread"
    MOMENTS = "moments"
    SORTED_COLUMNS = "sorted columns"
    DISTANCES = "distances of distribution functions"
    """From sorted columns, or from counts if a column does not fit into memory."""
    ROWS = "rows"


@dataclass(frozen=True)
class Rows:
    """Samples as rows of all columns to be ranked, in their original order."""

    values: NDArray[np.float32]
    """(sample, column)"""
    codes: NDArray[np.integer]
    """(sample,) class codes"""
    n_anchors: int | None = None
    """Samples whose neighbours are looked for, spread over the classes; None means all."""


@dataclass(frozen=True, kw_only=True)
class Measurements:
    """Measurements of some columns, the input of a criterion; what it does not need may be None."""

    priors: Scores
    """(class,) priors."""
    tolerance: Scores
    """(class, column) spread at or below which a class is treated as constant at a column."""
    statistics: ClassStatistics | None = None
    moments: Moments | None = None
    columns: SortedColumns | None = None
    distances: Distances | None = None
    """Instead of sorted columns, where these do not fit into memory."""
    parts: PartedColumns | None = None
    """Instead of sorted columns, where these do not fit into memory."""
    rows: Rows | None = None
    seed: int = 0
    """For criteria that break ties at random."""


def required(part: Part | None, need: Need) -> Part:
    """A part of the measurements that a criterion has declared to need."""
    if part is None:
        raise ValueError(f"the criterion needs {need.value}, which were not measured")
    return part


def column_parts(measured: Measurements) -> Sequence[ColumnParts]:
    """(column,) sorted columns: each is one part if it is in memory."""
    if measured.parts is not None:
        return measured.parts.columns
    columns = required(measured.columns, Need.SORTED_COLUMNS)
    return [WholeColumn.of(columns, column) for column in range(len(columns.values))]


@dataclass(frozen=True, kw_only=True)
class Criterion:
    """A score of columns: larger is better, and a column with -inf is never selected."""

    name: str
    needs: frozenset[Need]
    score: Callable[[Measurements], Scores]
    """Measurements -> (class, column) scores, or (1, column) scores if there is one for all classes."""
    summary: str
    """One line for users."""
    per_class: bool = True
    """Whether every class has its own scores."""
    p_values: Callable[[Measurements, Scores], Scores] | None = None
    """Measurements and their scores -> p-values of the same shape, if the criterion is a test."""

    @property
    def orders_values(self) -> bool:
        """Whether a column that fits into memory must be sorted for it."""
        return bool(self.needs & {Need.SORTED_COLUMNS, Need.DISTANCES})
