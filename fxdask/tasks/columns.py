"""A block of columns to be measured: projections onto random nodes, or the data's own features.

Both have one interface. ``all_values`` gives every sample's value at once; ``chunks`` gives the
values of some columns chunk by chunk, for blocks that do not fit into memory, and ``probed`` those
of a few samples, from which brackets of the order statistics are guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
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

__all__ = ["BlockProduct", "Columns", "FeatureColumns", "ProjectedNodes"]


class Columns(Protocol):
    """The columns of one block, and what is needed to measure them."""

    @property
    def n_columns(self) -> int:
        """Columns of the block."""

    @property
    def tolerance(self) -> NDArray[np.float64]:
        """(column,) spread at or below which a column counts as constant."""

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) what no value of these columns exceeds in absolute value."""

    def all_values(self) -> ColumnValues:
        """The values of all samples; they are overwritten by the next call."""

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """The probed samples' values of these columns; they may differ from the others in their last bits."""

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """All samples' values of these columns, chunk by chunk; each chunk is overwritten by the next."""


@dataclass(frozen=True, kw_only=True)
class BlockProduct:
    """Products of a range of nodes with tiles of samples."""

    weights: NDArray[np.float32]
    """(node, feature)"""
    first_node: int
    n_nodes: int
    """Nodes of the whole network, which decide how its last tile is padded."""
    tile_nodes: int
    scratch: Scratch

    def chunks(
        self, tiles: Iterable[SampleTile], n_samples: int, per_chunk: int | None = None
    ) -> Iterator[ColumnValues]:
        """The products with all samples, ``per_chunk`` samples (whole tiles) after the other.

        The values of a chunk are overwritten by the next chunk's, and by the next call's.
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
            project_tile(weights, node_tiles, tile.prepared, values)

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
    """(column, sample) array filled tile by tile; given out whenever it is full, and at the end."""
    runs: list[list[slice]] = []
    column = done = 0
    for tile in tiles:
        width = len(tile.prepared)
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


class _SampleColumns:
    """What both kinds of columns share: the job's samples, read tile by tile."""

    def __init__(self, job: FitJob, samples: Source, probes: Source | None, counters: TaskCounters) -> None:
        self._job, self._samples, self._probes, self._counters = job, samples, probes, counters
        self._scratch = job_cache(job).scratch

    def _reader(self, codes: NDArray[np.integer]) -> TileReader:
        return TileReader(
            codes=codes,
            plan=self._job.plan,
            preprocess=self._job.preprocessing,
            counters=self._counters,
            scratch=self._scratch,
        )

    def _all_tiles(self) -> Iterable[SampleTile]:
        """Every tile; where the samples are few, a process keeps them from block to block."""
        self._counters.passes += 1
        reader = self._reader(self._job.codes)
        if not self._job.plan.keeps_preprocessed:
            return reader.tiles(self._samples)
        # The samples are kept with their tiles, so that no other array can get the same key meanwhile.
        _, tiles = job_cache(self._job).get(
            ("tiles", source_key(self._samples)),
            lambda: (self._samples, list(reader.tiles(self._samples, lasting=True))),
        )
        return tiles

    def _streamed_tiles(self) -> Iterable[SampleTile]:
        self._counters.passes += 1
        return self._reader(self._job.codes).tiles(self._samples)

    def _probe_tiles(self) -> tuple[Iterable[SampleTile], int]:
        codes = self._job.probe_codes
        assert self._probes is not None, "a streaming job has probes"
        assert codes is not None, "a streaming job knows the classes of its probes"
        return self._reader(codes).tiles(self._probes), len(codes)


class ProjectedNodes(_SampleColumns):
    """The projections of all samples onto a block of random nodes."""

    def __init__(
        self,
        job: FitJob,
        samples: Source,
        block: NodeBlock,
        counters: TaskCounters,
        probes: Source | None = None,
    ) -> None:
        super().__init__(job, samples, probes, counters)
        self._block = block
        self.weights = weight_block(job.seed, block.start, block.stop, job.plan.n_features)
        self.tolerance = node_tolerance(self.weights, job.preprocessing.largest)

    @property
    def n_columns(self) -> int:
        """Nodes of the block."""
        return self._block.n_nodes

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) the largest sum of absolute products there could be, and a little more for rounding."""
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
        """The values of all samples; they are overwritten by the next call."""
        plan = self._job.plan
        product = self._product(self.weights, self._block.start, plan.n_nodes)
        (values,) = product.chunks(self._all_tiles(), plan.n_samples)
        return values

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """The probed samples' values at these nodes, multiplied by themselves instead of in whole tiles."""
        tiles, n_probes = self._probe_tiles()
        product = self._product(self.weights[rows], 0, len(rows))
        (values,) = product.chunks(tiles, n_probes)
        return values

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """All samples' values at these nodes, chunk by chunk: products of whole tiles, whose other rows are dropped."""
        plan, first, last = self._job.plan, int(rows[0]), int(rows[-1]) + 1
        wanted = slice(None) if len(rows) == last - first else rows - first
        product = self._product(self.weights[first:last], self._block.start + first, plan.n_nodes)
        for values in product.chunks(self._streamed_tiles(), plan.n_samples, plan.samples_per_chunk):
            yield values.take(wanted)


class FeatureColumns(_SampleColumns):
    """The data's own features, preprocessed but not projected."""

    def __init__(
        self,
        job: FitJob,
        samples: Source,
        block: NodeBlock,
        counters: TaskCounters,
        probes: Source | None = None,
    ) -> None:
        super().__init__(job, samples, probes, counters)
        self._block = block
        # A feature is a projection onto a weight of one.
        self.tolerance = node_tolerance(np.ones((block.n_nodes, 1), np.float32), job.preprocessing.largest)

    @property
    def n_columns(self) -> int:
        """Features of the block."""
        return self._block.n_nodes

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) the largest absolute value of any preprocessed sample."""
        return np.full(len(rows), 1.01 * self._job.preprocessing.largest)

    def all_values(self) -> ColumnValues:
        """The values of all samples; they are overwritten by the next call."""
        (values,) = self._copied(self._all_tiles(), self._job.plan.n_samples, np.arange(self.n_columns))
        return values

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """The probed samples' values of these features."""
        tiles, n_probes = self._probe_tiles()
        (values,) = self._copied(tiles, n_probes, rows)
        return values

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """All samples' values of these features, chunk by chunk."""
        plan = self._job.plan
        return self._copied(self._streamed_tiles(), plan.n_samples, rows, plan.samples_per_chunk)

    def _copied(
        self, tiles: Iterable[SampleTile], n_samples: int, rows: NDArray[np.intp], per_chunk: int | None = None
    ) -> Iterator[ColumnValues]:
        """(row, sample) the features' values, copied out of the tiles."""
        features = self._block.start + rows

        def copy(tile: SampleTile, values: NDArray[np.float32]) -> None:
            values[...] = tile.prepared[:, features].T

        per_chunk = min(per_chunk or n_samples, n_samples)
        values = self._scratch("values", (len(rows), padded_length(per_chunk)))
        return _filled(tiles, n_samples, values, copy)
