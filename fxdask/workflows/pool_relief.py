"""ReliefF on the candidates of a joint selection: the samples are compared by their projections onto these nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.execution.graphs import SamplesHandle
from fxdask.execution.pool import project_pool
from fxdask.execution.rank import find_neighbours
from fxdask.kernels.criteria.relief import (
    N_ANCHORS,
    N_NEIGHBOURS,
    Anchors,
    ColumnRanges,
    neighbour_rows,
    relief_weights,
    spread_anchors,
)
from fxdask.kernels.projection import PackedProjection
from fxdask.planning.pool_plan import plan_pool_relief
from fxdask.progress import progress_bar
from fxdask.sizes import packed_tile
from fxdask.tasks.job import FitJob, weights_of
from fxdask.tasks.relief import ProjectedRows, ReliefJob

__all__ = ["pool_relief"]


def pool_relief(job: FitJob, samples: SamplesHandle, nodes: NDArray[np.int64], *, verbose: bool) -> NDArray[np.float64]:
    """Raw samples, (candidate,) nodes -> (candidate,) weights of ReliefF, by at most 1,000 anchors.

    Nothing of the projections is kept: they are computed once for their ranges and the anchors, once for
    the neighbours, and once for the values of these.
    """
    weights = weights_of(job, nodes)
    project = PackedProjection(weights, job.preprocessing, packed_tile(len(nodes), job.plan.tile))
    codes = job.codes[: job.plan.n_samples]
    rows = spread_anchors(codes, job.plan.n_classes, N_ANCHORS)
    plan = plan_pool_relief(job.plan, len(nodes), len(rows), N_NEIGHBOURS)
    projected = project_pool(project, samples, plan, rows)
    ranges = ColumnRanges(projected.lowest.astype(np.float64), projected.highest.astype(np.float64))
    relief_job = ReliefJob(
        anchors=Anchors(rows, codes[rows], ranges.scaled(_in_order(projected))),
        ranges=ranges,
        codes=codes,
        n_classes=job.plan.n_classes,
        n_neighbours=N_NEIGHBOURS,
        project=project,
    )
    with progress_bar("neighbours", shown=verbose) as progress:
        found = find_neighbours(relief_job, samples, plan, progress)
    needed = ranges.scaled(_in_order(project_pool(project, samples, plan, neighbour_rows(found))))
    return relief_weights(relief_job.anchors, found, needed, job.priors)[0]


def _in_order(projected: ProjectedRows) -> NDArray[np.float32]:
    """(row, node) projections that were picked from all ranges, in the order of the samples."""
    return np.concatenate([projected.picked[start] for start in sorted(projected.picked)])
