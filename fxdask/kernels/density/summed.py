"""Kernel densities of very many samples: sums of fixed size over their values, from which tables are made.

A table needs the moments of the samples nearest to each node of a grid, and its tails need the outermost
samples. Both have a size that does not depend on the number of samples, and both are found in one pass.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.cells import (
    EXTRA_POWERS,
    FARTHEST,
    LONGEST_GRID,
    ORDER,
    REACH,
    STEP,
    CellSums,
    add_moments,
    cells_within_reach,
    sums_of_bins,
)
from fxdask.kernels.density.exact import LOG_SQRT_2PI
from fxdask.kernels.density.tails import REACH_BEHIND
from fxdask.kernels.density.wide_normal import WideNormal

__all__ = ["MOST_OUTERMOST", "N_POWERS", "SummedDensity", "ValueSums", "as_arrays", "from_arrays"]

MOST_OUTERMOST = 2**13
"""Values near the lowest or highest sample that are kept for a tail; with more there is no tail."""
N_POWERS = ORDER + 1
# The nodes of the longest grid, one on either side, and the bins from which samples reach these.
MARGIN = 1 + FARTHEST
FIRST_BIN, N_BINS = -(LONGEST_GRID // 2) - MARGIN, LONGEST_GRID + 1 + 2 * MARGIN


@dataclass(frozen=True, kw_only=True)
class SummedDensity:
    """One kernel density whose samples are not kept."""

    n_samples: int
    n_added: int
    """Terms that were added one after another, by which rounding is bounded."""
    origin: float
    bandwidth: float
    lowest_node: int
    """Node of the first row of the sums."""
    sums: NDArray[np.float64]
    """(node, power) sums of d^j exp(-d^2 / 2) over the samples, from one node before the first cell on"""
    has_cell: NDArray[np.bool_]
    """(node,) whether the table may have a cell there"""
    below: NDArray[np.float32] | None
    """(value,) ascending: the lowest samples, as far as a tail needs them; None if these are too many"""
    above: NDArray[np.float32] | None

    @property
    def wide(self) -> WideNormal | None:
        """Sums have no wide normal: its rules need the ranks of all samples."""
        return None

    @property
    def wide_in_bandwidths(self) -> WideNormal | None:
        """None, too."""
        return None

    @property
    def positions(self) -> NDArray[np.float64]:
        """The samples are not known."""
        raise AssertionError("only mixtures need the positions of samples")

    @property
    def log_scale(self) -> float:
        """The log of what a sum of exp(-d^2 / 2) is divided by to be a density."""
        return LOG_SQRT_2PI + log(self.bandwidth) + log(self.n_samples)

    @property
    def cell_sums(self) -> CellSums:
        """The cells that the table can have, with the sums over the samples."""
        at = np.flatnonzero(self.has_cell)
        return CellSums(
            first=self.lowest_node,
            cells=at,
            at=self.sums[at],
            before=self.sums[at - 1],
            after=self.sums[at + 1],
            n_added=self.n_added,
        )

    def outermost(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """The samples that the tails need."""
        return self.below, self.above

    def summed(self, points: NDArray[np.float32]) -> NDArray[np.float64]:
        """NaN, because the samples are not known."""
        return np.full(len(points), np.nan)


class ValueSums:
    """Sums over one class's values at one node, which come in pieces.

    The pieces must be the same whatever the memory or the workers, because sums of floats depend on their order.

    Parameters
    ----------
    bandwidth : float
    origin : float
        A value amid the samples, from which cells are counted.
    """

    def __init__(self, bandwidth: float, origin: float) -> None:
        self._bandwidth, self._origin = bandwidth, origin
        self._moments = np.zeros((N_BINS, ORDER + EXTRA_POWERS + 1))
        self._counts = np.zeros(N_BINS, np.intp)
        self._n_samples = self._n_pieces = self._longest = 0
        reach = 1.001 * REACH_BEHIND * bandwidth
        self._below, self._above = _Outermost(reach), _Outermost(reach)

    def absorb(self, values: NDArray[np.float32]) -> None:
        """Add a piece of (sample,) values, in any order."""
        if not len(values):
            return
        positions = (values.astype(np.float64) - self._origin) / self._bandwidth
        nearest = np.rint(positions / STEP)
        inside = (nearest >= FIRST_BIN) & (nearest < FIRST_BIN + N_BINS)
        if not inside.all():
            positions, nearest = positions[inside], nearest[inside]
        bins = nearest.astype(np.intp)
        self._counts += np.bincount(bins - FIRST_BIN, minlength=N_BINS)
        if len(bins):
            low, high = int(bins.min()), int(bins.max()) + 1
            piece = np.zeros((high - low, self._moments.shape[1]))
            add_moments(positions, bins, low, piece)
            self._moments[low - FIRST_BIN : high - FIRST_BIN] += piece
        self._n_samples += len(values)
        self._n_pieces += 1
        self._longest = max(self._longest, len(values))
        self._below.absorb(values)
        self._above.absorb(-values)

    def density(self) -> SummedDensity:
        """The density of all values."""
        first, counts = self._cells_in_range()
        cells = cells_within_reach(counts)
        nodes = cells + first
        lowest, highest = (int(nodes[0]) - 1, int(nodes[-1]) + 1) if len(nodes) else (0, 0)
        # The sums of a node need the bins around it, and these bins need room around themselves.
        bins = self._moments[lowest - FARTHEST - FIRST_BIN : highest + FARTHEST + 1 - FIRST_BIN]
        sums = sums_of_bins(np.pad(bins, ((FARTHEST, FARTHEST), (0, 0))))[2 * FARTHEST : -2 * FARTHEST]
        has_cell = np.zeros(len(sums), bool)
        has_cell[nodes - lowest] = True
        below, above = self._below.found(), self._above.found()
        return SummedDensity(
            n_samples=self._n_samples,
            n_added=self._longest + self._n_pieces,
            origin=self._origin,
            bandwidth=self._bandwidth,
            lowest_node=lowest,
            sums=np.ascontiguousarray(sums),
            has_cell=has_cell,
            below=below,
            above=None if above is None else -above[::-1],
        )

    def _cells_in_range(self) -> tuple[int, NDArray[np.intp]]:
        """Node of the first cell, (cell,) samples nearest to each node, from the lowest sample to the highest."""
        margin, half = round(REACH / STEP), LONGEST_GRID // 2
        ends = np.array([self._below.lowest, -self._above.lowest], np.float64)
        low, high = np.rint((ends - self._origin) / self._bandwidth / STEP)
        first, last = int(max(low - margin, -half)), int(min(high + margin, half))
        return first, self._counts[first - FIRST_BIN : last + 1 - FIRST_BIN]


class _Outermost:
    """The lowest of all values, and those within reach above it."""

    def __init__(self, reach: float) -> None:
        self._reach, self._cut = reach, np.inf
        self._values = np.empty(0, np.float32)
        self.lowest = np.inf

    def absorb(self, values: NDArray[np.float32]) -> None:
        """Add (sample,) values, in any order."""
        self.lowest = min(self.lowest, float(values.min()))
        # Values that are too many now are dropped; if they are still within reach at the end, there is no tail.
        limit = min(self.lowest + self._reach, self._cut)
        both = np.concatenate([self._values, values[values <= limit]])
        self._values = np.sort(both[both <= limit])
        if len(self._values) > MOST_OUTERMOST:
            self._cut = float(self._values[MOST_OUTERMOST])
            self._values = self._values[:MOST_OUTERMOST]

    def found(self) -> NDArray[np.float32] | None:
        """(value,) ascending, the values within reach of the lowest; None if they are too many."""
        return self._values if self.lowest + self._reach < self._cut else None


def as_arrays(densities: Mapping[tuple[int, int], SummedDensity]) -> dict[str, NDArray]:
    """(class, node) -> density, as four arrays: facts of each density, sums, cells and outermost values of all."""
    facts, outermost = [], []
    for (k, u), one in densities.items():
        n_below, n_above = (-1 if values is None else len(values) for values in one.outermost())
        facts.append([k, u, one.n_samples, one.n_added, one.lowest_node, len(one.sums), n_below, n_above, one.origin])
        outermost += [values for values in one.outermost() if values is not None]
    return {
        "densities": np.array(facts, np.float64),
        "sums": np.concatenate([one.sums for one in densities.values()]),
        "cells": np.concatenate([one.has_cell for one in densities.values()]),
        "outermost": np.concatenate([np.empty(0, np.float32), *outermost]),
    }


def from_arrays(arrays: Mapping[str, NDArray], bandwidth: NDArray[np.float64]) -> dict[tuple[int, int], SummedDensity]:
    """The arrays of :func:`as_arrays`, (class, node) bandwidths -> the densities; ValueError if arrays contradict."""
    found, row, value = {}, 0, 0
    for facts in arrays["densities"].tolist():
        k, u, n_samples, n_added, lowest, n_rows, n_below, n_above = map(int, facts[:8])
        edges: list[NDArray[np.float32] | None] = []
        for length in (n_below, n_above):
            values = arrays["outermost"][value : value + max(0, length)]
            value += max(0, length)
            edges.append(values if length > 0 else None)
        found[k, u] = SummedDensity(
            n_samples=n_samples,
            n_added=n_added,
            origin=facts[8],
            bandwidth=float(bandwidth[k, u]),
            lowest_node=lowest,
            sums=arrays["sums"][row : row + n_rows],
            has_cell=arrays["cells"][row : row + n_rows],
            below=edges[0],
            above=edges[1],
        )
        row += n_rows
        if n_rows < 1 or n_samples < 1 or found[k, u].has_cell[[0, -1]].any():
            raise ValueError(f"the table of class {k} at node {u} has no samples, or a cell at its end")
    if (row, value) != (len(arrays["sums"]), len(arrays["outermost"])):
        raise ValueError(f"tables need {row} rows and {value} values, but have {len(arrays['sums'])} and others")
    return found
