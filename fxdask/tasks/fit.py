"""The task of one block of nodes: measure, score, write."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.importance import StepSums
from fxdask.kernels.projection import PackedProjection
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.selection import TopNodes, merge_top, top_nodes
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.sizes import NodeBlock, packed_tile
from fxdask.store.sources import Source
from fxdask.tasks.cache import job_cache
from fxdask.tasks.columns import ProjectedNodes
from fxdask.tasks.job import FitJob, open_store
from fxdask.tasks.measure import measure_block
from fxdask.tasks.reading import read_range
from fxdask.tasks.telemetry import TaskCounters, WorkerStats, merge_worker_stats, this_worker
from fxdask.tasks.threads import one_blas_thread

__all__ = ["FitSummary", "fit_block", "merge_fit_summaries", "project_rows"]


@dataclass(frozen=True, kw_only=True)
class FitSummary:
    """The result of one or more blocks; its size does not depend on the number of samples.

    Without a store it includes the divergences of all nodes.
    """

    top: TopNodes
    source_counts: NDArray[np.int64]
    """(class, spread source)"""
    workers: dict[str, WorkerStats]
    n_resumed: int
    divergences: dict[int, NDArray[np.float64]]
    """(class, node) by block index."""
    importances: dict[int, StepSums] = field(default_factory=dict)
    """Sums of whole steps of nodes, by the first node of each; those of a block that was resumed are missing."""


def merge_fit_summaries(parts: Sequence[FitSummary]) -> FitSummary:
    """Summaries of disjoint blocks, in any order -> one summary."""
    divergences: dict[int, NDArray[np.float64]] = {}
    importances: dict[int, StepSums] = {}
    for part in parts:
        divergences |= part.divergences
        importances |= part.importances
    return FitSummary(
        top=merge_top([part.top for part in parts]),
        source_counts=np.sum([part.source_counts for part in parts], axis=0),
        workers=merge_worker_stats(part.workers for part in parts),
        n_resumed=sum(part.n_resumed for part in parts),
        divergences=divergences,
        importances=importances,
    )


@one_blas_thread()
def fit_block(job: FitJob, samples: Source, probes: Source | None, index: int) -> FitSummary:
    """Raw samples, one node block -> its summary; with a store, its arrays are written and it is marked as done.

    A block that is marked is read instead of computed, so a task may run twice.
    """
    block, store = job.plan.block(index), open_store(job)
    if store and store.is_done(block):
        _, _, sources, divergences = store.read_block("statistics", block)
        return _summary(job, block, divergences, sources.astype(np.uint8), None)
    counters = TaskCounters()
    columns = ProjectedNodes(job, samples, block, counters, probes)
    measured = measure_block(job, columns, block.start, counters, streamed=probes is not None)
    statistics, divergences = measured.statistics, measured.scores
    if store:
        optional = {"weights": lambda: columns.weights, "projections": lambda: measured.ascending}
        arrays: dict[str, Any] = {name: optional[name]() for name in job.plan.kept}
        arrays["statistics"] = np.stack([statistics.location, statistics.spread, statistics.source, divergences])
        store.write_block(block, arrays)
    summary = _summary(job, block, divergences, statistics.source, counters)
    return replace(summary, importances=_importances(job, block, columns, divergences))


def _importances(
    job: FitJob, block: NodeBlock, columns: ProjectedNodes, divergences: NDArray[np.float64]
) -> dict[int, StepSums]:
    """(class, node) divergences of a block -> the sums of those steps of nodes that are wholly in it."""
    if not job.nodes_per_step:
        return {}
    per_step, scratch, sums = job.nodes_per_step, job_cache(job).scratch, {}
    for start in range(-(-block.start // per_step) * per_step, block.stop, per_step):
        stop = min(start + per_step, job.plan.n_nodes)
        if stop <= block.stop:
            some = slice(start - block.start, stop - block.start)
            sums[start] = StepSums.of(columns.weights[some], divergences[:, some], scratch)
    return sums


def _summary(
    job: FitJob,
    block: NodeBlock,
    divergences: NDArray[np.float64],
    sources: NDArray[np.uint8],
    counters: TaskCounters | None,
) -> FitSummary:
    """The summary of one block; ``counters`` is None if the block was already done."""
    return FitSummary(
        top=top_nodes(divergences, block.start, job.plan.n_ranked or job.plan.n_selected),
        source_counts=np.array([np.bincount(row, minlength=len(SPREAD_SOURCES)) for row in sources]),
        workers={} if counters is None else this_worker(counters),
        n_resumed=int(counters is None),
        divergences={} if job.store else {block.index: divergences},
    )


@one_blas_thread()
def project_rows(
    job: FitJob, samples: Source, weights: NDArray[np.float32], start: int, stop: int | None
) -> NDArray[np.float32]:
    """(node, feature) weights of few nodes, range of raw samples -> (node, sample) values, samples in their order."""
    project = PackedProjection(weights, job.preprocessing, packed_tile(len(weights), job.plan.tile))
    return project(read_range(samples, start, stop), 0, Scratch())
