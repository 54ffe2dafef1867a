"""The tasks of a ranking: copy a range of rows by columns, and measure and score a block of features in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, NotFiniteError
from fxdask.kernels.criteria.base import Measurements, Need, Scores
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.features import (
    ClassOrder,
    FeatureValues,
    as_features,
    gathered_type,
    scatter_columns,
    scatter_rows,
)
from fxdask.kernels.moments import Moments, class_moments, moment_statistics
from fxdask.kernels.order_statistics import row_groups
from fxdask.kernels.preprocessing import checked_rows
from fxdask.kernels.sorted_columns import SortedColumns, sort_in_place, sorted_statistics
from fxdask.kernels.statistics import ClassStatistics, shrunk_spread
from fxdask.planning.rank_plan import RankPlan
from fxdask.sizes import BYTES_PER_RANKED_GROUP, NodeBlock
from fxdask.store.columns import ColumnSource, StagedCodes, StagedColumns, read_columns
from fxdask.store.ranking import RankingStore
from fxdask.store.sources import Source
from fxdask.tasks.cache import job_cache
from fxdask.tasks.reading import read_range
from fxdask.tasks.telemetry import TaskCounters, WorkerStats, merge_worker_stats, this_worker

__all__ = [
    "OUTERMOST",
    "RankJob",
    "RankParts",
    "check_finite",
    "check_length",
    "criteria_results",
    "measured_block",
    "merge_parts",
    "moment_results",
    "open_ranking",
    "ordered_features",
    "ranges_of_counts",
    "rank_block",
    "read_rows",
    "result_names",
    "stage_range",
    "with_shrunk_spread",
]

OUTERMOST = ("missing", "lowest", "highest")
"""The first results of every feature: missing values, and the range of the others."""


@dataclass(frozen=True, kw_only=True, eq=False)
class RankJob:
    """All that a task needs besides the samples; a graph holds it once for all blocks."""

    plan: RankPlan
    criteria: tuple[str, ...]
    """Those that are computed column by column."""
    codes: NDArray[np.integer] | StagedCodes
    """(sample,) class codes; in the store if values are counted, so that no task holds those of all samples."""
    class_counts: tuple[int, ...]
    """(class,) samples of each class"""
    priors: NDArray[np.float64]
    dtype: str
    """Of the raw samples, in NumPy's notation."""
    location: str
    spread: str
    shrink_spread: bool
    seed: int
    omits_missing: bool
    store: str | None = None

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.priors)

    @property
    def needs(self) -> frozenset[Need]:
        """What the criteria need together."""
        return frozenset().union(*(CRITERIA[name].needs for name in self.criteria))

    @property
    def uses_moments_for_spread(self) -> bool:
        """Whether location and spread are plain moments, which need no sorted values."""
        return self.location == "mean" and self.spread == "std"

    @property
    def sorts_columns(self) -> bool:
        """Whether values must be sorted."""
        return self.needs_order_statistics or any(CRITERIA[name].orders_values for name in self.criteria)

    @property
    def sorting_criteria(self) -> tuple[str, ...]:
        """The criteria that need all values of a column at once."""
        return tuple(name for name in self.criteria if Need.SORTED_COLUMNS in CRITERIA[name].needs)

    @property
    def needs_order_statistics(self) -> bool:
        """Whether location and spread are other than plain moments."""
        return Need.LOCATION_AND_SPREAD in self.needs and not self.uses_moments_for_spread


@dataclass(frozen=True)
class RankParts:
    """Results of some blocks by block index, if there is no store; and the counters of the processes."""

    results: dict[int, NDArray[np.float64]]
    """(result, feature)"""
    workers: dict[str, WorkerStats]
    n_resumed: int


def merge_parts(parts: Sequence[RankParts]) -> RankParts:
    """Parts of disjoint blocks, in any order -> one part."""
    return RankParts(
        {index: values for part in parts for index, values in part.results.items()},
        merge_worker_stats(part.workers for part in parts),
        sum(part.n_resumed for part in parts),
    )


def result_names(criteria: Sequence[str], n_classes: int) -> list[str]:
    """The names of all results of a feature: scores and p-values of each criterion, of each class if it has such."""
    names = list(OUTERMOST)
    for name in criteria:
        suffixes = [f"/{k}" for k in range(n_classes)] if CRITERIA[name].per_class else [""]
        kinds = ("score", "p_value") if CRITERIA[name].p_values else ("score",)
        names += [f"{name}/{kind}{suffix}" for kind in kinds for suffix in suffixes]
    return names


def open_ranking(job: RankJob) -> RankingStore | None:
    """The store that the job writes to, opened once in each process."""
    url = job.store
    if url is None:
        return None
    return job_cache(job).get("store", lambda: RankingStore.open(url, "r+", finished=False))


def stage_range(job: RankJob, samples: Source, index: int, given: bool = False) -> None:
    """One range of raw samples -> its chunks by columns in the store; ``given`` if the samples are the range alone.

    A range that is marked is left as it is, so a task may run twice.
    """
    store = open_ranking(job)
    assert store is not None, "only a job with a store copies samples"
    if store.has_range(index):
        return
    rows, start = read_rows(job, samples, index, given=given)
    if not job.omits_missing:
        checked_rows(rows, start)
    positions = np.arange(len(rows), dtype=np.uintp)
    chunks = []
    for block in map(job.plan.block, range(job.plan.n_blocks)):
        chunk = np.empty((block.n_nodes, len(rows)), rows.dtype.newbyteorder("="))
        some = rows[:, block.start : block.stop]
        if rows.dtype == np.float16 or not rows.dtype.isnative:
            chunk[...] = some.T
        else:
            scatter_rows(some, positions, chunk)
        chunks.append(chunk)
    store.write_range(index, chunks)


def read_rows(job: RankJob, samples: Source, index: int, *, given: bool) -> tuple[NDArray, int]:
    """One range of raw samples, and the number of its first one."""
    start, stop = job.plan.row_range(index)
    rows = read_range(samples, start, None if given else stop)
    if rows.shape != (stop - start, job.plan.size.n_features):
        raise InvalidInputError(
            f"X has changed: samples {start} to {stop} have shape {rows.shape}; rank it again while it does not change"
        )
    return rows, start


def moment_results(job: RankJob, moments: Moments) -> NDArray[np.float64]:
    """Moments of all features over all samples -> (result, feature) results of criteria that need no order."""
    tolerance = np.zeros(moments.counts.shape)
    measured = Measurements(
        priors=job.priors,
        tolerance=tolerance,
        statistics=_statistics(job, tolerance, moments, None),
        moments=moments,
        seed=job.seed,
    )
    ranges = ranges_of_counts(moments.counts, moments.lowest.min(axis=0), moments.highest.max(axis=0), len(job.codes))
    return np.concatenate([ranges, criteria_results(job, measured)])


def rank_block(job: RankJob, columns: ColumnSource, index: int) -> RankParts:
    """Columns of raw samples, one block of features -> its results; with a store they are written and marked.

    A block that is marked is not computed again, so a task may run twice.
    """
    return measured_block(job, columns, index, _sorted_results)


def measured_block(
    job: RankJob,
    columns: ColumnSource,
    index: int,
    measure: Callable[[RankJob, ColumnSource, NodeBlock, TaskCounters], NDArray[np.float64]],
) -> RankParts:
    """One block of features, the function that measures it -> its results, or only its mark if they are written."""
    block, store = job.plan.block(index), open_ranking(job)
    if store is not None and store.read_done(block) is not None:
        return RankParts({}, {}, 1)
    counters = TaskCounters()
    if store is None:
        return RankParts({index: measure(job, columns, block, counters)}, this_worker(counters), 0)
    with store.staged_reads() if isinstance(columns, StagedColumns) else nullcontext():
        results = measure(job, columns, block, counters)
    store.write_block(block, results)
    return RankParts({}, this_worker(counters), 0)


def _sorted_results(
    job: RankJob, columns: ColumnSource, block: NodeBlock, counters: TaskCounters
) -> NDArray[np.float64]:
    """(result, feature) results of a block whose values all fit into memory."""
    gathered, order = _gathered(job, columns, block, counters)
    ranges = None
    if gathered.dtype != np.float32:
        # Values that are rounded lose their units, so their range is looked at before.
        ranges = _ranges_of_values(gathered)
        check_finite(job, columns, block.start, ranges)
    criteria, measured = _criteria(job, columns, as_features(gathered, order), block.start)
    return np.concatenate([measured if ranges is None else ranges, criteria])


def ordered_features(job: RankJob, columns: ColumnSource, feature: int) -> tuple[NDArray[np.floating], ClassOrder]:
    """(1, sample) raw values of one feature, ordered by class, and this order."""
    return _gathered(job, columns, NodeBlock(0, feature, feature + 1), TaskCounters())


def _gathered(
    job: RankJob, columns: ColumnSource, block: NodeBlock, counters: TaskCounters
) -> tuple[NDArray[np.floating], ClassOrder]:
    """(feature, sample) raw values of a block, ordered by class, in the thread's scratch array."""
    order = job_cache(job).get("order", lambda: ClassOrder.of(job.codes[: len(job.codes)], job.n_classes))
    shape = (block.n_nodes, len(job.codes))
    gathered = job_cache(job).scratch("values", shape, gathered_type(np.dtype(job.dtype)))
    counters.passes += 1
    done = 0
    for first, piece in read_columns(columns, block.start, block.stop):
        positions = order.positions[first : first + piece.shape[1]]
        if isinstance(columns, np.ndarray):
            scatter_rows(piece.T, positions, gathered)
        else:
            scatter_columns(piece, positions, gathered)
            counters.bytes_read += piece.nbytes
        done += len(positions)
    check_length(job, done)
    return gathered, order


def check_length(job: RankJob, n_samples: int) -> None:
    """Refuse columns of another length than the labels."""
    if n_samples != len(job.codes):
        raise InvalidInputError(
            f"X has {n_samples} samples but y has {len(job.codes)} labels; pass one label per sample"
        )


def _ranges_of_values(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """(feature, sample) values -> (3, feature) missing values, lowest and highest value."""
    lowest, highest = np.minimum.reduce(values, axis=1), np.maximum.reduce(values, axis=1)
    missing = np.zeros(len(values))
    for feature in np.flatnonzero(np.isnan(lowest)).tolist():
        present = values[feature][~np.isnan(values[feature])]
        missing[feature] = values.shape[1] - len(present)
        lowest[feature], highest[feature] = (present.min(), present.max()) if len(present) else (np.nan, np.nan)
    return np.stack([missing, lowest, highest]).astype(np.float64)


def _measured_ranges(
    values: NDArray[np.float32], moments: Moments | None, in_order: SortedColumns | None
) -> NDArray[np.float64]:
    """(feature, sample) values -> (3, feature) missing values, lowest and highest value, by what was measured."""
    n_samples = values.shape[1]
    if moments is not None:
        return ranges_of_counts(moments.counts, moments.lowest.min(axis=0), moments.highest.max(axis=0), n_samples)
    if in_order is None:
        return _ranges_of_values(values)
    counts, first = in_order.counts, np.broadcast_to(in_order.edges[:-1, None], in_order.counts.shape)
    columns = np.arange(len(values))
    # A class without values has NaN here, which the others' minimum and maximum ignore.
    lowest = np.fmin.reduce(values[columns, first], axis=0)
    highest = np.fmax.reduce(values[columns, first + np.maximum(0, counts - 1)], axis=0)
    return ranges_of_counts(counts, lowest, highest, n_samples)


def ranges_of_counts(
    counts: NDArray[np.int64], lowest: NDArray[np.float32], highest: NDArray[np.float32], n_samples: int
) -> NDArray[np.float64]:
    """(class, feature) values that are not missing, (feature,) ranges -> (3, feature) missing, lowest, highest."""
    missing = n_samples - counts.sum(axis=0)
    empty = missing == n_samples
    return np.stack([missing, np.where(empty, np.nan, lowest), np.where(empty, np.nan, highest)]).astype(np.float64)


def check_finite(job: RankJob, columns: ColumnSource, first: int, ranges: NDArray[np.float64]) -> None:
    """Refuse infinity, and NaN unless it is omitted, in features from ``first`` on, with its first sample."""
    missing, lowest, highest = ranges
    if missing.any() and not job.omits_missing:
        raise _not_finite(job, columns, first + int(np.flatnonzero(missing)[0]), "NaN")
    infinite = np.flatnonzero(np.isinf(lowest) | np.isinf(highest))
    if len(infinite):
        raise _not_finite(job, columns, first + int(infinite[0]), "infinity")


def _not_finite(job: RankJob, columns: ColumnSource, feature: int, what: str) -> NotFiniteError:
    """The error about a feature, which is read again, because sorted values do not tell their samples."""
    is_wrong, block = np.isnan if what == "NaN" else np.isinf, job.plan.block_of(feature)
    for first, piece in read_columns(columns, block.start, block.stop):
        found = np.flatnonzero(is_wrong(piece[feature - block.start]))
        if len(found):
            return NotFiniteError(what, first + int(found[0]), feature)
    raise InvalidInputError(f"X has changed: feature {feature} had {what}; rank it again while it does not change")


def _criteria(
    job: RankJob, columns: ColumnSource, features: FeatureValues, first: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Values of a block, number of its first feature -> (result, feature) results of all criteria, (3, feature) ranges.

    Few columns at a time are sorted, once for all criteria; the values are overwritten.
    """
    n_columns, n_samples = features.columns.values.shape
    scratch, results, ranges = job_cache(job).scratch, [], []
    for rows in row_groups(n_columns, n_samples, BYTES_PER_RANKED_GROUP):
        some, tolerance = features.columns.take(rows), features.tolerance[:, rows]
        indices = first + np.arange(rows.start, rows.start + len(some.values))
        in_order = sort_in_place(some, indices, scratch) if job.sorts_columns else None
        with np.errstate(all="ignore"):  # infinity is refused below
            moments = class_moments(some, scratch) if _needs_moments(job) else None
        ranges.append(_measured_ranges(some.values, moments, in_order))
        check_finite(job, columns, first + rows.start, ranges[-1])
        measured = Measurements(
            priors=job.priors,
            tolerance=tolerance,
            statistics=_statistics(job, tolerance, moments, in_order),
            moments=moments,
            columns=in_order,
            seed=job.seed,
        )
        results.append(criteria_results(job, measured))
    return np.concatenate(results, axis=1), np.concatenate(ranges, axis=1)


def _needs_moments(job: RankJob) -> bool:
    plain = Need.LOCATION_AND_SPREAD in job.needs and job.uses_moments_for_spread
    return plain or Need.MOMENTS in job.needs


def _statistics(
    job: RankJob, tolerance: NDArray[np.float64], moments: Moments | None, columns: SortedColumns | None
) -> ClassStatistics | None:
    if Need.LOCATION_AND_SPREAD not in job.needs:
        return None
    if job.uses_moments_for_spread:
        assert moments is not None, "plain statistics come from moments"
        statistics = moment_statistics(moments, tolerance)
    else:
        assert columns is not None, "robust statistics come from sorted columns"
        statistics = sorted_statistics(columns, tolerance, job.location, job.spread)
    return with_shrunk_spread(job, statistics)


def with_shrunk_spread(job: RankJob, statistics: ClassStatistics) -> ClassStatistics:
    """Statistics with the spreads by which features are ranked."""
    if not job.shrink_spread:
        return statistics
    return replace(statistics, spread=shrunk_spread(statistics.spread, job.class_counts))


def criteria_results(job: RankJob, measured: Measurements) -> NDArray[np.float64]:
    """(result, column) scores and p-values of all criteria, in the order of ``result_names``."""
    found: list[Scores] = []
    for name in job.criteria:
        criterion = CRITERIA[name]
        scores = np.array(criterion.score(measured))
        if Need.LOCATION_AND_SPREAD in criterion.needs:
            scores[:, _without_spread(measured)] = -np.inf
        found.append(scores)
        if criterion.p_values:
            found.append(criterion.p_values(measured, scores))
    if not found:
        return np.empty((0, measured.tolerance.shape[1]))
    return np.concatenate(found)


def _without_spread(measured: Measurements) -> NDArray[np.bool_]:
    """(column,) whether missing values leave a class fewer than two values, which have no spread."""
    counts = (measured.columns or measured.moments).counts  # type: ignore[union-attr]
    return np.any(counts < 2, axis=0)
