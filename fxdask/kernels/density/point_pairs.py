"""Pairs of points and samples, where each point meets a range of samples of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

__all__ = ["NEGLIGIBLE", "Pairs", "pairs_of"]

NEGLIGIBLE = 45.0
"""Kernels so much below the largest, in natural logarithms, are left out of sums: they add 3e-20 each."""

PAIRS_AT_A_TIME = 2**19


@dataclass(frozen=True)
class Pairs:
    """Some consecutive points, each with all of its samples."""

    points: slice
    point: NDArray[np.intp]  # (pair,)
    sample: NDArray[np.intp]  # (pair,)
    starts: NDArray[np.intp]  # where each point's pairs start

    def totals(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(pair,) values -> (point,) their sums."""
        return np.add.reduceat(values, self.starts)


def pairs_of(start: NDArray[np.intp], stop: NDArray[np.intp]) -> Iterator[Pairs]:
    """(point,) range of samples of each point, none of them empty -> all pairs, about so many at a time.

    A point and all its samples stay together, however many these are.
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
