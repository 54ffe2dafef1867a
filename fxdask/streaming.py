"""The statistics of a block whose values do not fit into memory: one pass over the samples, then the odd repeat."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fxdask.evidence import Tally
from fxdask.job import FitJob
from fxdask.kernels.brackets import Brackets, StreamedRows, bracket, bracket_all
from fxdask.kernels.projection import Projected
from fxdask.kernels.statistics import BracketedStatistics, ClassStatistics, bracketed_statistics, sorted_classes
from fxdask.plan import BRACKET_SLACK, NodeBlock, row_ranges
from fxdask.projecting import SampleTile, project, sample_tiles
from fxdask.store.samples import Source

__all__ = ["streamed_statistics"]

BYTES_PER_ROW_GROUP = 2**20
# How wide brackets are: wider where the ones before have missed, and at last no brackets but every value.
SLACKS = (BRACKET_SLACK, 4 * BRACKET_SLACK, None)


def streamed_statistics(
    job: FitJob,
    samples: Source,
    probes: Source,
    weights: NDArray[np.float32],
    block: NodeBlock,
    tolerance: NDArray[np.float64],
    tally: Tally,
    slacks: tuple[float | None, ...] = SLACKS,
) -> ClassStatistics:
    """(node, input) weights of a block, all samples -> (class, node) location and spread, as if all were in memory."""
    result = ClassStatistics.empty(job.plan.n_classes, block.n_nodes)
    block_pass = _Pass(job, samples, probes, weights, block, tolerance, tally)
    ranges = row_ranges(block.n_nodes, job.plan.nodes_per_pass)
    moments = job.location == "mean" or job.spread == "std"
    waiting = [(np.arange(start, stop), 0, moments) for start, stop in ranges]
    while waiting:
        rows, attempt, moments = waiting.pop()
        brackets = block_pass.brackets(rows, slacks[attempt])
        fitting = block_pass.rows_that_fit(brackets)
        if fitting < len(rows):
            share = -(-len(rows) // -(-len(rows) // fitting))
            waiting.append((rows[share:], attempt, moments))
            rows, brackets = rows[:share], [of_class.first(share) for of_class in brackets]
        found = block_pass.run(rows, brackets, moments=moments)
        result.put(rows, found.statistics)
        # Where a spread falls back to the standard deviation, the same brackets will do, with sums of squares.
        for left, next_attempt in ((found.without_moments, attempt), (found.missed, attempt + 1)):
            if left.any():
                waiting.append((rows[left], next_attempt, True))
                tally.rows_repeated += int(left.sum())
    return result


@dataclass(frozen=True)
class _Pass:
    """One pass over the samples for some rows of a block."""

    job: FitJob
    samples: Source
    probes: Source
    weights: NDArray[np.float32]
    block: NodeBlock
    tolerance: NDArray[np.float64]
    tally: Tally

    def brackets(self, rows: NDArray[np.intp], slack: float | None) -> list[Brackets]:
        """Where the wanted order statistics of these rows should lie, class by class; with no slack, anywhere."""
        job = self.job
        if slack is None or job.probe_codes is None:
            return [bracket_all(len(rows), count) for count in job.plan.class_counts]
        tiles = sample_tiles(self.probes, job.probe_codes, job.plan, job.preparation, self.tally, job.scratch)
        # Guesses may have other last bits than the products of whole tiles, so these rows alone are multiplied.
        alone = replace(job.plan, n_nodes=len(rows))
        (probed,) = project(tiles, len(job.probe_codes), self.weights[rows], 0, alone, job.scratch)
        found: list[list[Brackets]] = [[] for _ in job.plan.class_counts]
        for k, _, ordered in sorted_classes(probed, job.scratch, BYTES_PER_ROW_GROUP):
            found[k].append(bracket(ordered.values, job.plan.class_counts[k], slack))
        return [Brackets.joined(parts) for parts in found]

    def rows_that_fit(self, brackets: list[Brackets]) -> int:
        """How many of the rows may keep what lies in their brackets: one at least."""
        per_row = 4 * sum(of_class.room for of_class in brackets)
        return max(1, self.job.plan.pass_bytes // max(1, per_row))

    def run(self, rows: NDArray[np.intp], brackets: list[Brackets], *, moments: bool) -> BracketedStatistics:
        """(class, row) location and spread, and (row,) which of the rows must be done again."""
        job, plan = self.job, self.job.plan
        # No sum of products is larger than that of their absolute values; a little more, for rounding.
        bounds = 1.01 * np.abs(self.weights[rows]).sum(axis=1, dtype=np.float64) * job.preparation.largest
        trimmed_sums = job.location == "interquartile_mean"
        streams = [
            StreamedRows(of_class, count, trimmed_sums=trimmed_sums, moments=moments, bounds=bounds)
            for of_class, count in zip(brackets, plan.class_counts, strict=True)
        ]
        self.tally.passes += 1
        tiles = sample_tiles(self.samples, job.codes, plan, job.preparation, self.tally, job.scratch)
        for chunk in self._project(tiles, plan.n_samples, rows, plan.samples_per_chunk):
            for k, some, ordered in sorted_classes(chunk, job.scratch, BYTES_PER_ROW_GROUP):
                streams[k].absorb(some, ordered.values)
        settled = [stream.settle() for stream in streams]
        return bracketed_statistics(settled, self.tolerance[rows], job.location, job.spread)

    def _project(
        self, tiles: Iterable[SampleTile], n_samples: int, rows: NDArray[np.intp], per_chunk: int
    ) -> Iterator[Projected]:
        """The products of these rows: of whole tiles, of which the others are passed over."""
        first, last = int(rows[0]), int(rows[-1]) + 1
        wanted = slice(None) if len(rows) == last - first else rows - first
        weights = self.weights[first:last]
        job, start = self.job, self.block.start + first
        for projected in project(tiles, n_samples, weights, start, job.plan, job.scratch, per_chunk):
            yield projected.take(wanted)
