"""Columns of samples, read in pieces: some features at all samples, where row sources read all features at some."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fxdask.sizes import row_ranges, staged_rows_per_piece
from fxdask.store.model import ModelStore
from fxdask.store.parquet import ParquetAddress
from fxdask.store.parquet_rows import column_pieces
from fxdask.store.ranking import RankingStore

__all__ = ["ColumnSource", "StagedCodes", "StagedColumns", "read_columns", "read_part"]

ROWS_PER_PIECE = 2**14


@dataclass(frozen=True)
class StagedColumns:
    """Copies of the samples by columns in the unfinished ranking at this URL."""

    url: str
    n_samples: int
    rows_per_range: int
    itemsize: int


@dataclass(frozen=True)
class StagedCodes:
    """Class codes of the samples in the model or the unfinished ranking at this URL; a slice of them is read."""

    url: str
    n_samples: int
    kind: str = "ranking"
    finished: bool = False

    def __len__(self) -> int:
        return self.n_samples

    def __getitem__(self, samples: slice) -> NDArray[np.integer]:
        start, stop, _ = samples.indices(self.n_samples)
        store = ModelStore if self.kind == "model" else RankingStore
        return store.open(self.url, finished=self.finished).read_codes(start, stop)


ColumnSource = NDArray | StagedColumns | ParquetAddress


def read_columns(source: ColumnSource, start: int, stop: int) -> Iterator[tuple[int, NDArray]]:
    """(feature, sample) values of the features from ``start`` to ``stop``, piece by piece, each with its first sample.

    A piece is a view of an array in memory, some chunks of the copies, or a row group of Parquet. The next one
    may overwrite it.
    """
    if isinstance(source, StagedColumns):
        store = RankingStore.open(source.url, finished=False)
        per_piece = staged_rows_per_piece(source.rows_per_range, (stop - start) * source.itemsize)
        for first, last in row_ranges(source.n_samples, per_piece):
            yield first, store.read_staged(start, stop, first, last)
    elif isinstance(source, ParquetAddress):
        yield from column_pieces(replace(source, columns=source.columns[start:stop]))
    else:
        for first, last in row_ranges(len(source), ROWS_PER_PIECE):
            yield first, source[first:last, start:stop].T


def read_part(source: NDArray | StagedColumns, start: int, stop: int, samples: tuple[int, int]) -> NDArray:
    """(feature, sample) values of the features from ``start`` to ``stop`` at the samples of one range."""
    first, last = samples
    if isinstance(source, StagedColumns):
        return RankingStore.open(source.url, finished=False).read_staged(start, stop, first, last)
    return source[first:last, start:stop].T
