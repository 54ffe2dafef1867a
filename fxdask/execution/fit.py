"""Graphs of a fit: all node blocks, and the projections onto the selected nodes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from dask.delayed import Delayed, delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute, compute_with_retries
from fxdask.execution.graphs import SamplesHandle, is_in_memory, merged, row_tasks, shared_constant
from fxdask.planning.fit_prediction import MOST_SUMMARIES
from fxdask.tasks import fit as tasks
from fxdask.tasks.fit import FitSummary
from fxdask.tasks.job import FitJob, open_store
from fxdask.tasks.tabulate import NodeTables, TableJob, tabulate_nodes

__all__ = ["fit_blocks", "project_selected", "tabulate_selected"]

FEWEST_AT_A_TIME = 4


def fit_blocks(
    job: FitJob, samples: SamplesHandle, probes: SamplesHandle | None = None, progress: Progress | None = None
) -> FitSummary:
    """Raw samples -> the summary of all node blocks, merged as a tree."""
    fit = delayed(tasks.fit_block, pure=False)

    def blocks() -> tuple[list[Delayed], list[Delayed]]:
        shared = [
            shared_constant(value, name) for value, name in ((job, "job"), (samples, "samples"), (probes, "probes"))
        ]
        # The last block is often small. Sent last, it may keep one worker while another has two whole blocks left.
        last = job.plan.n_blocks - 1
        all_blocks = [fit(*shared, index) for index in (last, *range(last))]
        few = len(all_blocks) <= MOST_SUMMARIES
        return all_blocks if few else merged(all_blocks, tasks.merge_fit_summaries), all_blocks

    store = open_store(job)
    n_done = (lambda: int(store.blocks_done().sum())) if store else None
    return tasks.merge_fit_summaries(compute_with_retries(blocks, n_done, progress))


def project_selected(
    job: FitJob, samples: SamplesHandle, weights: NDArray[np.float32], progress: Progress | None = None
) -> NDArray[np.float32]:
    """Raw samples, (node, feature) weights of few nodes -> (node, sample) training values, samples sorted by class."""
    project = delayed(tasks.project_rows, pure=False)
    # Only this process needs the class codes.
    of_tasks = replace(job, codes=np.empty(0, np.uint8))
    shared_job, shared_weights = shared_constant(of_tasks, "job"), shared_constant(weights, "weights")
    ranges = row_tasks(samples, job.plan.n_samples, job.plan.n_features, job.plan.samples_per_projection(len(weights)))
    at_a_time = max(FEWEST_AT_A_TIME, 2 * job.plan.tasks_at_a_time)
    values = np.empty((len(weights), job.plan.n_samples), np.float32)
    sorted_index = np.empty(job.plan.n_samples, np.intp)
    sorted_index[np.argsort(job.codes[: job.plan.n_samples], kind="stable")] = np.arange(job.plan.n_samples)
    # A few tasks at a time, because the results of all tasks together may not fit into the workers' memory.
    for first in range(0, len(ranges), at_a_time):
        some = ranges[first : first + at_a_time]
        work = [project(shared_job, part, shared_weights, start, stop) for start, stop, part in some]
        for (start, _, _), part in zip(some, compute(work, local=is_in_memory(samples)), strict=True):
            values[:, sorted_index[start : start + part.shape[1]]] = part
        if progress:
            progress(first + len(some), len(ranges))
    return values


def tabulate_selected(
    job: TableJob,
    samples: SamplesHandle,
    probes: SamplesHandle | None,
    groups: list[list[int]],
    progress: Progress | None = None,
) -> list[NodeTables]:
    """Raw samples, the nodes of each task -> the densities of the nodes of each task."""
    tabulate = delayed(tabulate_nodes, pure=False)
    shared = [shared_constant(value, name) for value, name in ((job, "job"), (samples, "samples"), (probes, "probes"))]
    return compute([tabulate(*shared, nodes) for nodes in groups], progress, local=is_in_memory(samples))
