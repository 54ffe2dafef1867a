"""The graph that counts how well a model labels test samples."""

from __future__ import annotations

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import SamplesHandle, is_in_memory, merged, row_tasks, shared_constant
from fxdask.kernels.evaluation import EvaluationCounts, merge_evaluations
from fxdask.planning.score_plan import ScorePlan
from fxdask.tasks import evaluate as tasks
from fxdask.tasks.evaluate import EvaluationJob

__all__ = ["evaluate"]


def evaluate(
    job: EvaluationJob,
    samples: SamplesHandle,
    truth: NDArray[np.integer],
    plan: ScorePlan,
    progress: Progress | None = None,
) -> EvaluationCounts:
    """Raw samples, at least one, and their (sample,) label codes -> counts, merged as a tree."""
    evaluate_range = delayed(tasks.evaluate_rows, pure=False)
    data, per_task = plan.samples, plan.rows_per_task
    shared = shared_constant(job, "job")
    work = [
        evaluate_range(shared, part, truth[start : start + per_task], start, stop)
        for start, stop, part in row_tasks(samples, data.n_samples, data.n_features, per_task)
    ]
    (counts,) = compute(merged(work, merge_evaluations), progress, work, local=is_in_memory(samples))
    return counts
