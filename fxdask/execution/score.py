"""Graphs over the samples to score; each graph holds the model once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dask.array as da
import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute, compute_with_retries
from fxdask.execution.graphs import SamplesHandle, is_in_memory, merged, row_tasks, shared_constant
from fxdask.kernels.scorer import TABLES_AT_A_TIME, Scored, Scorer, merge_scored
from fxdask.planning.score_plan import ScorePlan
from fxdask.tasks import score as tasks
from fxdask.tasks.score import ScoreJob, ScoreRange, ScoreSummary, open_scores

__all__ = ["lazy_results", "log_scores", "score", "tabulate"]


def tabulate(scorer: Scorer, progress: Progress | None = None) -> NDArray[np.float64]:
    """Make all density tables of the scorer on local threads -> (class, node) bounds on their errors."""
    make = delayed(tasks.tabulate, pure=False)
    shared = shared_constant(scorer, "scorer")
    groups = [
        (k, used[first : first + TABLES_AT_A_TIME])
        for k, used in enumerate(scorer.used_nodes)
        for first in range(0, len(used), TABLES_AT_A_TIME)
    ]
    compute([make(shared, k, nodes) for k, nodes in groups], progress, local=True)
    return scorer.density_error()


def log_scores(scorer: Scorer, samples: SamplesHandle, n_rows: int) -> Scored:
    """Raw samples -> their scores, computed on local threads."""
    score_range = delayed(tasks.log_score_rows, pure=False)
    shared = shared_constant(scorer, "scorer")
    ranges = row_tasks(samples, n_rows, scorer.n_features)
    parts = compute([score_range(shared, part, start, stop) for start, stop, part in ranges], local=True)
    return merge_scored(parts, scorer.n_classes)


def lazy_results(scorer: Scorer, samples: DaskArray, finish: Callable[[NDArray[np.float64]], NDArray]) -> DaskArray:
    """(sample, feature) lazy samples -> the lazy result of ``finish`` on their (sample, class) ln y.

    It has the row chunks of the samples: one task labels one chunk, on the worker that has it.
    """
    whole_rows = samples.rechunk({1: -1})
    nothing = finish(np.empty((0, scorer.n_classes)))
    shape: dict[str, Any] = {"drop_axis": [1]} if nothing.ndim == 1 else {}
    return da.map_blocks(
        tasks.result_block,
        shared_constant(scorer, "scorer"),
        whole_rows,
        chunks=(whole_rows.chunks[0], *((n,) for n in nothing.shape[1:])),
        declared=whole_rows.dtype.str,
        finish=finish,
        dtype=nothing.dtype,
        meta=nothing,
        **shape,
    )


def score(
    job: ScoreJob,
    samples: SamplesHandle,
    plan: ScorePlan,
    truth: NDArray[np.integer] | None = None,
    progress: Progress | None = None,
) -> ScoreSummary:
    """Raw samples -> summary, merged as a tree; labels and scores are written to the store range by range."""
    score_range = delayed(tasks.score_rows, pure=False)
    data, per_task = plan.samples, plan.rows_per_task

    def ranges() -> tuple[list[Delayed], list[Delayed]]:
        shared = shared_constant(job, "job")
        work = [
            score_range(
                shared,
                part,
                None if truth is None else truth[start : start + per_task],
                ScoreRange(index, start, stop),
            )
            for index, (start, stop, part) in enumerate(row_tasks(samples, data.n_samples, data.n_features, per_task))
        ]
        return merged(work, tasks.merge_score_summaries), work

    found = compute_with_retries(ranges, open_scores(job).n_done, progress, local=is_in_memory(samples))
    return found[0] if found else tasks.merge_score_summaries([])
