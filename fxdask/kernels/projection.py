"""Samples times weights, on tiles of one fixed shape, into node-major values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fxdask.plan import TileShape, padded_length

__all__ = ["Projected", "class_runs", "node_rows", "pad_rows", "project_packed", "project_tile"]


@dataclass(frozen=True)
class Projected:
    """(node, column) values of some samples, and per class the runs of columns that hold its samples.

    A product's columns stay where it put them, tile after tile: whoever needs one class together
    gathers it, a few nodes at a time, while they are in the processor's cache.
    """

    values: NDArray[np.float32]
    runs: Sequence[Sequence[slice]]

    def take(self, rows: slice | NDArray[np.intp]) -> Projected:
        """The same of these nodes only."""
        return Projected(self.values[rows], self.runs)

    def count(self, k: int) -> int:
        """How many samples are of this class."""
        return sum(run.stop - run.start for run in self.runs[k])

    def gather(self, k: int, rows: slice = slice(None), out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(node, sample) the values of one class at these nodes, in the order of the samples."""
        values = self.values[rows]
        if out is None:
            out = np.empty((len(values), self.count(k)), np.float32)
        place = 0
        for run in self.runs[k]:
            stop = place + run.stop - run.start
            out[:, place:stop] = values[:, run]
            place = stop
        return out


def class_runs(codes: NDArray[np.integer], n_classes: int) -> tuple[NDArray[np.intp], list[slice]]:
    """(sample,) class codes of a tile -> its samples ordered by class, and where each class then stands."""
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(n_classes + 1))
    return order, [slice(int(first), int(last)) for first, last in pairwise(edges)]


def pad_rows(rows: NDArray[np.float32], n_rows: int) -> NDArray[np.float32]:
    """(row, input) -> (n_rows, input): the rows, then zeros."""
    if len(rows) == n_rows:
        return rows
    padded = np.zeros((n_rows, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return padded


def node_rows(start: int, stop: int, n_nodes: int, per_tile: int) -> tuple[int, int, list[slice]]:
    """Node range -> first and last row of the tiles it lies in, and these tiles as rows counted from the first.

    Tiles are anchored at absolute multiples of ``per_tile``, so a node has the same place in the
    same product for every block size.
    """
    first = start - start % per_tile
    anchors = range(first, stop, per_tile)
    tiles = [slice(a - first, a - first + padded_length(n_nodes, a, per_tile)) for a in anchors]
    return first, first + tiles[-1].stop, tiles


def project_tile(
    weights: NDArray[np.float32],
    tiles: Sequence[slice],
    samples: NDArray[np.float32],
    values: NDArray[np.float32],
) -> None:
    """(row, input) weights in whole tiles, (sample, input) one tile of samples -> (row, sample) values."""
    for rows in tiles:
        np.matmul(weights[rows], samples.T, out=values[rows])


def project_packed(weights: NDArray[np.float32], samples: NDArray[np.float32], tile: TileShape) -> NDArray[np.float32]:
    """(node, input) few weights, (sample, input) prepared samples -> (node, sample) values.

    The weights stand packed from the first row of one product of fixed shape, so the values
    depend on the weights and on each sample's place in its tile, not on how many samples there are.
    """
    padded = pad_rows(weights, padded_length(len(weights)))
    values = np.empty((len(weights), len(samples)), np.float32)
    for start in range(0, len(samples), tile.samples):
        part = samples[start : start + tile.samples]
        product = padded @ pad_rows(part, tile.samples).T
        values[:, start : start + len(part)] = product[: len(weights), : len(part)]
    return values
