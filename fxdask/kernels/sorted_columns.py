"""All values of some columns, ascending within each class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.projection import ColumnValues, ValuesByClass
from fxdask.kernels.radix_sort import sort_rows
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import LOCATIONS, ZERO, ClassStatistics, sorted_classes, spread_with_fallback

__all__ = ["SortedColumns", "sort_columns", "sort_in_place", "sorted_statistics"]


@dataclass(frozen=True)
class SortedColumns:
    """(column, sample) values: one class after another, each ascending, missing values (NaN) last in their class."""

    values: NDArray[np.float32]
    edges: NDArray[np.int64]
    """(class + 1,) where the values of each class start, and the end."""
    counts: NDArray[np.int64]
    """(class, column) values that are not NaN."""
    indices: NDArray[np.int64]
    """(column,) numbers of the columns among all columns."""

    @classmethod
    def of(
        cls, ascending: NDArray[np.float32], class_counts: Sequence[int], indices: NDArray[np.integer]
    ) -> SortedColumns:
        """(column, sample) values in this order, samples of each class with missing ones, numbers of the columns."""
        edges = np.concatenate([[0], np.cumsum(class_counts)]).astype(np.int64)
        counts = np.repeat(np.diff(edges)[:, None], len(ascending), axis=1)
        for k, (first, last) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
            if first == last:
                continue
            for column in np.flatnonzero(np.isnan(ascending[:, last - 1])).tolist():
                counts[k, column] -= np.count_nonzero(np.isnan(ascending[column, first:last]))
        return cls(ascending, edges, counts, np.asarray(indices, np.int64))

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.counts)

    def of_class(self, k: int, column: int) -> NDArray[np.float32]:
        """(value,) values of one class at one column, without NaN."""
        first = int(self.edges[k])
        return self.values[column, first : first + int(self.counts[k, column])]


def sort_in_place(values: ColumnValues, indices: NDArray[np.integer], scratch: Scratch | None = None) -> SortedColumns:
    """(column, sample) values, of which each class is one run, in the order of the classes -> the same, sorted."""
    for (run,) in values.runs:
        sort_rows(values.values, run, scratch)
    return SortedColumns.of(values.values, [values.count(k) for k in range(len(values.runs))], indices)


def sort_columns(values: ValuesByClass, indices: NDArray[np.integer], scratch: Scratch | None = None) -> SortedColumns:
    """(column, sample) values, (column,) numbers of the columns -> the values ascending within each class."""
    class_counts = [values.count(k) for k in range(values.n_classes)]
    last = np.cumsum(class_counts).tolist()
    ascending = np.empty((values.n_nodes, last[-1]), np.float32)
    for k, rows, ordered in sorted_classes(values, scratch or Scratch()):
        ascending[rows, last[k] - ordered.count : last[k]] = ordered.values
    return SortedColumns.of(ascending, class_counts, indices)


def sorted_statistics(
    columns: SortedColumns, tolerance: NDArray[np.float64], location: str, spread: str
) -> ClassStatistics:
    """(class, column) tolerance -> location and spread of the values that are not missing; 0 where there are none."""
    result = ClassStatistics.empty(*columns.counts.shape)
    result.location[...], result.spread[...], result.source[...] = 0.0, 0.0, ZERO
    for k in range(columns.n_classes):
        first, last = columns.edges[k : k + 2].tolist()
        whole = columns.counts[k] == last - first
        groups = [np.flatnonzero(whole)] if last > first else []
        # Columns with missing values have different lengths, so they are measured one by one.
        groups += [np.array([column]) for column in np.flatnonzero(~whole & (columns.counts[k] > 0))]
        for some in groups:
            if not len(some):
                continue
            rows = slice(None) if len(some) == len(whole) else some
            ordered = SortedRows(columns.values[rows, first : first + int(columns.counts[k, some[0]])])
            result.location[k, some] = LOCATIONS[location](ordered)
            result.spread[k, some], result.source[k, some] = spread_with_fallback(ordered, spread, tolerance[k, some])
    return result
