"""Samples times weights, on tiles of one fixed shape, into node-major rows sorted by class."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fxdask.plan import TileShape

__all__ = ["ClassOrder", "pad_rows", "project_packed", "project_tile", "weight_tiles"]


class ClassOrder:
    """Where every sample's value stands once the samples are sorted by class, in index order within a class."""

    def __init__(self, codes: NDArray[np.integer], n_classes: int) -> None:
        self.codes = codes
        order = np.argsort(codes, kind="stable")
        self._position = np.empty(len(codes), np.int64)
        self._position[order] = np.arange(len(codes))
        self.n_classes = n_classes

    def runs(self, start: int, stop: int) -> tuple[NDArray[np.intp], list[tuple[slice, slice]]]:
        """Sample range -> its samples ordered by class, and per class (columns of the tile, columns of the row)."""
        codes = self.codes[start:stop]
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(self.n_classes + 1))
        runs = []
        for first, last in pairwise(edges):
            if last > first:
                column = int(self._position[start + order[first]])
                runs.append((slice(int(first), int(last)), slice(column, column + int(last - first))))
        return order, runs


def pad_rows(rows: NDArray[np.float32], n_rows: int, offset: int = 0) -> NDArray[np.float32]:
    """(row, input) -> (n_rows, input): the rows at this offset, zeros elsewhere."""
    if len(rows) == n_rows:
        return rows
    padded = np.zeros((n_rows, rows.shape[1]), np.float32)
    padded[offset : offset + len(rows)] = rows
    return padded


def weight_tiles(
    weights: NDArray[np.float32], first_node: int, per_tile: int
) -> list[tuple[slice, slice, NDArray[np.float32]]]:
    """(node, input) weights of a block -> per tile: rows of the block, rows of the tile, the padded tile.

    Tiles are anchored at absolute multiples of ``per_tile``, so a node has the same place in the
    same product for every block size.
    """
    tiles = []
    stop_node = first_node + len(weights)
    for anchor in range(first_node - first_node % per_tile, stop_node, per_tile):
        low, high = max(anchor, first_node), min(anchor + per_tile, stop_node)
        in_block = slice(low - first_node, high - first_node)
        in_tile = slice(low - anchor, high - anchor)
        tiles.append((in_block, in_tile, pad_rows(weights[in_block], per_tile, in_tile.start)))
    return tiles


def project_tile(
    values: NDArray[np.float32],
    tiles: list[tuple[slice, slice, NDArray[np.float32]]],
    samples: NDArray[np.float32],
    runs: list[tuple[slice, slice]],
    scratch: NDArray[np.float32],
) -> None:
    """(sample, input) one padded tile of samples, times every weight tile -> their columns of (node, sample) values."""
    for in_block, in_tile, weights in tiles:
        np.matmul(weights, samples.T, out=scratch)
        for columns, places in runs:
            values[in_block, places] = scratch[in_tile, columns]


def project_packed(weights: NDArray[np.float32], samples: NDArray[np.float32], tile: TileShape) -> NDArray[np.float32]:
    """(node, input) few weights, (sample, input) prepared samples -> (node, sample) values.

    The weights stand packed from the first row of one product of fixed shape, so the values
    depend on the weights and on each sample's place in its tile, not on how many samples there are.
    """
    n_rows = -(-len(weights) // 16) * 16
    padded = pad_rows(weights, n_rows)
    values = np.empty((len(weights), len(samples)), np.float32)
    for start in range(0, len(samples), tile.samples):
        part = samples[start : start + tile.samples]
        product = padded @ pad_rows(part, tile.samples).T
        values[:, start : start + len(part)] = product[: len(weights), : len(part)]
    return values
