"""Sums over the samples at the nodes of a grid, of which the cells of density tables are made."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module
from math import comb, factorial

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.wide_normal import WideNormal

__all__ = [
    "EXTRA_POWERS",
    "FARTHEST",
    "FEWEST_TABULATED",
    "LONGEST_GRID",
    "ORDER",
    "REACH",
    "STEP",
    "CellSums",
    "carried_sums",
    "cells_within_reach",
    "sums_around",
]

STEP = 0.5
ORDER = 12
REACH = 6.0
# Samples beyond this many steps of a node add less than exp(-48) of its density, times the number of samples.
FARTHEST = 24
LONGEST_GRID = 2**12
MOST_CELLS = 2**10
# Up to this number, summing a mixture's kernels takes little longer than a table, which would need 30 KiB.
FEWEST_TABULATED = 16
# From this number on, moments of bins are summed instead of the samples' terms at all nodes around them.
FEWEST_BINNED = 2**10
# Powers of exp(-k w r) in a bin: |k w r| is at most 3, and 3^25 / 25! is below 1e-13.
EXTRA_POWERS = 24


@dataclass(frozen=True, kw_only=True)
class CellSums:
    """The covered cells of a density, and (cell, power) sums at their nodes and at the nodes before and after."""

    first: int
    cells: NDArray[np.intp]
    at: NDArray[np.float64]
    before: NDArray[np.float64]
    after: NDArray[np.float64]
    n_added: int
    """Terms that were added one after another, by which rounding is bounded."""


def sums_around(positions: NDArray[np.float64], wide: WideNormal | None) -> CellSums:
    """(sample,) ascending positions -> sums of d^j exp(-d^2 / 2) over them at the nodes of their cells and around.

    A wide normal, if there is one, is one more sample.
    """
    first, cells = _covered_cells(positions)
    if not len(cells) or (wide is not None and len(positions) <= FEWEST_TABULATED):
        none = np.empty((0, ORDER + 1))
        return CellSums(first=first, cells=cells[:0], at=none, before=none, after=none, n_added=0)
    nodes = cells + first
    lowest, highest = int(nodes[0]) - 1, int(nodes[-1]) + 1
    grid = _node_sums(positions, lowest, highest)
    if wide is not None:
        grid += wide.kernel_sums(STEP * np.arange(lowest, highest + 1, dtype=np.float64), ORDER)
    at = nodes - lowest
    return CellSums(
        first=first,
        cells=cells,
        at=grid[at],
        before=grid[at - 1],
        after=grid[at + 1],
        n_added=len(positions),
    )


def _covered_cells(positions: NDArray[np.float64]) -> tuple[int, NDArray[np.intp]]:
    """(sample,) ascending positions -> node of cell 0, (cell,) indices of the cells within reach of a sample.

    If the range of the samples is longer than the longest grid, only its middle is covered. If more
    cells are within reach than a table may have, those with the most samples nearby are used.
    """
    margin, half = round(REACH / STEP), LONGEST_GRID // 2
    first = int(max(np.rint(positions[0] / STEP) - margin, -half))
    last = int(min(np.rint(positions[-1] / STEP) + margin, half))
    return first, cells_within_reach(np.diff(np.searchsorted(positions, (np.arange(first, last + 2) - 0.5) * STEP)))


def cells_within_reach(counts: NDArray[np.intp]) -> NDArray[np.intp]:
    """(cell,) samples nearest to the node of each cell -> (cell,) indices of the cells within reach of a sample."""
    margin = round(REACH / STEP)
    total = np.concatenate([np.zeros(margin + 1, np.intp), np.cumsum(counts), np.full(margin, counts.sum())])
    near = total[2 * margin + 1 :] - total[: -2 * margin - 1]
    cells = np.flatnonzero(near)
    if len(cells) > MOST_CELLS:
        cells = np.sort(cells[np.argsort(-near[cells], kind="stable")[:MOST_CELLS]])
    return cells


def _node_sums(positions: NDArray[np.float64], lowest: int, highest: int) -> NDArray[np.float64]:
    """(sample,) ascending positions, range of nodes -> (node, power) sums of d^j exp(-d^2 / 2), d = position - node."""
    ends = np.array([lowest - FARTHEST - 0.5, highest + FARTHEST + 0.5]) * STEP
    positions = positions[slice(*np.searchsorted(positions, ends))]
    nearest = np.rint(positions / STEP).astype(np.intp).clip(lowest - FARTHEST, highest + FARTHEST)
    n_nodes = highest - lowest + 1 + 4 * FARTHEST
    if len(positions) >= FEWEST_BINNED:
        grid = _binned_sums(positions, nearest, lowest - 2 * FARTHEST, n_nodes)
    else:
        sums = np.zeros((ORDER + 1, n_nodes))
        _compiled()[0](positions, nearest, lowest - 2 * FARTHEST, _step_weights(), sums)
        grid = sums.T
    return np.ascontiguousarray(grid[2 * FARTHEST : -2 * FARTHEST])


def _binned_sums(
    positions: NDArray[np.float64], nearest: NDArray[np.intp], first_node: int, n_nodes: int
) -> NDArray[np.float64]:
    """The sums of many samples, from the moments of the samples nearest to each node.

    With a sample at b w + r and a node k steps below b, d = k w + r, the term d^j exp(-d^2 / 2) is a
    sum over the powers r^i exp(-r^2 / 2), because exp(-k w r) is one. So each bin needs its moments only.
    """
    moments = np.zeros((n_nodes, ORDER + EXTRA_POWERS + 1))
    _compiled()[1](positions, nearest, first_node, moments)
    filled, carried = carried_sums(moments)
    grid = np.zeros((n_nodes, ORDER + 1))
    _compiled()[2](carried, filled, grid)
    return grid


def carried_sums(moments: NDArray[np.float64]) -> tuple[NDArray[np.intp], NDArray[np.float64]]:
    """(bin, power) moments -> (filled,) bins with samples, (filled, step, power) sums for the nodes around them."""
    filled = np.flatnonzero(moments[:, 0])
    carried = moments[filled] @ _bin_to_node_factors(ORDER)
    return filled, carried.reshape(len(filled), 2 * FARTHEST + 1, ORDER + 1)


def _add_carried(carried: NDArray[np.float64], filled: NDArray[np.intp], grid: NDArray[np.float64]) -> None:
    """Add the (bin, step, power) sums that each filled bin carries to the (node, power) sums of the nodes around it."""
    for step in range(carried.shape[1]):
        for index in range(len(filled)):
            row = grid[filled[index] + step - FARTHEST]
            for power in range(len(row)):
                row[power] += carried[index, step, power]


@lru_cache(maxsize=4)
def _bin_to_node_factors(order: int) -> NDArray[np.float64]:
    """(moment, step and power) factors from moments of r to sums of d^j exp(-d^2 / 2); steps rise with the node."""
    factors = np.zeros((order + EXTRA_POWERS + 1, 2 * FARTHEST + 1, order + 1))
    for step in range(2 * FARTHEST + 1):
        distance = (FARTHEST - step) * STEP
        weight = float(np.exp(-0.5 * distance**2))
        for i in range(EXTRA_POWERS + 1):
            series = weight * (-distance) ** i / factorial(i)
            for j in range(order + 1):
                for power in range(j + 1):
                    factors[i + power, step, j] += series * comb(j, power) * distance ** (j - power)
    return factors.reshape(len(factors), -1)


def _add_moments(
    positions: NDArray[np.float64], nearest: NDArray[np.intp], first_node: int, moments: NDArray[np.float64]
) -> None:
    """Add r^i exp(-r^2 / 2) of every sample to the (node, power) moments of the node nearest to it."""
    for sample in range(len(positions)):
        remainder = positions[sample] - nearest[sample] * STEP
        term = np.exp(-0.5 * remainder * remainder)
        row = moments[nearest[sample] - first_node]
        for power in range(len(row)):
            row[power] += term
            term *= remainder


@cache
def _step_weights() -> NDArray[np.float64]:
    """(step,) exp(-(k w)^2 / 2) for k = FARTHEST down to -FARTHEST."""
    return np.exp(-0.5 * (np.arange(FARTHEST, -FARTHEST - 1, -1) * STEP) ** 2)


def _add_sums(
    positions: NDArray[np.float64],
    nearest: NDArray[np.intp],
    first_node: int,
    step_weights: NDArray[np.float64],
    sums: NDArray[np.float64],
) -> None:
    """Add d^j exp(-d^2 / 2) of every sample to the (power, node) sums of the nodes around it.

    With a sample at b w + r and a node k steps below it, d = k w + r, and the weight exp(-d^2 / 2) is
    exp(-(k w)^2 / 2) exp(-w r)^k exp(-r^2 / 2): two exponentials per sample, and products.
    """
    n_steps = len(step_weights)
    distance, term = np.empty(n_steps), np.empty(n_steps)
    for sample in range(len(positions)):
        remainder = positions[sample] - nearest[sample] * STEP
        middle = np.exp(-0.5 * remainder * remainder)
        down, up = np.exp(-STEP * remainder), np.exp(STEP * remainder)
        term[FARTHEST] = middle
        below = above = middle
        for k in range(1, FARTHEST + 1):
            below *= down
            above *= up
            term[FARTHEST - k] = below
            term[FARTHEST + k] = above
        for step in range(n_steps):
            term[step] *= step_weights[step]
            distance[step] = remainder + (FARTHEST - step) * STEP
        first = nearest[sample] - first_node - FARTHEST
        for power in range(len(sums)):
            row = sums[power, first : first + n_steps]
            for step in range(n_steps):
                row[step] += term[step]
                term[step] *= distance[step]


@cache
def _compiled() -> tuple[Callable[..., None], ...]:
    """The functions that add sums, moments and carried sums, compiled on first use: that imports the compiler."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_add_sums), njit(_add_moments), njit(_add_carried)
