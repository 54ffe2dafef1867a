"""Dask graphs over the scoring tasks; the model enters each of them once."""

from __future__ import annotations

import dask.array as da
import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from fxdask import score_tasks
from fxdask.graph import Handle, Progress, compute, compute_despite_losses, is_here, merged, once, row_tasks
from fxdask.kernels.decision import FittedNetwork, Scored, merge_scored
from fxdask.score_plan import ScorePlan
from fxdask.score_tasks import ScoreJob, ScoreSummary

__all__ = ["lazy_log_scores", "log_scores", "score", "tabulate"]


def tabulate(network: FittedNetwork, progress: Progress | None = None) -> NDArray[np.float64]:
    """Every table of the network, made on this machine's threads; returns (class, node) bounds on their errors."""
    make = delayed(score_tasks.tabulate, pure=False)
    shared = once(network, "network")
    used = [(k, u) for k in range(network.n_classes) for u in network.used(k)]
    compute([make(shared, k, u) for k, u in used], progress, here=True)
    return network.density_error()


def log_scores(network: FittedNetwork, samples: Handle, n_rows: int) -> Scored:
    """Samples -> their scores, computed on this machine's threads."""
    score_range = delayed(score_tasks.log_score_rows, pure=False)
    shared = once(network, "network")
    ranges = row_tasks(samples, n_rows, network.n_inputs)
    parts = compute([score_range(shared, part, start, stop) for start, stop, part in ranges], here=True)
    return merge_scored(parts, network.n_classes)


def lazy_log_scores(network: FittedNetwork, samples: DaskArray) -> DaskArray:
    """(sample, input) lazy samples -> (sample, class) lazy ln y, in the samples' own row chunks."""
    whole_rows = samples.rechunk({1: -1})
    return da.map_blocks(
        score_tasks.log_score_block,
        once(network, "network"),
        whole_rows,
        chunks=(whole_rows.chunks[0], (network.n_classes,)),
        declared=whole_rows.dtype.str,
        dtype=np.float64,
        meta=np.empty((0, 0)),
    )


def score(
    job: ScoreJob,
    samples: Handle,
    plan: ScorePlan,
    truth: NDArray[np.integer] | None = None,
    progress: Progress | None = None,
) -> ScoreSummary:
    """Samples -> labels and scores in the store, range by range, and the ranges' summaries merged as a tree."""
    label = delayed(score_tasks.score_rows, pure=False)
    data, per_task = plan.test_set, plan.rows_per_task

    def ranges() -> tuple[list[Delayed], list[Delayed]]:
        shared = once(job, "job")
        work = [
            label(shared, part, None if truth is None else truth[start : start + per_task], index, start, stop)
            for index, (start, stop, part) in enumerate(row_tasks(samples, data.n_samples, data.n_inputs, per_task))
        ]
        return merged(work, score_tasks.merge_score_summaries), work

    found = compute_despite_losses(ranges, job.opened_store.n_done, progress, here=is_here(samples))
    return found[0] if found else score_tasks.merge_score_summaries([])
