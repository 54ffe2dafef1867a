"""Random weights of nodes; the weights of a node depend on the seed and the node index alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

__all__ = ["FINGERPRINT_FEATURES", "ROWS_PER_DRAW", "SCHEME", "fingerprint_nodes", "weight_block", "weight_rows"]

ROWS_PER_DRAW = 64
SCHEME = "normal-float32, PCG64, SeedSequence(seed, spawn_key=(node // 64,)), 64 rows a draw"
FINGERPRINT_FEATURES = 8


def weight_block(
    seed: int, start: int, stop: int, n_features: int, out: NDArray[np.float32] | None = None
) -> NDArray[np.float32]:
    """Seed and node range -> (node, feature) weights, each drawn from N(0, 1), in ``out`` if it is given.

    Rows are drawn 64 at a time from one generator per (seed, draw), so a row depends neither on
    the requested range nor on the number of nodes.
    """
    weights = np.empty((stop - start, n_features), np.float32) if out is None else out
    for draw in range(start // ROWS_PER_DRAW, -(-stop // ROWS_PER_DRAW)):
        first = draw * ROWS_PER_DRAW
        last = first + ROWS_PER_DRAW
        if start <= first and last <= stop:
            _generator(seed, draw).standard_normal(dtype=np.float32, out=weights[first - start : last - start])
        else:
            rows = _draw(seed, draw, n_features, min(stop - first, ROWS_PER_DRAW))
            inside = slice(max(first, start), min(last, stop))
            weights[inside.start - start : inside.stop - start] = rows[inside.start - first : inside.stop - first]
    return weights


def weight_rows(seed: int, nodes: Sequence[int] | NDArray[np.integer], n_features: int) -> NDArray[np.float32]:
    """Seed and any nodes, in any order -> (node, feature) weights."""
    nodes = np.asarray(nodes, dtype=np.int64)
    if len(nodes) and (np.diff(nodes) == 1).all():
        return weight_block(seed, int(nodes[0]), int(nodes[-1]) + 1, n_features)  # without a copy of every draw
    weights = np.empty((len(nodes), n_features), np.float32)
    for draw in np.unique(nodes // ROWS_PER_DRAW):
        wanted = nodes // ROWS_PER_DRAW == draw
        rows = nodes[wanted] % ROWS_PER_DRAW
        weights[wanted] = _draw(seed, int(draw), n_features, int(rows.max()) + 1)[rows]
    return weights


def fingerprint_nodes(n_nodes: int) -> list[int]:
    """Nodes whose weights are stored as a fingerprint, to detect a NumPy build that draws another stream."""
    return sorted({0, n_nodes // 2, n_nodes - 1})


def _draw(seed: int, draw: int, n_features: int, n_rows: int) -> NDArray[np.float32]:
    """The first rows of a draw; the later ones do not change them."""
    return _generator(seed, draw).standard_normal((n_rows, n_features), dtype=np.float32)


def _generator(seed: int, draw: int) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(seed, spawn_key=(draw,))))
