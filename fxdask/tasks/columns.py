"""A block of columns to measure: the projections onto random nodes.

``all_values`` returns the values of all samples; ``chunks`` yields the
values of some columns chunk by chunk, for blocks that do not fit into memory; ``probed`` returns the
values of a few samples, from which brackets of the order statistics are estimated.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.projection import ColumnValues, node_rows, project_tile
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import node_tolerance
from fxdask.kernels.weights import weight_block
from fxdask.sizes import NodeBlock, padded_length
from fxdask.store.sources import Source
from fxdask.tasks.cache import job_cache, source_key
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import SampleTile, TileReader
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["BlockProduct", "Columns", "ProjectedNodes", "SampleTiles"]


class Columns(Protocol):
    """The columns of one block, and their values. ``rows`` are indices of columns within the block."""

    @property
    def n_columns(self) -> int:
        """Number of columns in the block."""

    @property
    def tolerance(self) -> NDArray[np.float64]:
        """(class, column) spread at or below which a class is treated as constant at a column."""

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) upper bound of the absolute values of these columns."""

    def all_values(self) -> ColumnValues:
        """(column, sample) values of all samples; the next call overwrites them."""

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """(row, probe) values of the probed samples; their last bits may differ from those of ``chunks``."""

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """(row, sample) values of all samples, chunk by chunk; each chunk overwrites the one before."""


@dataclass(frozen=True, kw_only=True)
class BlockProduct:
    """Products of a range of nodes with tiles of samples."""

    weights: NDArray[np.float32]
    """(node, feature)"""
    first_node: int
    n_nodes: int
    """Nodes of the whole network, which determine the padding of the last tile."""
    tile_nodes: int
    scratch: Scratch

    def chunks(
        self, tiles: Iterable[SampleTile], n_samples: int, per_chunk: int | None = None
    ) -> Iterator[ColumnValues]:
        """(node, sample) products in chunks of ``per_chunk`` samples, which are whole tiles.

        The next chunk and the next call overwrite the values of a chunk.
        """
        first, last, node_tiles = node_rows(
            self.first_node, self.first_node + len(self.weights), self.n_nodes, self.tile_nodes
        )
        block = slice(self.first_node - first, self.first_node - first + len(self.weights))
        weights = self.weights
        if len(weights) != last - first:
            weights = np.zeros((last - first, weights.shape[1]), np.float32)
            weights[block] = self.weights

        def multiply(tile: SampleTile, values: NDArray[np.float32]) -> None:
            project_tile(weights, node_tiles, tile.preprocessed, values)

        per_chunk = min(per_chunk or n_samples, n_samples)
        values = self.scratch("values", (last - first, padded_length(per_chunk)))
        for chunk in _filled(tiles, n_samples, values, multiply):
            yield ColumnValues(chunk.values[block], chunk.runs)


def _filled(
    tiles: Iterable[SampleTile],
    n_samples: int,
    values: NDArray[np.float32],
    fill: Callable[[SampleTile, NDArray[np.float32]], None],
) -> Iterator[ColumnValues]:
    """(column, sample) array, filled tile by tile and yielded whenever it is full and after the last tile."""
    runs: list[list[slice]] = []
    column = done = 0
    for tile in tiles:
        width = len(tile.preprocessed)
        fill(tile, values[:, column : column + width])
        runs = runs or [[] for _ in tile.runs]
        for of_class, run in zip(runs, tile.runs, strict=True):
            if run.stop > run.start:
                of_class.append(slice(column + run.start, column + run.stop))
        column += width
        done += tile.n_samples
        if column >= values.shape[1] or done == n_samples:
            yield ColumnValues(values, runs)
            runs, column = [], 0


class SampleTiles:
    """The tiles of a job's samples: read, ordered by class and preprocessed."""

    def __init__(self, job: FitJob, samples: Source, counters: TaskCounters) -> None:
        self._job, self._samples, self._counters = job, samples, counters
        self._scratch = job_cache(job).scratch

    def reader(self, codes: NDArray[np.integer]) -> TileReader:
        """A reader of samples with these class codes."""
        return TileReader(
            codes=codes,
            plan=self._job.plan,
            preprocess=self._job.preprocessing,
            counters=self._counters,
            scratch=self._scratch,
        )

    def kept(self) -> Iterable[SampleTile]:
        """All tiles; a process keeps them from block to block if the samples are few."""
        if not self._job.plan.keeps_preprocessed:
            return self.streamed()
        self._counters.passes += 1
        # The cache also holds the samples: a new array could otherwise reuse their id, which is the key.
        _, tiles = job_cache(self._job).get(
            ("tiles", source_key(self._samples)),
            lambda: (self._samples, list(self.reader(self._job.codes).tiles(self._samples, lasting=True))),
        )
        return tiles

    def streamed(self) -> Iterable[SampleTile]:
        """All tiles, read anew; each overwrites the one before."""
        self._counters.passes += 1
        return self.reader(self._job.codes).tiles(self._samples)


class ProjectedNodes:
    """The projections of all samples onto a block of random nodes."""

    def __init__(
        self,
        job: FitJob,
        samples: Source,
        block: NodeBlock,
        counters: TaskCounters,
        probes: Source | None = None,
    ) -> None:
        self._job, self._block, self._probes = job, block, probes
        self._tiles = SampleTiles(job, samples, counters)
        self._scratch = job_cache(job).scratch

    @property
    def n_columns(self) -> int:
        """Number of columns in the block."""
        return self._block.n_nodes

    def _probe_tiles(self) -> tuple[Iterable[SampleTile], int]:
        codes = self._job.probe_codes
        assert self._probes is not None, "a streaming job has probes"
        assert codes is not None, "a streaming job knows the classes of its probes"
        return self._tiles.reader(codes).tiles(self._probes), len(codes)

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """(node, feature) weights of the block."""
        return weight_block(self._job.seed, self._block.start, self._block.stop, self._job.plan.n_features)

    @cached_property
    def tolerance(self) -> NDArray[np.float64]:
        """(class, node) spread at or below which a class is treated as constant at a node."""
        return node_tolerance(self.weights, self._job.class_norms)

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) largest possible sum of absolute products, with 1 % added for rounding."""
        absolute = np.abs(self.weights[rows]).sum(axis=1, dtype=np.float64)
        return 1.01 * absolute * self._job.preprocessing.largest

    def _product(self, weights: NDArray[np.float32], first_node: int, n_nodes: int) -> BlockProduct:
        return BlockProduct(
            weights=weights,
            first_node=first_node,
            n_nodes=n_nodes,
            tile_nodes=self._job.plan.tile.nodes,
            scratch=self._scratch,
        )

    def all_values(self) -> ColumnValues:
        """(node, sample) values of all samples; the next call overwrites them."""
        plan = self._job.plan
        product = self._product(self.weights, self._block.start, plan.n_nodes)
        (values,) = product.chunks(self._tiles.kept(), plan.n_samples)
        return values

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """(row, probe) values of the probed samples; only these nodes are multiplied, not whole tiles."""
        tiles, n_probes = self._probe_tiles()
        product = self._product(self.weights[rows], 0, len(rows))
        (values,) = product.chunks(tiles, n_probes)
        return values

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """(row, sample) values of all samples, chunk by chunk, from products of whole tiles of nodes."""
        plan, first, last = self._job.plan, int(rows[0]), int(rows[-1]) + 1
        wanted = slice(None) if len(rows) == last - first else rows - first
        product = self._product(self.weights[first:last], self._block.start + first, plan.n_nodes)
        for values in product.chunks(self._tiles.streamed(), plan.n_samples, plan.samples_per_chunk):
            yield values.take(wanted)
