"""Graphs of a ranking: copies by columns, all blocks of features, neighbours of ReliefF, curves of the best."""

from __future__ import annotations

import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute, compute_with_retries
from fxdask.execution.graphs import SamplesHandle, is_in_memory, merged, row_tasks, shared_constant
from fxdask.kernels.copula import ScoreSums
from fxdask.kernels.criteria.relief import Neighbours
from fxdask.planning.rank_plan import ReliefPlan
from fxdask.sizes import row_ranges
from fxdask.store.columns import ColumnSource
from fxdask.tasks import curves as curve_tasks
from fxdask.tasks import pool as pool_tasks
from fxdask.tasks import rank as tasks
from fxdask.tasks import rank_counted as counted_tasks
from fxdask.tasks import redundancy as redundancy_tasks
from fxdask.tasks import relief as relief_tasks
from fxdask.tasks import row_moments as moment_tasks
from fxdask.tasks.rank import RankJob, RankParts, open_ranking
from fxdask.tasks.redundancy import Candidates, joined_candidates
from fxdask.tasks.relief import ReliefJob
from fxdask.tasks.row_moments import RangeMoments

__all__ = [
    "draw_curves",
    "find_neighbours",
    "measure_candidates",
    "rank_blocks",
    "stage_columns",
    "sum_candidates",
    "sum_moments",
]

CANDIDATES_PER_TASK = 8


def stage_columns(job: RankJob, samples: SamplesHandle, progress: Progress | None = None) -> None:
    """Copy raw samples into the store by columns, in one pass over the rows."""
    stage, plan = delayed(tasks.stage_range, pure=False), job.plan
    store = open_ranking(job)
    assert store is not None, "only a job with a store copies samples"

    def ranges() -> tuple[list[Delayed], list[Delayed]]:
        shared = shared_constant(job, "job")
        parts = row_tasks(samples, plan.size.n_samples, plan.size.n_features, plan.rows_per_range)
        given = isinstance(samples, DaskArray)
        work = [stage(shared, part, index, given) for index, (_, _, part) in enumerate(parts)]
        return work, work

    compute_with_retries(ranges, store.n_ranges_done, progress, local=is_in_memory(samples))


def sum_moments(
    job: RankJob, samples: SamplesHandle, probed: NDArray[np.int64], progress: Progress | None = None
) -> RangeMoments:
    """Raw samples, (probe,) ascending rows -> the moments of all features in one pass, and the probed rows."""
    add_up, plan, given = delayed(moment_tasks.range_moments, pure=False), job.plan, isinstance(samples, DaskArray)
    shared, work = shared_constant(job, "job"), []
    parts = row_tasks(samples, plan.size.n_samples, plan.size.n_features, plan.rows_per_range)
    for index, (start, _, part) in enumerate(parts):
        first, last = np.searchsorted(probed, [start, start + plan.rows_per_range])
        work.append(add_up(shared, part, index, probed[first:last], given))
    return compute(merged(work, moment_tasks.add_range_moments), progress, work, local=is_in_memory(samples))[0]


def rank_blocks(job: RankJob, columns: ColumnSource, progress: Progress | None = None) -> RankParts:
    """Columns of raw samples -> the results of all blocks of features, merged as a tree."""
    rank = delayed(counted_tasks.count_block if job.plan.is_counted else tasks.rank_block, pure=False)

    def blocks() -> tuple[list[Delayed], list[Delayed]]:
        shared = [shared_constant(value, name) for value, name in ((job, "job"), (columns, "columns"))]
        all_blocks = [rank(*shared, index) for index in range(job.plan.n_blocks)]
        return merged(all_blocks, tasks.merge_parts), all_blocks

    store = open_ranking(job)
    return compute_with_retries(blocks, store.n_done if store else None, progress)[0]


def find_neighbours(
    job: ReliefJob, samples: SamplesHandle, plan: ReliefPlan, progress: Progress | None = None
) -> Neighbours:
    """Raw samples -> the nearest rows of every class for every anchor."""
    find, shared = delayed(relief_tasks.nearest_rows, pure=False), shared_constant(job, "relief")
    n_features = job.anchors.scaled.shape[1] if job.project is None else job.project.n_features
    parts = row_tasks(samples, plan.n_samples, n_features, plan.rows_per_task)
    given, by_start = isinstance(samples, DaskArray), {start: part for start, _, part in parts}
    work = [find(shared, by_start[span[2]], span, given) for span in plan.tasks()]
    (found,) = compute(merged(work, relief_tasks.merge_found), progress, work, local=is_in_memory(samples))
    ordered = [found[first] for first in sorted(found)]
    return Neighbours(
        np.concatenate([part.distances for part in ordered]), np.concatenate([part.rows for part in ordered])
    )


def draw_curves(job: RankJob, columns: ColumnSource, features: NDArray[np.int64]) -> NDArray[np.float64]:
    """(feature,) few features -> (feature, 1 + class, point) points and the density of every class there."""
    draw = delayed(curve_tasks.density_curves, pure=False)
    shared = [shared_constant(value, name) for value, name in ((job, "job"), (columns, "columns"))]
    return np.array(compute([draw(*shared, feature) for feature in features.tolist()]))


def measure_candidates(job: RankJob, columns: ColumnSource, features: NDArray[np.int64], how: str) -> Candidates:
    """(feature,) candidates -> their scores at all samples, for a selection without redundancy."""
    measure, numbers = delayed(redundancy_tasks.measure_features, pure=False), features.tolist()
    shared = [shared_constant(value, name) for value, name in ((job, "job"), (columns, "columns"))]
    groups = [numbers[first : first + CANDIDATES_PER_TASK] for first in range(0, len(numbers), CANDIDATES_PER_TASK)]
    return joined_candidates(compute([measure(*shared, group, how) for group in groups]))


def sum_candidates(job: RankJob, columns: ColumnSource, features: NDArray[np.int64], rows_per_task: int) -> ScoreSums:
    """(feature,) candidates that do not fit into memory -> sums of their standard scores, by ranges of samples."""
    standardise, add_up = (
        delayed(function, pure=False) for function in (redundancy_tasks.standardise, redundancy_tasks.sum_range)
    )
    shared = [shared_constant(value, name) for value, name in ((job, "job"), (columns, "columns"))]
    blocks = dict.fromkeys(job.plan.block_of(feature).index for feature in features.tolist())
    known = {
        feature: how
        for part in compute([standardise(*shared, index) for index in blocks])
        for feature, how in part.items()
    }
    wanted = shared_constant({feature: known[feature] for feature in features.tolist()}, "candidates")
    work = [add_up(*shared, wanted, samples) for samples in row_ranges(job.plan.size.n_samples, rows_per_task)]
    return compute(merged(work, pool_tasks.merge_sums))[0]
