"""The store of a ranking: results block by block, and copies of X by columns while the ranking runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import StoreFormatError
from fxdask.sizes import NodeBlock
from fxdask.store.arrays import ArrayStore
from fxdask.store.group import (
    begin_group,
    finish_group,
    has_chunk,
    write_header,
    write_together,
    writing_part,
)
from fxdask.store.layout import RANKING_ARRAYS, NewArray, create_arrays
from fxdask.store.retry import reading, retried, writing

__all__ = ["RankingStore"]

SPECS = {spec.name: spec for spec in RANKING_ARRAYS}
RESULTS, DONE = "results", "blocks_done"
STAGED, CODES, RANGES_DONE = "staged/columns", "staged/codes", "staged/ranges_done"


class RankingStore(ArrayStore):
    """One ranking in a store. Tasks receive its URL and open it in their own process."""

    kind = "ranking"
    specs = SPECS
    staged = STAGED

    @classmethod
    @retried
    def create(cls, url: str, sizes: Mapping[str, int], facts: Mapping[str, Any]) -> RankingStore:
        """Create an empty ranking and replace an earlier fxdask store.

        ``sizes`` are the lengths "result" and "input", and "features_per_block".
        """
        group, per_block = begin_group(url, "ranking", SPECS), sizes["features_per_block"]
        lengths = {**sizes, "block": -(-sizes["input"] // per_block)}
        results = NewArray(spec=SPECS[RESULTS], sizes=lengths, chunk_length=per_block)
        with writing(url):
            create_arrays(group, [results, NewArray(spec=SPECS[DONE], sizes=lengths)])
        return cls(url, group, write_header(group, url, "ranking", {**facts, "sizes": dict(sizes)}))

    # Blocks of features

    @retried
    def write_block(self, block: NodeBlock, results: NDArray[np.float64]) -> None:
        """Write the (result, feature) results of a block, and then its mark."""
        with writing_part(self.group, self.url, self.header):
            self.array(RESULTS)[:, block.start : block.stop] = results
            self.array(DONE)[block.index] = self.mark

    @retried
    def read_done(self, block: NodeBlock) -> NDArray[np.float64] | None:
        """(result, feature) results of a block; None if it is not marked, or damaged."""
        if not has_chunk(self.array(DONE), (block.index,)) or not has_chunk(self.array(RESULTS), (0, block.index)):
            return None
        try:
            with reading(self.url, DONE):
                if self.array(DONE)[block.index] != self.mark:
                    return None
            with reading(self.url, RESULTS):
                return np.asarray(self.array(RESULTS)[:, block.start : block.stop])
        except StoreFormatError:
            return None

    def n_done(self) -> int:
        """Number of blocks with a mark."""
        return int(self.array(DONE).nchunks_initialized)

    # Copies of X by columns

    @retried
    def prepare_staging(self, n_samples: int, rows_per_range: int, dtype: np.dtype) -> int:
        """Create the array of column chunks unless an earlier call did; returns its rows per range."""
        if STAGED in self and RANGES_DONE in self:
            return self.array(STAGED).chunks[1]
        sizes = {**self.header["sizes"], "sample": n_samples, "range": -(-n_samples // rows_per_range)}
        staged = NewArray(
            spec=SPECS[STAGED],
            sizes=sizes,
            chunk_length=sizes["features_per_block"],
            chunks_besides={"sample": rows_per_range},
            dtype=dtype.str,
        )
        self._create([staged, NewArray(spec=SPECS[RANGES_DONE], sizes=sizes)])
        return rows_per_range

    @retried
    def stage_codes(self, codes: NDArray[np.integer]) -> None:
        """Write the (sample,) class codes in ranges as those of the columns, unless an earlier call did."""
        if CODES in self and self.array(CODES).nchunks_initialized == self.array(CODES).nchunks:
            return
        new = NewArray(
            spec=SPECS[CODES],
            sizes={"sample": len(codes)},
            chunk_length=self.array(STAGED).chunks[1],
            dtype=codes.dtype.str,
            values=codes,
        )
        self._create([new])

    @retried
    def read_codes(self, first: int, last: int) -> NDArray[np.integer]:
        """(sample,) class codes of the samples from ``first`` to ``last``."""
        with reading(self.url, CODES):
            return np.asarray(self.array(CODES)[first:last])

    @retried
    def write_range(self, index: int, blocks: list[NDArray]) -> None:
        """Write (feature, sample) chunks of one range of samples, one for each block of features, then its mark."""
        array, start = self.array(STAGED), 0
        rows = slice(index * array.chunks[1], index * array.chunks[1] + blocks[0].shape[1])
        parts = []
        for block in blocks:
            parts.append((array, (slice(start, start + len(block)), rows), block))
            start += len(block)
        with writing_part(self.group, self.url, self.header):
            write_together(parts)
            self.array(RANGES_DONE)[index] = self.mark

    @retried
    def has_range(self, index: int) -> bool:
        """Whether the copy of a range of samples is marked and complete.

        The mark is written after the chunks, but Zarr does not wait for the disk: after a power failure
        there may be a mark without them.
        """
        if not has_chunk(self.array(RANGES_DONE), (index,)):
            return False
        try:
            with reading(self.url, RANGES_DONE):
                is_marked = bool(self.array(RANGES_DONE)[index] == self.mark)
        except StoreFormatError:
            return False
        array = self.array(STAGED)
        return is_marked and all(has_chunk(array, (block, index)) for block in range(array.cdata_shape[0]))

    def n_ranges_done(self) -> int:
        """Number of ranges with a mark."""
        return int(self.array(RANGES_DONE).nchunks_initialized)

    @retried
    def read_staged(self, start: int, stop: int, first: int, last: int) -> NDArray:
        """(feature, sample) copies of these features at the samples from ``first`` to ``last``."""
        with reading(self.url, STAGED):
            return np.asarray(self.array(STAGED)[start:stop, first:last])

    def read_results(self) -> NDArray[np.float64]:
        """(result, feature) results of all blocks."""
        return self.read(RESULTS)

    def drop_staging(self) -> None:
        """Remove the copies of X."""
        for name in (STAGED, CODES, RANGES_DONE):
            self._opened.pop(name, None)
        if "staged" in self:
            del self.group["staged"]

    @retried
    def finish(self, **facts: Any) -> None:
        """Mark the ranking as finished, after all blocks are written."""
        for name in (DONE, RESULTS):
            self.check_complete(name, "run the same call again")
        finish_group(self.group, self.url, self.header, **facts)
