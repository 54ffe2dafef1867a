"""The description of a fit that all its tasks share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.statistics import node_tolerance
from fxdask.planning.fit_plan import FitPlan
from fxdask.store.columns import StagedCodes
from fxdask.store.model import ModelStore
from fxdask.tasks.cache import job_cache

__all__ = ["FitJob", "open_store", "tolerance_at", "weights_of"]


@dataclass(frozen=True, kw_only=True, eq=False)
class FitJob:
    """All that a block's task needs besides the samples; a graph holds it once for all blocks."""

    plan: FitPlan
    seed: int
    preprocessing: Preprocessing
    codes: NDArray[np.integer] | StagedCodes
    """(sample,) class codes; in the store if a fit on a cluster is streamed, so that no task holds all of them"""
    priors: NDArray[np.float64]
    class_norms: NDArray[np.float64]
    """(class,) typical norm of the class's preprocessed samples"""
    criterion: str
    location: str
    spread: str
    shrink_spread: bool
    nodes_per_step: int = 0
    """Nodes of a step for whose weights the blocks make the sums of the importances; 0 if they make none."""
    store: str | None = None
    probe_codes: NDArray[np.integer] | None = None


def open_store(job: FitJob) -> ModelStore | None:
    """The store that the job writes to, opened once in each process."""
    url = job.store
    if url is None:
        return None
    return job_cache(job).get("store", lambda: ModelStore.open(url, "r+", finished=False))


def weights_of(job: FitJob, nodes: NDArray[np.integer]) -> NDArray[np.float32]:
    """Any nodes, in any order -> (node, feature) weights."""
    return PROJECTIONS[job.plan.projection].rows(job.seed, nodes, job.plan.n_features)


def tolerance_at(job: FitJob, weights: NDArray[np.float32]) -> NDArray[np.float64]:
    """(node, feature) weights -> (class, node) spread at or below which a class counts as constant."""
    return node_tolerance(PROJECTIONS[job.plan.projection].norms(weights), job.class_norms)
