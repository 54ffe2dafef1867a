"""The best nodes of each class: top-N of a block, and a merge whose result does not depend on the order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["NO_NODE", "TopNodes", "merge_top", "top_nodes"]

NO_NODE = -1


@dataclass(frozen=True)
class TopNodes:
    """(class, rank) node indices and scores, best first; ranks without a usable node hold -1 and -inf."""

    nodes: NDArray[np.int64]
    scores: NDArray[np.float64]


def top_nodes(scores: NDArray[np.float64], first_node: int, n_selected: int) -> TopNodes:
    """(class, node) scores of a block -> its best nodes; lower indices first among equals, no node with -inf."""
    nodes = np.arange(first_node, first_node + scores.shape[1], dtype=np.int64)
    return _best(np.broadcast_to(nodes, scores.shape), scores, n_selected)


def merge_top(parts: Sequence[TopNodes]) -> TopNodes:
    """Top nodes of several disjoint blocks, in any order -> the top nodes of all."""
    nodes = np.concatenate([part.nodes for part in parts], axis=1)
    scores = np.concatenate([part.scores for part in parts], axis=1)
    return _best(nodes, scores, parts[0].nodes.shape[1])


def _best(nodes: NDArray[np.int64], scores: NDArray[np.float64], n_selected: int) -> TopNodes:
    best = TopNodes(
        np.full((len(scores), n_selected), NO_NODE, np.int64),
        np.full((len(scores), n_selected), -np.inf),
    )
    for k in range(len(scores)):
        order = np.lexsort((nodes[k], -scores[k]))[:n_selected]
        order = order[scores[k, order] > -np.inf]
        best.nodes[k, : len(order)] = nodes[k, order]
        best.scores[k, : len(order)] = scores[k, order]
    return best
