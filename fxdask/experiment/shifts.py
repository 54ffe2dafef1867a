"""Two classes of a larger set, moved so that their locations differ by what a draw says."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.statistics import ClassStatistics

__all__ = ["mean_differences", "moved_pair"]


def mean_differences(seed: int, pair: tuple[int, int], n_nodes: int) -> NDArray[np.float64]:
    """Seed and pair of classes -> (node,) draws from N(0, 1); a node's does not depend on how many nodes there are."""
    # Weights are drawn from the same seed with keys of one number: those of two numbers never meet them.
    stream = np.random.SeedSequence(seed, spawn_key=pair)
    return np.random.Generator(np.random.PCG64(stream)).standard_normal(n_nodes)


def moved_pair(
    statistics: ClassStatistics, pair: tuple[int, int], difference: NDArray[np.float64] | None
) -> tuple[ClassStatistics, NDArray[np.float64]]:
    """(class, node) statistics, a pair, (node,) wanted difference -> the pair's own, and (node,) the second's shift.

    A shift moves the location and nothing else. Without a wanted difference nothing is moved.
    """
    first, second = pair
    location, both = statistics.location, [first, second]
    shift = np.zeros(location.shape[1])
    if difference is not None:
        shift = difference - (location[second] - location[first])
        location = np.stack([np.zeros_like(difference), difference])
    else:
        location = location[both]
    return ClassStatistics(location, statistics.spread[both], statistics.source[both]), shift
