"""Kernel densities of very many samples: sums of fixed size over their values, from which tables are made.

A table needs the moments of the samples nearest to each node of a grid. The outermost samples, which are
few and far apart, are kept: tails need them, and so do sums at points among them that no cell covers. All this
has a size that does not depend on the number of samples, and is found in one pass. It is written with NumPy,
because the compiler would take more memory on workers than all sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.exact import LOG_SQRT_2PI, log_density_nearby, reach_of_kernels
from fxdask.kernels.density.grid_sums import (
    EXTRA_POWERS,
    FARTHEST,
    LONGEST_GRID,
    ORDER,
    REACH,
    STEP,
    CellSums,
    carried_sums,
    cells_within_reach,
)
from fxdask.kernels.density.tails import REACH_BEHIND
from fxdask.kernels.density.wide_normal import WideNormal

__all__ = ["MOST_OUTERMOST", "N_POWERS", "SummedDensity", "ValueSums", "as_arrays", "from_arrays"]

MOST_OUTERMOST = 2**12
"""The lowest and the highest values that are kept, so many each."""
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
    below: NDArray[np.float32]
    """(value,) ascending: the lowest samples"""
    above: NDArray[np.float32]
    """(value,) ascending: the highest samples"""

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

    @property
    def n_bytes(self) -> int:
        """Bytes of all arrays."""
        return self.sums.nbytes + self.has_cell.nbytes + self.below.nbytes + self.above.nbytes

    def outermost(self) -> tuple[NDArray[np.float32] | None, NDArray[np.float32] | None]:
        """The lowest and the highest samples, if all that a tail needs are among them."""
        below, above = (
            values if len(values) == self.n_samples or np.ptp(values.astype(np.float64)) > self._tail_reach else None
            for values in (self.below, self.above)
        )
        return below, above

    @property
    def _tail_reach(self) -> float:
        return 1.001 * REACH_BEHIND * self.bandwidth

    def summed(self, points: NDArray[np.float32]) -> NDArray[np.float64]:
        """(point,) values -> (point,) log densities, where all samples nearby are among the outermost; else NaN."""
        found = np.full(len(points), np.nan)
        for values, inmost in ((self.below, self.below[-1]), (self.above, self.above[0])):
            beside = points < inmost if values is self.below else points > inmost
            beside |= len(values) == self.n_samples
            reach = reach_of_kernels(points[beside], values, self.bandwidth)
            inner = np.abs(points[beside] - np.float64(inmost))
            known = np.flatnonzero(beside)[(reach < inner) | (len(values) == self.n_samples)]
            if len(known):
                share = log(len(values)) - log(self.n_samples)
                found[known] = log_density_nearby(points[known], values, self.bandwidth) + share
        return found


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
        self._moments = np.zeros((ORDER + EXTRA_POWERS + 1, N_BINS))
        self._counts = np.zeros(N_BINS, np.intp)
        self._n_samples = self._n_pieces = self._longest = 0
        self._below, self._above = _Lowest(), _Lowest()

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
            remainder = positions - STEP * bins
            term = np.exp(-0.5 * remainder**2)
            bins -= low
            for moments in self._moments:
                moments[low - FIRST_BIN : high - FIRST_BIN] += np.bincount(bins, term, high - low)
                term *= remainder
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
        bins = self._moments[:, lowest - FARTHEST - FIRST_BIN : highest + FARTHEST + 1 - FIRST_BIN].T
        filled, carried = carried_sums(np.ascontiguousarray(bins))
        sums = np.zeros((len(bins) + 2 * FARTHEST, N_POWERS))
        for step in range(carried.shape[1]):
            sums[filled + step] += carried[:, step]
        sums = sums[2 * FARTHEST : -2 * FARTHEST]
        has_cell = np.zeros(len(sums), bool)
        has_cell[nodes - lowest] = True
        return SummedDensity(
            n_samples=self._n_samples,
            n_added=self._longest + self._n_pieces,
            origin=self._origin,
            bandwidth=self._bandwidth,
            lowest_node=lowest,
            sums=np.ascontiguousarray(sums),
            has_cell=has_cell,
            below=np.sort(self._below.values),
            above=np.sort(-self._above.values),
        )

    def _cells_in_range(self) -> tuple[int, NDArray[np.intp]]:
        """Node of the first cell, (cell,) samples nearest to each node, from the lowest sample to the highest."""
        margin, half = round(REACH / STEP), LONGEST_GRID // 2
        ends = np.array([self._below.values.min(), -self._above.values.min()], np.float64)
        low, high = np.rint((ends - self._origin) / self._bandwidth / STEP)
        first, last = int(max(low - margin, -half)), int(min(high + margin, half))
        return first, self._counts[first - FIRST_BIN : last + 1 - FIRST_BIN]


class _Lowest:
    """The lowest of all values, so many that are kept."""

    def __init__(self) -> None:
        self.values = np.empty(0, np.float32)

    def absorb(self, values: NDArray[np.float32]) -> None:
        """Add (sample,) values, in any order."""
        if len(self.values) == MOST_OUTERMOST:
            values = values[values < self.values.max()]
        self.values = np.concatenate([self.values, values])
        if len(self.values) > MOST_OUTERMOST:
            self.values = np.partition(self.values, MOST_OUTERMOST - 1)[:MOST_OUTERMOST]


def as_arrays(densities: Mapping[tuple[int, int], SummedDensity]) -> dict[str, NDArray]:
    """(class, node) -> density, as four arrays: facts of each density, sums, cells and outermost values of all."""
    facts, outermost = [], []
    for (k, u), one in densities.items():
        facts.append([k, u, one.n_samples, one.n_added, one.lowest_node, len(one.sums), len(one.below), one.origin])
        outermost += [one.below, one.above]
    return {
        "densities": np.array(facts, np.float64),
        "sums": np.concatenate([one.sums for one in densities.values()]),
        "cells": np.concatenate([one.has_cell for one in densities.values()]).astype(np.uint8),
        "outermost": np.concatenate(outermost),
    }


def from_arrays(arrays: Mapping[str, NDArray], bandwidth: NDArray[np.float64]) -> dict[tuple[int, int], SummedDensity]:
    """The arrays of :func:`as_arrays`, (class, node) bandwidths -> the densities; ValueError if arrays contradict."""
    found, row, value = {}, 0, 0
    for facts in arrays["densities"].tolist():
        k, u, n_samples, n_added, lowest, n_rows, n_kept = map(int, facts[:7])
        found[k, u] = SummedDensity(
            n_samples=n_samples,
            n_added=n_added,
            origin=facts[7],
            bandwidth=float(bandwidth[k, u]),
            lowest_node=lowest,
            sums=arrays["sums"][row : row + n_rows],
            has_cell=arrays["cells"][row : row + n_rows].astype(bool),
            below=arrays["outermost"][value : value + n_kept],
            above=arrays["outermost"][value + n_kept : value + 2 * n_kept],
        )
        row, value = row + n_rows, value + 2 * n_kept
        if min(n_rows, n_kept) < 1 or n_kept > n_samples or found[k, u].has_cell[[0, -1]].any():
            raise ValueError(f"the table of class {k} at node {u} has no samples, or a cell at its end")
    if (row, value) != (len(arrays["sums"]), len(arrays["outermost"])):
        raise ValueError(f"tables need {row} rows and {value} values, but have {len(arrays['sums'])} and others")
    return found
