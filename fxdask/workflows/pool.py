"""Joint selection: from the best nodes of every class to one set of nodes that all classes share."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.execution.graphs import SamplesHandle
from fxdask.execution.pool import measure_pool, sum_pool
from fxdask.kernels.copula import shrunk_correlation
from fxdask.kernels.criteria.base import Need
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.joint_selection import Pool, select_jointly
from fxdask.kernels.selection import NO_NODE
from fxdask.planning.pool_plan import plan_pool
from fxdask.progress import progress_bar
from fxdask.store.model import ModelStore
from fxdask.store.pool import PoolStore
from fxdask.tasks.job import FitJob
from fxdask.tasks.pool import PoolJob
from fxdask.tasks.telemetry import WorkerStats
from fxdask.tasks.threads import one_blas_thread
from fxdask.workflows.pool_relief import pool_relief

__all__ = ["SharedNodes", "select_shared"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class SharedNodes:
    """The nodes of a joint selection in the order in which they were chosen, and the overlap after each of them."""

    nodes: NDArray[np.int64]
    """(1, rank): one row, because all classes share it"""
    overlaps: NDArray[np.float64]
    """(rank,)"""
    workers: dict[str, WorkerStats]


def select_shared(
    job: FitJob,
    samples: SamplesHandle,
    best: NDArray[np.int64],
    store: ModelStore | None,
    *,
    criterion: str,
    verbose: bool,
) -> SharedNodes:
    """Raw samples, (class, rank) best nodes of every class -> the nodes that leave the smallest overlap together.

    A criterion that compares rows ranks these nodes, which are then chosen in its order.
    """
    nodes = np.unique(best[best != NO_NODE])
    pool_job = _pool_job(job, nodes, best.shape[1], store)
    with progress_bar("candidates", shown=verbose) as progress:
        measured = measure_pool(pool_job, samples, progress)
    with progress_bar("correlations", shown=verbose) as progress:
        sums = sum_pool(pool_job, measured.scores, progress)
    counts, order = np.array(job.plan.class_counts), None
    if Need.ROWS in CRITERIA[criterion].needs:
        weights = pool_relief(job, samples, nodes, verbose=verbose)
        order = np.argsort(-weights, kind="stable")  # of equal weights the lower node comes first
    with one_blas_thread():  # so that the last bits do not depend on the number of cores
        shrunk = [shrunk_correlation(of_class, int(count)) for of_class, count in zip(sums, counts, strict=True)]
        pool = Pool(
            location=measured.location,
            spread=measured.spread,
            correlation=np.array([correlation for correlation, _ in shrunk]),
            counts=counts,
            priors=job.priors,
        )
        found = select_jointly(pool, pool_job.plan.n_nodes, order)
    log.info("chose %d of %d candidates together", len(found.candidates), len(nodes))
    return SharedNodes(nodes[found.candidates][None], found.overlaps, measured.workers)


def _pool_job(job: FitJob, nodes: NDArray[np.int64], pool_size: int, store: ModelStore | None) -> PoolJob:
    """The job of these candidates; with a store, the store is prepared for them."""
    plan = plan_pool(job.plan, pool_size, n_candidates=len(nodes), in_store=store is not None)
    if store is not None:
        sizes = {"candidate": len(nodes), "sample": plan.n_samples, "class": job.plan.n_classes, "measure": 2}
        PoolStore(store).prepare(sizes, plan.candidates_per_task, plan.samples_per_chunk)
    return PoolJob(fit=job, plan=plan, nodes=nodes, store=None if store is None else store.url)
