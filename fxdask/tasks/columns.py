"""A block of columns to measure: the projections onto random nodes.

``all_values`` returns the values of all samples; ``chunks`` yields the
values of some columns chunk by chunk, for blocks that do not fit into memory; ``probed`` returns the
values of a few samples, from which brackets of the order statistics are estimated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.projection import ClassValues, ColumnValues
from fxdask.kernels.projections import PROJECTIONS, NodeRange, NodeWeights, TileProjector
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import node_tolerance
from fxdask.sizes import NodeBlock, padded_length
from fxdask.store.columns import StagedCodes
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

    def all_values(self) -> ClassValues:
        """(column, sample) values of all samples; the next call overwrites them."""

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """(row, probe) values of the probed samples; their last bits may differ from those of ``chunks``."""

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """(row, sample) values of all samples, chunk by chunk; each chunk overwrites the one before."""


@dataclass(frozen=True)
class BlockProduct:
    """Projections of tiles of samples onto some nodes."""

    projector: TileProjector
    scratch: Scratch

    def chunks(
        self, tiles: Iterable[SampleTile], n_samples: int, per_chunk: int | None = None
    ) -> Iterator[ColumnValues]:
        """(node, sample) values in chunks of ``per_chunk`` samples, which are whole tiles.

        The next chunk and the next call overwrite the values of a chunk.
        """
        per_chunk = min(per_chunk or n_samples, n_samples)
        values = self.scratch("values", (self.projector.n_rows, padded_length(per_chunk)))
        for chunk in _filled(tiles, n_samples, values, self.projector):
            yield ColumnValues(chunk.values[self.projector.nodes], chunk.runs)

    def by_class(self, tiles: Iterable[SampleTile], class_counts: Sequence[int]) -> ClassValues:
        """(node, sample) values of all samples, which the next call overwrites."""
        n_rows = self.projector.n_rows
        arrays = [self.scratch(f"values of class {k}", (n_rows, count)) for k, count in enumerate(class_counts)]
        filled = [0] * len(arrays)
        for tile in tiles:
            for rows, columns, values in self.projector.parts(tile.preprocessed):
                for k, run in enumerate(tile.runs):
                    first, last = max(run.start, columns.start), min(run.stop, columns.stop)
                    if first < last:
                        place = slice(filled[k] + first - run.start, filled[k] + last - run.start)
                        arrays[k][rows, place] = values[:, first - columns.start : last - columns.start]
            filled = [done + run.stop - run.start for done, run in zip(filled, tile.runs, strict=True)]
        return ClassValues([array[self.projector.nodes] for array in arrays])


def _filled(
    tiles: Iterable[SampleTile],
    n_samples: int,
    values: NDArray[np.float32],
    projector: TileProjector,
) -> Iterator[ColumnValues]:
    """(column, sample) array, filled tile by tile and yielded whenever it is full and after the last tile."""
    runs: list[list[slice]] = []
    column = done = 0
    for tile in tiles:
        width = len(tile.preprocessed)
        for rows, columns, part in projector.parts(tile.preprocessed):
            values[rows, column + columns.start : column + columns.stop] = part
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

    def reader(self, codes: NDArray[np.integer] | StagedCodes) -> TileReader:
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
    def _nodes(self) -> NodeWeights:
        plan = self._job.plan
        of_block = NodeRange(
            seed=self._job.seed,
            start=self._block.start,
            stop=self._block.stop,
            n_features=plan.n_features,
            n_nodes=plan.n_nodes,
            tile_nodes=plan.tile.nodes,
        )
        return PROJECTIONS[plan.projection].nodes(of_block, self._scratch)

    @property
    def weights(self) -> NDArray[np.float32]:
        """(node, feature) weights of the block."""
        return self._nodes.weights

    @cached_property
    def tolerance(self) -> NDArray[np.float64]:
        """(class, node) spread at or below which a class is treated as constant at a node."""
        return node_tolerance(self._nodes.norms, self._job.class_norms)

    def bounds(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) largest possible sum of absolute products, with 1 % added for rounding."""
        return 1.01 * self._nodes.absolute_sums(rows) * self._job.preprocessing.largest

    def all_values(self) -> ClassValues:
        """(node, sample) values of all samples; the next call overwrites them."""
        return self.product(self._scratch).by_class(self._tiles.kept(), self._job.plan.class_counts)

    def product(self, scratch: Scratch) -> BlockProduct:
        """Projections of any tiles onto all nodes of the block."""
        return BlockProduct(self._nodes.projector()[0], scratch)

    def probed(self, rows: NDArray[np.intp]) -> ColumnValues:
        """(row, probe) values of the probed samples; only these nodes are multiplied, not whole tiles."""
        tiles, n_probes = self._probe_tiles()
        (values,) = BlockProduct(self._nodes.probe_projector(rows), self._scratch).chunks(tiles, n_probes)
        return values

    def chunks(self, rows: NDArray[np.intp]) -> Iterator[ColumnValues]:
        """(row, sample) values of all samples, chunk by chunk, from projections onto whole tiles of nodes."""
        plan = self._job.plan
        projector, wanted = self._nodes.projector(rows)
        product = BlockProduct(projector, self._scratch)
        for values in product.chunks(self._tiles.streamed(), plan.n_samples, plan.samples_per_chunk):
            yield values.take(wanted)
