"""Measure a block of columns as a criterion needs it, and score every column."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.criteria.base import Measurements, Need
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.moments import Moments, class_moments, merge_moments
from fxdask.kernels.order_statistics import row_groups
from fxdask.kernels.projection import ClassValues
from fxdask.kernels.sorted_columns import SortedColumns
from fxdask.kernels.statistics import ClassStatistics, class_statistics, selected_statistics, shrunk_spread
from fxdask.sizes import BYTES_PER_SORTED_GROUP, row_ranges
from fxdask.tasks.cache import job_cache
from fxdask.tasks.columns import Columns
from fxdask.tasks.job import FitJob
from fxdask.tasks.streaming import streamed_statistics
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["MeasuredBlock", "measure_block"]


@dataclass(frozen=True)
class MeasuredBlock:
    """(class, column) statistics and scores; (column, sample) values ascending in each class, if they are kept."""

    statistics: ClassStatistics
    scores: NDArray[np.float64]
    ascending: NDArray[np.float32] | None = None


def measure_block(
    job: FitJob, columns: Columns, first: int, counters: TaskCounters, *, streamed: bool
) -> MeasuredBlock:
    """Block of columns, number of its first column -> location, spread and scores of all its columns."""
    needs, orders_values = CRITERIA[job.criterion].needs, CRITERIA[job.criterion].orders_values
    if streamed:
        assert not orders_values, "the plan refuses to stream columns that must be sorted"
        statistics = _shrunk(job, streamed_statistics(job, columns, counters))
        moments = _streamed_moments(job, columns) if Need.MOMENTS in needs else None
        return MeasuredBlock(statistics, _scores(job, columns.tolerance, statistics, moments))
    ascending = None
    if "projections" in job.plan.kept:
        ascending = np.empty((columns.n_columns, job.plan.n_samples), np.float32)
    values, tolerance, scratch = columns.all_values(), columns.tolerance, job_cache(job).scratch
    if orders_values:
        return _scored_by_groups(job, values, tolerance, first, ascending)
    if ascending is None and job.plan.selects_values:
        statistics = _shrunk(job, selected_statistics(values, tolerance, job.location, job.spread, scratch))
    else:
        statistics = _shrunk(job, class_statistics(values, tolerance, job.location, job.spread, scratch, ascending))
    moments = class_moments(values, scratch) if Need.MOMENTS in needs else None
    return MeasuredBlock(statistics, _scores(job, tolerance, statistics, moments), ascending)


def _scored_by_groups(
    job: FitJob,
    values: ClassValues,
    tolerance: NDArray[np.float64],
    first: int,
    ascending: NDArray[np.float32] | None,
) -> MeasuredBlock:
    """Few columns at a time, so that their sorted values need little memory: each column is sorted once."""
    n_columns, n_samples = values.n_nodes, job.plan.n_samples
    statistics = ClassStatistics.empty(job.plan.n_classes, n_columns)
    scores = np.empty((job.plan.n_classes, n_columns))
    scratch = job_cache(job).scratch
    for rows in row_groups(n_columns, n_samples, BYTES_PER_SORTED_GROUP):
        some = np.arange(rows.start, rows.stop)
        group = scratch("sorted columns", (len(some), n_samples)) if ascending is None else ascending[rows]
        of_group = class_statistics(
            values.take(rows), tolerance[:, rows], job.location, job.spread, scratch, ascending=group
        )
        of_group = _shrunk(job, of_group)
        statistics.put(some, of_group)
        in_order = SortedColumns.of(group, job.plan.class_counts, first + some)
        scores[:, rows] = _scores(job, tolerance[:, rows], of_group, columns=in_order)
    return MeasuredBlock(statistics, scores, ascending)


def _shrunk(job: FitJob, statistics: ClassStatistics) -> ClassStatistics:
    """Statistics with the spreads by which columns are ranked."""
    if not job.shrink_spread:
        return statistics
    return replace(statistics, spread=shrunk_spread(statistics.spread, job.plan.class_counts))


def _streamed_moments(job: FitJob, columns: Columns) -> Moments:
    """Moments of all columns of a block, from one more pass over the samples for each part of it."""
    parts = []
    for start, stop in row_ranges(columns.n_columns, job.plan.nodes_per_pass):
        chunks = columns.chunks(np.arange(start, stop))
        parts.append(merge_moments([class_moments(chunk) for chunk in chunks]))
    return Moments.joined(parts)


def _scores(
    job: FitJob,
    tolerance: NDArray[np.float64],
    statistics: ClassStatistics,
    moments: Moments | None = None,
    columns: SortedColumns | None = None,
) -> NDArray[np.float64]:
    """Measurements of some columns -> (class, column) scores; a column constant over all classes has -inf."""
    measured = Measurements(
        priors=job.priors,
        tolerance=tolerance,
        statistics=statistics,
        moments=moments,
        columns=columns,
        seed=job.seed,
    )
    criterion = CRITERIA[job.criterion]
    scores = np.broadcast_to(criterion.score(measured), statistics.location.shape)
    if Need.LOCATION_AND_SPREAD in criterion.needs:
        return scores
    apart = np.ptp(statistics.location, axis=0) > tolerance.max(axis=0)
    is_constant = ~statistics.spread.any(axis=0) & ~apart
    return np.where(is_constant, -np.inf, scores)
