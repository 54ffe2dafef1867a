"""Reading raw samples in a task: read ahead, checked, counted and split into tiles."""

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
from fxdask.store.columns import StagedCodes
from fxdask.store.sources import Allocate, Source, open_rows
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["Preprocess", "SampleTile", "TileReader", "as_declared", "counted_pieces", "read_ahead", "read_range"]

Preprocess = Callable[[NDArray, NDArray[np.float32]], NDArray[np.float32]]
"""(sample, feature) raw samples, array for the result -> (sample, feature) float32."""


def read_range(samples: Source, start: int, stop: int | None) -> NDArray:
    """The range of raw samples; if ``stop`` is None, ``samples`` are the range."""
    return np.asarray(samples) if stop is None else open_rows(samples)(start, stop)


def counted_pieces(pieces: Iterable[NDArray], start: int, stop: int, counters: TaskCounters) -> Iterator[NDArray]:
    """Pieces of the samples from ``start`` until before ``stop``, whose bytes are counted; too few are refused."""
    n_rows = 0
    for piece in pieces:
        n_rows += len(piece)
        counters.bytes_read += piece.nbytes
        yield piece
    if n_rows != stop - start:
        raise InvalidInputError(
            f"X has changed since the call began: samples {start} to {stop} are now {n_rows} rows; "
            "make the same call again, and do not change X meanwhile"
        )


def as_declared(rows: NDArray, shape: tuple[int, int], dtype: str) -> NDArray:
    """A chunk of a Dask array, unchanged, after a check that it has the shape and type that the array declares."""
    rows = np.asarray(rows)
    if rows.shape != shape or rows.dtype != np.dtype(dtype):
        raise InvalidInputError(
            f"X is a Dask array that declares {np.dtype(dtype)} of shape {shape} "
            f"but a chunk has {rows.dtype} of shape {rows.shape}; correct the function that makes its chunks"
        )
    return rows


def read_ahead(
    samples: Source, ranges: Iterable[tuple[int, int]], counters: TaskCounters
) -> Iterator[tuple[int, NDArray]]:
    """Each range of raw samples with its start; the next range is read while this one is used.

    At most two ranges are in memory, if the caller drops each range before it asks for the next.
    Rows from files are checked again, because the files may have changed since the scan.
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
    """Two buffers that reads use in turn, so that a read does not overwrite the range in use."""
    scratch, names = Scratch(), cycle(("this", "next"))
    return lambda shape, dtype: scratch(next(names), shape, dtype)


@dataclass(frozen=True)
class SampleTile:
    """(sample, feature) one tile of preprocessed samples, ordered by class and padded with zeros."""

    preprocessed: NDArray[np.float32]
    runs: list[slice]
    """The rows of each class."""
    n_samples: int
    """Rows without the padding."""


@dataclass(frozen=True, kw_only=True)
class TileReader:
    """Reads samples tile by tile; each tile is ordered by class, preprocessed and padded."""

    codes: NDArray[np.integer] | StagedCodes
    """(sample,) class codes"""
    plan: FitPlan
    preprocess: Preprocess
    counters: TaskCounters
    scratch: Scratch

    def tiles(self, samples: Source, *, lasting: bool = False) -> Iterator[SampleTile]:
        """All tiles in order; each overwrites the one before, unless ``lasting``."""
        n_samples, n_features = len(self.codes), self.plan.n_features
        per_read = rows_per_read(n_features)
        # In one array, because the system maps the memory of a large one in larger pages, which is quicker.
        kept = np.empty((padded_length(n_samples), n_features), np.float32) if lasting else None
        for start, rows in read_ahead(samples, row_ranges(n_samples, per_read), self.counters):
            expected = (min(per_read, n_samples - start), n_features)
            if rows.shape != expected:
                raise InvalidInputError(
                    f"X has changed since it was scanned: the samples from {start} on have shape {rows.shape} "
                    f"instead of {expected}; fit again and do not change X during the fit"
                )
            yield from self._split(rows, self.codes[start : start + len(rows)], None if kept is None else kept[start:])
            del rows

    def _split(
        self, rows: NDArray, codes: NDArray[np.integer], kept: NDArray[np.float32] | None
    ) -> Iterator[SampleTile]:
        """(sample, feature) raw samples, their class codes, an array for the tiles if they are kept -> the tiles."""
        for low, high in row_ranges(len(rows), self.plan.tile.samples):
            order, runs = class_runs(codes[low:high], self.plan.n_classes)
            shape = (padded_length(high - low), rows.shape[1])
            preprocessed = self.scratch("preprocessed", shape) if kept is None else kept[low : low + shape[0]]
            for first, last in row_ranges(high - low, self.plan.samples_per_piece):
                by_class = self.scratch("by class", (last - first, rows.shape[1]), rows.dtype)
                # With "clip" NumPy writes directly into the array, without a buffer; all indices are in range.
                np.take(rows[low:high], order[first:last], axis=0, out=by_class, mode="clip")
                self.preprocess(by_class, preprocessed[first:last])
            preprocessed[high - low :] = 0
            yield SampleTile(preprocessed, runs, high - low)
