"""The graph that computes the activations of all nodes."""

from __future__ import annotations

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import SamplesHandle, shared_constant
from fxdask.tasks import respond as tasks
from fxdask.tasks.job import FitJob
from fxdask.tasks.respond import ResponseOptions, ResponsePoints

__all__ = ["respond"]


def respond(
    job: FitJob,
    samples: SamplesHandle | None,
    points: ResponsePoints,
    options: ResponseOptions,
    progress: Progress | None = None,
) -> NDArray[np.float64]:
    """Raw samples -> (point, class, node) activations of all nodes, one task per block."""
    activate = delayed(tasks.respond_block, pure=False)
    shared = [
        shared_constant(value, name)
        for value, name in ((job, "job"), (samples, "samples"), (points, "points"), (options, "options"))
    ]
    work = [activate(*shared, index) for index in range(job.plan.n_blocks)]
    return np.concatenate(compute(work, progress), axis=2)
