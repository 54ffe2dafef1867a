"""Samples read, prepared and multiplied, as many at a time as the plan allows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.evidence import Tally
from fxdask.kernels.projection import Projected, class_runs, node_rows, project_tile
from fxdask.kernels.scratch import Scratch
from fxdask.plan import FitPlan, padded_length, row_ranges, rows_per_read
from fxdask.reading import read_ahead
from fxdask.store.samples import Source

__all__ = ["Prepare", "SampleTile", "project", "sample_tiles"]

Prepare = Callable[[NDArray, NDArray[np.float32]], NDArray[np.float32]]
"""(sample, input) raw samples and where to put them -> (sample, input) float32."""


@dataclass(frozen=True)
class SampleTile:
    """(sample, input) one tile of prepared samples, ordered by class and padded; and where each class stands."""

    prepared: NDArray[np.float32]
    runs: list[slice]
    n_samples: int


def sample_tiles(
    samples: Source,
    codes: NDArray[np.integer],
    plan: FitPlan,
    prepare: Prepare,
    tally: Tally,
    scratch: Scratch,
    *,
    lasting: bool = False,
) -> Iterator[SampleTile]:
    """Every tile of samples in order; unless ``lasting``, each is overwritten by the next."""
    n_classes, per_read = int(codes.max()) + 1, rows_per_read(plan.n_inputs)
    for start, rows in read_ahead(samples, row_ranges(len(codes), per_read), tally):
        expected = (min(per_read, len(codes) - start), plan.n_inputs)
        if rows.shape != expected:
            raise InvalidInputError(
                f"X has changed since it was surveyed: samples from {start} on have shape {rows.shape}, not {expected}"
            )
        for low, high in row_ranges(len(rows), plan.tile.samples):
            order, runs = class_runs(codes[start + low : start + high], n_classes)
            width = padded_length(high - low)
            shape = (width, plan.n_inputs)
            prepared = np.empty(shape, np.float32) if lasting else scratch("prepared", shape)
            by_class = scratch("by class", (high - low, plan.n_inputs), rows.dtype)
            # "clip" only because NumPy then takes straight into the array; every index is in range.
            np.take(rows[low:high], order, axis=0, out=by_class, mode="clip")
            prepare(by_class, prepared[: high - low])
            prepared[high - low :] = 0
            yield SampleTile(prepared, runs, high - low)
        del rows


def project(
    tiles: Iterable[SampleTile],
    n_samples: int,
    weights: NDArray[np.float32],
    first_node: int,
    plan: FitPlan,
    scratch: Scratch,
    per_chunk: int | None = None,
) -> Iterator[Projected]:
    """(node, input) weights of a block -> their products with all samples, ``per_chunk`` samples after the other.

    A chunk is whole tiles. Its values are overwritten by the next chunk's, and by the next call's.
    """
    first, last, node_tiles = node_rows(first_node, first_node + len(weights), plan.n_nodes, plan.tile.nodes)
    block = slice(first_node - first, first_node - first + len(weights))
    if len(weights) != last - first:
        alone, weights = weights, np.zeros((last - first, plan.n_inputs), np.float32)
        weights[block] = alone
    per_chunk = min(per_chunk or n_samples, n_samples)
    values = scratch("values", (last - first, padded_length(per_chunk)))
    runs: list[list[slice]] = []
    column = done = 0
    for tile in tiles:
        width = len(tile.prepared)
        project_tile(weights, node_tiles, tile.prepared, values[:, column : column + width])
        runs = runs or [[] for _ in tile.runs]
        for of_class, run in zip(runs, tile.runs, strict=True):
            if run.stop > run.start:
                of_class.append(slice(column + run.start, column + run.stop))
        column += width
        done += tile.n_samples
        if column >= per_chunk or done == n_samples:
            yield Projected(values[block], runs)
            runs, column = [], 0
