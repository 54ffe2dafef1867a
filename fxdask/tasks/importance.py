"""The task that relates the divergences of a range of nodes to their weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.importance import ImportanceSums, importance_sums, merge_importance_sums
from fxdask.kernels.projections import PROJECTIONS
from fxdask.sizes import row_ranges
from fxdask.tasks.threads import one_blas_thread

__all__ = ["sum_nodes"]

WEIGHTS_AT_A_TIME = 2**17  # float64 copies of so many weights fit into the CPU cache


@one_blas_thread()
def sum_nodes(
    projection: str, seed: int, first_node: int, n_features: int, scores: NDArray[np.float64]
) -> ImportanceSums:
    """(class, node) comparable scores of a range of nodes -> their sums with the weights, which are drawn again.

    ``first_node`` is a multiple of the rows of a draw, so that no row is drawn twice.
    """
    drawn = PROJECTIONS[projection]
    per_step = drawn.rows_per_step * max(1, WEIGHTS_AT_A_TIME // (drawn.rows_per_step * n_features))
    return merge_importance_sums(
        importance_sums(
            drawn.rows(seed, np.arange(first_node + start, first_node + stop), n_features), scores[:, start:stop]
        )
        for start, stop in row_ranges(scores.shape[1], per_step)
    )
