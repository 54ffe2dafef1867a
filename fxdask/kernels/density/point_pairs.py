"""Pairs of points and samples, where each point has its own range of samples."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["NEGLIGIBLE", "Pairs", "pairs_of"]

NEGLIGIBLE = 45.0
"""Kernels whose log is this much below that of the largest are left out of sums: they add 3e-20 each."""

PAIRS_AT_A_TIME = 2**19


@dataclass(frozen=True)
class Pairs:
    """The pairs of some consecutive points, each with all of its samples."""

    points: slice
    point: NDArray[np.intp]  # (pair,)
    sample: NDArray[np.intp]  # (pair,)
    starts: NDArray[np.intp]  # (point,) index of each point's first pair

    def totals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(pair,) values -> (point,) sum over the pairs of each point."""
        return np.add.reduceat(values, self.starts)


def pairs_of(start: NDArray[np.intp], stop: NDArray[np.intp]) -> Iterator[Pairs]:
    """(point,) start and stop of each point's non-empty range of samples -> all pairs, in groups of bounded size.

    All pairs of a point are in one group, so a group exceeds ``PAIRS_AT_A_TIME`` by at most one point.
    """
    ends = np.cumsum(stop - start)
    n_pairs = int(ends[-1]) if len(ends) else 0
    cuts = np.unique(np.searchsorted(ends, np.arange(0, n_pairs, PAIRS_AT_A_TIME), side="right"))
    for low, high in pairwise([*cuts.tolist(), len(start)]):
        count = stop[low:high] - start[low:high]
        starts = np.cumsum(count) - count
        point = np.repeat(np.arange(low, high), count)
        sample = np.arange(len(point)) - np.repeat(starts - start[low:high], count)
        yield Pairs(slice(low, high), point, sample, starts)
