"""Raw samples on their way into a task: read ahead, checked, counted, and cut into tiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.preprocessing import checked_rows
from fxdask.kernels.projection import class_runs
from fxdask.kernels.scratch import Scratch
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import padded_length, row_ranges, rows_per_read
from fxdask.store.sources import Allocate, Source, open_rows
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["Preprocess", "SampleTile", "TileReader", "as_declared", "read_ahead", "read_range"]

Preprocess = Callable[[NDArray, NDArray[np.float32]], NDArray[np.float32]]
"""(sample, feature) raw samples and the array to write into -> (sample, feature) float32."""


def read_range(samples: Source, start: int, stop: int | None) -> NDArray:
    """The range of raw samples; with no ``stop``, ``samples`` are the range itself."""
    return np.asarray(samples) if stop is None else open_rows(samples)(start, stop)


def as_declared(rows: NDArray, shape: tuple[int, int], dtype: str) -> NDArray:
    """A chunk of a Dask array, unchanged, if its shape and type are those that the array declares."""
    rows = np.asarray(rows)
    if rows.shape != shape or rows.dtype != np.dtype(dtype):
        raise InvalidInputError(
            f"X is a Dask array that declares {np.dtype(dtype)} of shape {shape} "
            f"but a chunk has {rows.dtype} of shape {rows.shape}; mend the function that makes its chunks"
        )
    return rows


def read_ahead(
    samples: Source, ranges: Iterable[tuple[int, int]], counters: TaskCounters
) -> Iterator[tuple[int, NDArray]]:
    """Each range of raw samples with its start; the next one is read while this one is used.

    At most two ranges are in memory, if the caller drops each range before it takes the next.

    Files may have changed since they were scanned, so what is read from them is checked again.
    """
    read = open_rows(samples, _two_buffers())
    if isinstance(samples, np.ndarray):
        for start, stop in ranges:
            yield start, read(start, stop)
        return
    with ThreadPoolExecutor(1, "fxdask-read") as reader:
        upcoming: Future[NDArray] | None = None
        upcoming_start = 0
        for start, stop in [*ranges, (0, 0)]:
            current, current_start = upcoming, upcoming_start
            upcoming, upcoming_start = (reader.submit(read, start, stop) if stop else None), start
            if current is not None:
                rows, current = checked_rows(current.result(), current_start), None
                counters.bytes_read += rows.nbytes
                yield current_start, rows
                del rows


def _two_buffers() -> Allocate:
    """Buffers for one read after the other: each is overwritten by the next read but one."""
    scratch, names = Scratch(), cycle(("this", "next"))
    return lambda shape, dtype: scratch(next(names), shape, dtype)


@dataclass(frozen=True)
class SampleTile:
    """(sample, feature) one tile of preprocessed samples, ordered by class and padded; and the rows of each class."""

    prepared: NDArray[np.float32]
    runs: list[slice]
    n_samples: int


@dataclass(frozen=True, kw_only=True)
class TileReader:
    """Reads samples tile by tile, each tile ordered by class, preprocessed and padded."""

    codes: NDArray[np.integer]
    """(sample,) class codes"""
    plan: FitPlan
    preprocess: Preprocess
    counters: TaskCounters
    scratch: Scratch

    def tiles(self, samples: Source, *, lasting: bool = False) -> Iterator[SampleTile]:
        """Every tile in order; unless ``lasting``, each is overwritten by the next."""
        n_samples, n_features = len(self.codes), self.plan.n_features
        per_read = rows_per_read(n_features)
        for start, rows in read_ahead(samples, row_ranges(n_samples, per_read), self.counters):
            expected = (min(per_read, n_samples - start), n_features)
            if rows.shape != expected:
                raise InvalidInputError(
                    f"X has changed since it was scanned: samples from {start} on have shape {rows.shape}, "
                    f"not {expected}; fit again with samples that stay as they are"
                )
            yield from self._cut(rows, start, lasting=lasting)
            del rows

    def _cut(self, rows: NDArray, start: int, *, lasting: bool) -> Iterator[SampleTile]:
        n_classes = int(self.codes.max()) + 1
        for low, high in row_ranges(len(rows), self.plan.tile.samples):
            order, runs = class_runs(self.codes[start + low : start + high], n_classes)
            shape = (padded_length(high - low), rows.shape[1])
            prepared = np.empty(shape, np.float32) if lasting else self.scratch("prepared", shape)
            by_class = self.scratch("by class", (high - low, rows.shape[1]), rows.dtype)
            # "clip" only because NumPy then takes straight into the array; every index is in range.
            np.take(rows[low:high], order, axis=0, out=by_class, mode="clip")
            self.preprocess(by_class, prepared[: high - low])
            prepared[high - low :] = 0
            yield SampleTile(prepared, runs, high - low)
