"""The task that relates the divergences of a range of nodes to their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.importance import (
    ImportanceSums,
    ScoreScale,
    StepSums,
    merge_importance_sums,
    nodes_per_step,
)
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.weights import ROWS_PER_DRAW
from fxdask.sizes import row_ranges
from fxdask.tasks.threads import one_blas_thread

__all__ = ["sum_nodes"]


@one_blas_thread()
def sum_nodes(
    projection: str,
    seed: int,
    first_node: int,
    n_features: int,
    scored: tuple[NDArray[np.float64], ScoreScale],
) -> ImportanceSums:
    """(class, node) divergences of a range of nodes, the scale of all -> sums with the weights, which are drawn again.

    ``first_node`` is a multiple of the nodes of a step, so that no row is drawn twice.
    """
    (divergences, scale), drawn, scratch = scored, PROJECTIONS[projection], Scratch()
    steps = row_ranges(divergences.shape[1], nodes_per_step(n_features, ROWS_PER_DRAW))
    return merge_importance_sums(
        StepSums.of(
            drawn.rows(seed, np.arange(first_node + start, first_node + stop), n_features),
            divergences[:, start:stop],
            scratch,
        ).at(scale)
        for start, stop in steps
    )
