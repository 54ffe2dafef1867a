"""(node, sample) products of samples and weights, on tiles of one fixed shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.scratch import Scratch
from fxdask.sizes import TileShape, padded_length

__all__ = [
    "ClassValues",
    "ColumnValues",
    "DenseNodes",
    "PackedProjection",
    "ProjectedPart",
    "ValuesByClass",
    "anchored_products",
    "class_runs",
    "node_rows",
    "pad_rows",
    "row_products",
]

PRODUCT_SAMPLES = 384
ROWS_PER_PRODUCT = 96


@dataclass(frozen=True)
class ColumnValues:
    """(node, column) values of some samples, and for each class the runs of columns with its samples.

    The columns keep the order of the products, tile by tile. To get all values of one class,
    ``gather`` copies them for a few nodes at a time, so that they stay in the CPU cache.
    """

    values: NDArray[np.float32]
    runs: Sequence[Sequence[slice]]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.values)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.runs)

    def take(self, rows: slice | NDArray[np.intp]) -> ColumnValues:
        """These nodes only."""
        return ColumnValues(self.values[rows], self.runs)

    def count(self, k: int) -> int:
        """Number of samples of this class."""
        return sum(run.stop - run.start for run in self.runs[k])

    def gather(self, k: int, rows: slice = slice(None), out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(node, sample) values of one class at these nodes, in the order of the samples."""
        values = self.values[rows]
        if out is None:
            out = np.empty((len(values), self.count(k)), np.float32)
        start = 0
        for run in self.runs[k]:
            stop = start + run.stop - run.start
            out[:, start:stop] = values[:, run]
            start = stop
        return out


@dataclass(frozen=True)
class ClassValues:
    """For each class an array of its (node, sample) values, so that the values of a node are neighbours."""

    arrays: Sequence[NDArray[np.float32]]

    @property
    def n_nodes(self) -> int:
        """Number of nodes."""
        return len(self.arrays[0])

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.arrays)

    def take(self, rows: slice | NDArray[np.intp]) -> ClassValues:
        """These nodes only."""
        return ClassValues([values[rows] for values in self.arrays])

    def count(self, k: int) -> int:
        """Number of samples of this class."""
        return self.arrays[k].shape[1]

    def gather(self, k: int, rows: slice = slice(None), out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """A copy of the (node, sample) values of one class at these nodes, in the order of the samples."""
        if out is None:
            return self.arrays[k][rows].copy()
        out[...] = self.arrays[k][rows]
        return out


ValuesByClass = ColumnValues | ClassValues

ProjectedPart = tuple[slice, slice, NDArray[np.float32]]
"""Rows, samples of a tile, and their (row, sample) values, which the next part may overwrite."""


def class_runs(codes: NDArray[np.integer], n_classes: int) -> tuple[NDArray[np.intp], list[slice]]:
    """(sample,) class codes of a tile -> (sample,) indices that order it by class, and the slice of each class."""
    order = np.argsort(codes, kind="stable")
    edges = np.searchsorted(codes[order], np.arange(n_classes + 1))
    return order, [slice(int(first), int(last)) for first, last in pairwise(edges)]


def pad_rows(rows: NDArray[np.float32], n_rows: int) -> NDArray[np.float32]:
    """(row, feature) -> (n_rows, feature): the rows, then zeros."""
    if len(rows) == n_rows:
        return rows
    padded = np.zeros((n_rows, rows.shape[1]), np.float32)
    padded[: len(rows)] = rows
    return padded


def node_rows(start: int, stop: int, n_nodes: int, per_tile: int) -> tuple[int, int, list[slice]]:
    """Node range -> first and last row of the tiles that contain it, and the slice of each tile from the first row.

    Tiles are anchored at absolute multiples of ``per_tile``, so a node is the same row of the
    same product for every block size.
    """
    first = start - start % per_tile
    anchors = range(first, stop, per_tile)
    tiles = [slice(a - first, a - first + padded_length(n_nodes, a, per_tile)) for a in anchors]
    return first, first + tiles[-1].stop, tiles


class DenseNodes:
    """(node, feature) weights of consecutive nodes; projects tiles of samples onto them by products of whole tiles.

    Parameters
    ----------
    weights : (node, feature)
    first_node : int
        Index of the first node.
    n_nodes : int
        Nodes of the whole network, which determine the padding of the last tile.
    per_tile : int
        Nodes of a tile.
    scratch : Scratch
        Its array "product" holds the values of a tile.
    """

    def __init__(
        self, weights: NDArray[np.float32], first_node: int, n_nodes: int, per_tile: int, scratch: Scratch
    ) -> None:
        first, last, self._tiles = node_rows(first_node, first_node + len(weights), n_nodes, per_tile)
        self.n_rows = last - first
        self.nodes = slice(first_node - first, first_node - first + len(weights))
        self._weights, self._scratch = weights, scratch
        if len(weights) != self.n_rows:
            self._weights = np.zeros((self.n_rows, weights.shape[1]), np.float32)
            self._weights[self.nodes] = weights

    def parts(self, samples: NDArray[np.float32]) -> Iterator[ProjectedPart]:
        """(sample, feature) one tile of preprocessed samples -> rows, samples, (row, sample) values of these."""
        for rows in self._tiles:
            values = self._scratch("product", (rows.stop - rows.start, len(samples)))
            np.matmul(self._weights[rows], samples.T, out=values)
            yield rows, slice(0, len(samples)), values


def anchored_products(
    matrix: NDArray[np.float64], columns: NDArray[np.float64], start: int
) -> Iterator[tuple[slice, NDArray[np.float64]]]:
    """(row, inner) matrix, (inner, sample) columns, index of the first sample -> products of ranges of samples.

    Yields the range and its (row, sample) product, which the next one overwrites. Like all products
    they run on tiles of one shape, anchored at absolute sample indices, so that the result of a sample
    does not depend on how its set was split.
    """
    product = np.empty((len(matrix), PRODUCT_SAMPLES))
    stop = start + columns.shape[1]
    for anchor in range(start - start % PRODUCT_SAMPLES, stop, PRODUCT_SAMPLES):
        low, high = max(anchor, start), min(anchor + PRODUCT_SAMPLES, stop)
        some, inside = slice(low - start, high - start), slice(low - anchor, high - anchor)
        tile = columns[:, some]
        if high - low < PRODUCT_SAMPLES:
            tile = np.zeros((len(columns), PRODUCT_SAMPLES))
            tile[:, inside] = columns[:, some]
        np.matmul(matrix, tile, out=product)
        yield some, product[:, inside]


def row_products(rows: NDArray[np.float64], matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """(row, inner) rows, (inner, column) matrix -> (row, column) products; a row has the same bits beside any others.

    The bits of a plain product depend on the number of rows, so all products have the same shape.
    """
    found = np.empty((len(rows), matrix.shape[1]))
    for start in range(0, len(rows), ROWS_PER_PRODUCT):
        some = slice(start, start + ROWS_PER_PRODUCT)
        n_rows = len(found[some])
        if n_rows == ROWS_PER_PRODUCT:
            np.matmul(rows[some], matrix, out=found[some])
        else:
            padded = np.zeros((ROWS_PER_PRODUCT, rows.shape[1]))
            padded[:n_rows] = rows[some]
            found[some] = (padded @ matrix)[:n_rows]
    return found


class PackedProjection:
    """(node, feature) weights of few nodes, any samples -> (node, sample) values, by products of one fixed shape.

    The weights fill a tile from its first row, and tiles are anchored at absolute sample indices. So
    a value depends on the weights and on the index of the sample, not on the number of samples or on
    how they were split.

    Parameters
    ----------
    weights : (node, feature)
    preprocessing : Preprocessing
    tile : TileShape
        With at least as many rows as there are nodes.
    shift_products : bool
        Subtract a small shift from the products instead of from every sample, which saves a copy of
        all samples but may change the last bits.
    """

    def __init__(
        self,
        weights: NDArray[np.float32],
        preprocessing: Preprocessing,
        tile: TileShape,
        *,
        shift_products: bool = False,
    ) -> None:
        self._n_nodes, self._tile, self._preprocessing = len(weights), tile, preprocessing
        self._padded = pad_rows(weights, tile.nodes)
        self._shift: NDArray[np.float32] | None = None
        if shift_products and preprocessing.is_small_shift:
            shifts = self._padded.astype(np.float64) @ preprocessing.shift
            self._shift = shifts.astype(np.float32)[:, None]

    @property
    def n_features(self) -> int:
        """Features of a raw sample."""
        return self._padded.shape[1]

    @property
    def tile(self) -> TileShape:
        """The shape of a product."""
        return self._tile

    def __call__(
        self, samples: NDArray, start: int, scratch: Scratch, out: NDArray[np.float32] | None = None
    ) -> NDArray[np.float32]:
        """(sample, feature) raw samples, index of the first one -> (node, sample) values.

        Without ``out`` the result is overwritten by the next call with the same scratch.
        """
        per_tile, stop = self._tile.samples, start + len(samples)
        values = scratch("values", (self._n_nodes, len(samples))) if out is None else out
        product = scratch("product", (self._tile.nodes, per_tile))
        for anchor in range(start - start % per_tile, stop, per_tile):
            low, high = max(anchor, start), min(anchor + per_tile, stop)
            inside = slice(low - anchor, high - anchor)
            self._multiply(samples[low - start : high - start], low, inside, product, scratch)
            values[:, low - start : high - start] = product[: self._n_nodes, inside]
        return values

    def _multiply(
        self, samples: NDArray, start: int, inside: slice, product: NDArray[np.float32], scratch: Scratch
    ) -> None:
        """(sample, feature) raw samples, index of the first one, their columns in the tile -> (row, column) product."""
        per_tile = product.shape[1]
        preprocessed = scratch("prepared", (per_tile, samples.shape[1]))
        preprocessed[: inside.start], preprocessed[inside.stop :] = 0, 0
        with np.errstate(over="ignore", invalid="ignore"):
            if self._shift is None:
                self._preprocessing(samples, preprocessed[inside])
                np.matmul(self._padded, preprocessed.T, out=product)
            else:
                whole = samples
                if samples.dtype != np.float32 or len(samples) < per_tile or not samples.flags.c_contiguous:
                    whole = preprocessed
                    preprocessed[inside] = samples
                np.matmul(self._padded, whole.T, out=product)
                product -= self._shift
            is_finite = np.isfinite(product.sum())
        if not is_finite:
            # A sample contains NaN or is too large for float32, so every sample is checked.
            self._preprocessing.apply_checked(samples, preprocessed[inside], start)
            wrong = ~np.isfinite(product).all(axis=0)
            product[:, wrong] = (self._padded @ preprocessed.T)[:, wrong]
