"""Graphs of a joint selection: measure all candidates, sum products of their normal scores, project samples."""

from __future__ import annotations

from itertools import chain

import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute, compute_with_retries
from fxdask.execution.graphs import SamplesHandle, is_in_memory, merged, row_tasks, shared_constant
from fxdask.kernels.copula import ScoreSums
from fxdask.kernels.projection import PackedProjection
from fxdask.planning.rank_plan import ReliefPlan
from fxdask.tasks import pool as tasks
from fxdask.tasks import relief as relief_tasks
from fxdask.tasks.pool import PoolJob, PoolPart, open_pool
from fxdask.tasks.relief import ProjectedRows
from fxdask.tasks.telemetry import merge_worker_stats

__all__ = ["measure_pool", "project_pool", "sum_pool"]


def measure_pool(job: PoolJob, samples: SamplesHandle, progress: Progress | None = None) -> PoolPart:
    """Raw samples -> location and spread of all candidates, and their scores if there is no store."""
    measure = delayed(tasks.measure_candidates, pure=False)

    def blocks() -> tuple[list[Delayed], list[Delayed]]:
        shared = [shared_constant(value, name) for value, name in ((job, "pool"), (samples, "samples"))]
        work = [measure(*shared, index) for index in range(job.plan.n_tasks)]
        return work, work

    store = open_pool(job)
    parts = compute_with_retries(blocks, store.n_done if store else None, progress)
    return PoolPart(
        np.concatenate([part.location for part in parts], axis=1),
        np.concatenate([part.spread for part in parts], axis=1),
        None if store else np.concatenate([part.scores for part in parts]),
        merge_worker_stats(part.workers for part in parts),
    )


def sum_pool(job: PoolJob, scores: NDArray[np.int16] | None, progress: Progress | None = None) -> list[ScoreSums]:
    """Scores of all candidates, in memory or in the store -> their sums of products, class by class."""
    add_up = delayed(tasks.sum_products, pure=False)
    shared = [shared_constant(value, name) for value, name in ((job, "pool"), (scores, "scores"))]
    work: list[list[Delayed]] = [[] for _ in range(job.fit.plan.n_classes)]
    for k, start, stop in job.plan.sample_ranges():
        work[k].append(add_up(*shared, start, stop))
    # A tree for each class, because the sums of all classes may be too large for one worker.
    totals = [total for of_class in work for total in merged(of_class, tasks.merge_sums)]
    return list(compute(totals, progress, list(chain.from_iterable(work)), local=scores is not None))


def project_pool(
    project: PackedProjection, samples: SamplesHandle, plan: ReliefPlan, picked: NDArray[np.int64]
) -> ProjectedRows:
    """Raw samples, (row,) ascending samples to return -> ranges of all candidates' projections, and these."""
    task, shared, work = delayed(relief_tasks.project_range, pure=False), shared_constant(project, "projection"), []
    for start, stop, part in row_tasks(samples, plan.n_samples, project.n_features, plan.rows_per_task):
        first, last = np.searchsorted(picked, [start, start + plan.rows_per_task])
        work.append(task(shared, part, (start, stop), picked[first:last]))
    return compute(merged(work, relief_tasks.merge_projected), local=is_in_memory(samples))[0]
