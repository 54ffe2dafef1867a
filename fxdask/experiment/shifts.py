"""Shift one class of a pair so that the two locations differ by a random draw."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.statistics import ClassStatistics

__all__ = ["mean_differences", "shifted_pair"]


def mean_differences(seed: int, pair: tuple[int, int], n_nodes: int) -> NDArray[np.float64]:
    """Seed, pair of classes -> (node,) draws from N(0, 1); a node's draw does not depend on the number of nodes."""
    # Weights use spawn keys of one number; a key of two numbers gives an independent stream.
    stream = np.random.SeedSequence(seed, spawn_key=pair)
    return np.random.Generator(np.random.PCG64(stream)).standard_normal(n_nodes)


def shifted_pair(
    statistics: ClassStatistics, pair: tuple[int, int], difference: NDArray[np.float64] | None
) -> tuple[ClassStatistics, NDArray[np.float64]]:
    """(class, node) statistics, a pair, (node,) difference -> (2, node) statistics, (node,) shift of the second class.

    A shift changes only the location. Without a difference the shift is zero.
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
