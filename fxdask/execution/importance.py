"""The graph that relates the divergences of all nodes to their weights."""

from __future__ import annotations

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import merged
from fxdask.kernels.importance import comparable_scores, merge_importance_sums, weight_correlations
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.weights import ROWS_PER_DRAW
from fxdask.sizes import MIB, row_ranges
from fxdask.tasks import importance as tasks

__all__ = ["correlate_features", "nodes_per_range"]

WEIGHT_BYTES_PER_RANGE = 16 * MIB
SCORE_BYTES_PER_RANGE = 4 * MIB
SCORE_BYTES_PER_GRAPH = 8 * MIB  # Dask warns of graphs above 10 MB
FEWEST_NODES_PER_CLASS = 6
MOST_LOCAL_WEIGHTS = 2**24
"""So few weights are drawn here in less time than it takes to send the work to a cluster."""


def nodes_per_range(n_features: int, n_classes: int) -> int:
    """Nodes of one task: whole draws of weights, about 16 MiB of them, whatever the blocks of the fit.

    Fewer if their scores would take more than 4 MiB, but enough that the sums are not larger than the weights.
    """
    nodes = min(WEIGHT_BYTES_PER_RANGE // (4 * n_features), SCORE_BYTES_PER_RANGE // (8 * n_classes))
    nodes = max(nodes, FEWEST_NODES_PER_CLASS * n_classes)
    return -(-nodes // ROWS_PER_DRAW) * ROWS_PER_DRAW


def correlate_features(
    seed: int,
    n_features: int,
    divergences: NDArray[np.float64],
    progress: Progress | None = None,
    projection: str = "gaussian",
) -> NDArray[np.float64]:
    """(class, node) divergences of all nodes -> (class, feature) correlations with the squared weights.

    The ranges of nodes and the order in which they are merged depend on the shape alone, so the result
    is the same on any number of workers. Structured weights of wide samples are those of the first nodes only.
    """
    sum_nodes = delayed(tasks.sum_nodes, pure=False)
    n_weighed = PROJECTIONS[projection].n_weighed(divergences.shape[1], n_features)
    scores = comparable_scores(divergences[:, :n_weighed])
    n_classes, n_nodes = scores.shape
    per_range = nodes_per_range(n_features, n_classes)
    ranges = list(row_ranges(n_nodes, per_range))
    at_a_time = max(1, SCORE_BYTES_PER_GRAPH // (8 * n_classes * per_range))
    parts = []
    # A few tasks at a time, because a graph holds the scores of its tasks.
    for first in range(0, len(ranges), at_a_time):
        some = ranges[first : first + at_a_time]
        work = [sum_nodes(projection, seed, start, n_features, scores[:, start:stop]) for start, stop in some]
        parts += compute(merged(work, merge_importance_sums), local=n_nodes * n_features <= MOST_LOCAL_WEIGHTS)
        if progress:
            progress(first + len(some), len(ranges))
    return weight_correlations(merge_importance_sums(parts))
