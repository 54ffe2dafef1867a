"""The graph that relates the divergences of all nodes to their weights."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import merged
from fxdask.kernels.importance import (
    ScoreScale,
    StepSums,
    merge_importance_sums,
    nodes_per_step,
    weight_correlations,
)
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.weights import ROWS_PER_DRAW
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import MIB, row_ranges
from fxdask.tasks import importance as tasks

__all__ = ["correlate_features", "nodes_per_range", "step_in_blocks"]

WEIGHT_BYTES_PER_RANGE = 16 * MIB
SCORE_BYTES_PER_RANGE = 4 * MIB
SCORE_BYTES_PER_GRAPH = 8 * MIB  # Dask warns of graphs above 10 MB
FEWEST_NODES_PER_CLASS = 6
BYTES_PER_SUM = 3 * 8
"""Bytes of the sums of a step for each class and feature."""
MOST_BYTES_OF_STEPS = 16 * MIB
MOST_LOCAL_WEIGHTS = 2**24
"""So few weights are drawn here in less time than it takes to send the work to a cluster."""


def step_in_blocks(plan: FitPlan) -> int:
    """Nodes of a step whose sums the blocks of a fit make, where they have weights and all sums are few; else 0."""
    has_weights = PROJECTIONS[plan.projection].has_weights
    sums_are_few = _sums_are_few(plan.n_nodes, plan.n_features, plan.n_classes)
    return nodes_per_step(plan.n_features, ROWS_PER_DRAW) if has_weights and sums_are_few else 0


def _sums_are_few(n_nodes: int, n_features: int, n_classes: int) -> bool:
    """Whether the sums of all steps take so little memory that this process can hold all of them."""
    n_steps = -(-n_nodes // nodes_per_step(n_features, ROWS_PER_DRAW))
    return n_steps * BYTES_PER_SUM * n_classes * n_features <= MOST_BYTES_OF_STEPS


def nodes_per_range(n_features: int, n_classes: int) -> int:
    """Nodes of one task: whole steps, about 16 MiB of them, whatever the blocks of the fit.

    Fewer if their scores would take more than 4 MiB, but enough that the sums are not larger than the weights.
    """
    nodes = min(WEIGHT_BYTES_PER_RANGE // (4 * n_features), SCORE_BYTES_PER_RANGE // (8 * n_classes))
    nodes = max(nodes, FEWEST_NODES_PER_CLASS * n_classes)
    per_step = nodes_per_step(n_features, ROWS_PER_DRAW)
    return -(-nodes // per_step) * per_step


def correlate_features(
    seed: int,
    n_features: int,
    divergences: NDArray[np.float64],
    progress: Progress | None = None,
    projection: str = "gaussian",
    known: Mapping[int, StepSums] | None = None,
) -> NDArray[np.float64]:
    """(class, node) divergences of all nodes -> (class, feature) correlations with the squared weights.

    The ranges of nodes and the order in which they are merged depend on the shape alone, so the result
    is the same on any number of workers. Structured weights of wide samples are those of the first nodes only.
    ``known`` are sums of some steps by the first node of each; the weights of all others are drawn.
    """
    sum_nodes = delayed(tasks.sum_nodes, pure=False)
    n_weighed = PROJECTIONS[projection].n_weighed(divergences.shape[1], n_features)
    weighed = divergences[:, :n_weighed]
    scale, (n_classes, n_nodes) = ScoreScale.of(weighed), weighed.shape
    per_range, per_step = nodes_per_range(n_features, n_classes), nodes_per_step(n_features, ROWS_PER_DRAW)
    ranges = list(row_ranges(n_nodes, per_range))
    at_a_time = max(1, SCORE_BYTES_PER_GRAPH // (8 * n_classes * per_range))
    in_order, parts = _sums_are_few(n_nodes, n_features, n_classes), []
    known = known if known and in_order else {}
    # A few tasks at a time, because a graph holds the divergences of its tasks.
    for first in range(0, len(ranges), at_a_time):
        some = ranges[first : first + at_a_time]
        steps = {start: range(start, stop, per_step) for start, stop in some}
        made = {
            start: merge_importance_sums(known[step].at(scale) for step in of_range)
            for start, of_range in steps.items()
            if all(step in known for step in of_range)
        }
        missing = [(start, stop) for start, stop in some if start not in made]
        work = [
            sum_nodes(projection, seed, start, n_features, (weighed[:, start:stop], scale)) for start, stop in missing
        ]
        local = n_nodes * n_features <= MOST_LOCAL_WEIGHTS
        if in_order:
            drawn = compute(work, local=local)
            made |= {start: sums for (start, _), sums in zip(missing, drawn, strict=True)}
            parts += [made[start] for start in steps]
        else:
            parts += compute(merged(work, merge_importance_sums), local=local)
        if progress:
            progress(first + len(some), len(ranges))
    return weight_correlations(merge_importance_sums(parts))
