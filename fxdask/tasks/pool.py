"""The tasks of a joint selection: measure some candidates, and sum the products of all candidates' normal scores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.copula import ScoreSums, rank_scores, score_sums
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.projection import DenseNodes
from fxdask.kernels.statistics import LOCATIONS, shrunk_spread, spread_with_fallback
from fxdask.planning.pool_plan import POOL_TILE_NODES, PoolPlan
from fxdask.store.pool import PoolStore
from fxdask.store.sources import Source
from fxdask.tasks.cache import job_cache
from fxdask.tasks.columns import BlockProduct, SampleTiles
from fxdask.tasks.job import FitJob, tolerance_at, weights_of
from fxdask.tasks.reading import SampleTile
from fxdask.tasks.telemetry import TaskCounters, WorkerStats, this_worker
from fxdask.tasks.threads import one_blas_thread

__all__ = ["PoolJob", "PoolPart", "measure_candidates", "merge_sums", "open_pool", "sum_products"]


@dataclass(frozen=True, kw_only=True, eq=False)
class PoolJob:
    """All that a task needs besides the samples: the fit and its candidates."""

    fit: FitJob
    plan: PoolPlan
    nodes: NDArray[np.int64]
    """(candidate,) in rising order"""
    store: str | None
    """The store that keeps the scores while the selection runs; without one they are returned."""


@dataclass(frozen=True)
class PoolPart:
    """Some candidates: their location and spread in every class, and their scores if there is no store."""

    location: NDArray[np.float64]
    """(class, candidate)"""
    spread: NDArray[np.float64]
    """(class, candidate), at least the tolerance"""
    scores: NDArray[np.int16] | None
    """(candidate, sample) normal scores, samples sorted by class"""
    workers: dict[str, WorkerStats]


def open_pool(job: PoolJob) -> PoolStore | None:
    """The store of the scores, opened once in each process."""
    url = job.store
    return None if url is None else job_cache(job).get("store", lambda: PoolStore.open(url))


@one_blas_thread()
def measure_candidates(job: PoolJob, samples: Source, index: int) -> PoolPart:
    """Raw samples, one block of candidates -> its statistics; the scores go to the store if there is one.

    A block that the store holds already is read instead of computed, so a task may run twice.
    """
    block, store = job.plan.block(index), open_pool(job)
    stored = store.read_statistics(block) if store else None
    if stored is not None:
        return PoolPart(stored[0], stored[1], None, {})
    fit, counters = job.fit, TaskCounters()
    weights = weights_of(fit, job.nodes[block.start : block.stop])
    tolerance = tolerance_at(fit, weights)
    statistics = np.empty((2, fit.plan.n_classes, block.n_nodes))
    scores = np.empty((block.n_nodes, fit.plan.n_samples), np.int16)
    tiles = SampleTiles(fit, samples, counters).kept()
    for k, values in enumerate(_class_values(job, tiles, weights, block.start)):
        rank_scores(values, sort=True, out=scores[:, fit.plan.class_slices[k]])
        ordered = SortedRows(values)
        spread, _ = spread_with_fallback(ordered, fit.spread, tolerance[k])
        statistics[:, k] = LOCATIONS[fit.location](ordered), spread
    if fit.shrink_spread:
        statistics[1] = shrunk_spread(statistics[1], fit.plan.class_counts)
    statistics[1] = np.maximum(statistics[1], tolerance)
    location, spread = statistics
    if store is None:
        return PoolPart(location, spread, scores, this_worker(counters))
    store.write(block, scores, statistics)
    return PoolPart(location, spread, None, this_worker(counters))


def _class_values(
    job: PoolJob, tiles: Iterable[SampleTile], weights: NDArray[np.float32], first: int
) -> Sequence[NDArray[np.float32]]:
    """(candidate, feature) weights, position of the first one -> for each class its (candidate, sample) values."""
    scratch = job_cache(job.fit).scratch
    nodes = DenseNodes(weights, first, job.plan.n_candidates, POOL_TILE_NODES, scratch)
    return BlockProduct(nodes, scratch).by_class(tiles, job.fit.plan.class_counts).arrays


@one_blas_thread()
def sum_products(job: PoolJob, scores: NDArray[np.int16] | None, start: int, stop: int) -> ScoreSums:
    """Range of samples of one class -> sums over it; the scores of all candidates are given or in the store."""
    store = open_pool(job)
    return score_sums(store.read_scores(start, stop) if scores is None and store else np.asarray(scores)[:, start:stop])


def merge_sums(parts: Sequence[ScoreSums]) -> ScoreSums:
    """Sums over disjoint ranges of samples of one class, in any order -> the sums over all of them."""
    return reduce(add, parts)
