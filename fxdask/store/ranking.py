"""The store of a ranking: results block by block, and copies of X by columns while the ranking runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from fxdask.errors import StoreFormatError, StoreWriteError
from fxdask.sizes import NodeBlock
from fxdask.store.damage import damaged
from fxdask.store.group import (
    Mode,
    begin_group,
    check_file_size,
    check_writable,
    finish_group,
    has_chunk,
    has_metadata,
    open_group,
    stored_array,
    write_header,
    write_together,
)
from fxdask.store.layout import RANKING_ARRAYS, create_array
from fxdask.store.manifest import Manifest
from fxdask.store.retry import reading, retried, writing

__all__ = ["RankingStore"]

SPECS = {spec.name: spec for spec in RANKING_ARRAYS}
RESULTS, DONE = "results", "blocks_done"
STAGED, CODES, RANGES_DONE = "staged/columns", "staged/codes", "staged/ranges_done"


class RankingStore:
    """One ranking in a store. Tasks receive its URL and open it in their own process."""

    def __init__(self, url: str, group: zarr.Group, header: dict[str, Any]) -> None:
        self.url = url
        self.header = header
        self._group = group
        self._opened: dict[str, zarr.Array] = {}
        self._manifest = Manifest(group, url) if header.get("finished") else None

    @classmethod
    @retried
    def open(cls, url: str, mode: Mode = "r", *, finished: bool = True) -> RankingStore:
        """Open the ranking at this URL; with ``finished``, refuse an unfinished one."""
        return cls(url, *open_group(url, "ranking", mode, finished=finished))

    @classmethod
    @retried
    def create(cls, url: str, sizes: Mapping[str, int], facts: Mapping[str, Any]) -> RankingStore:
        """Create an empty ranking and replace an earlier fxdask store.

        ``sizes`` are the lengths "result" and "input", and "features_per_block".
        """
        group, per_block = begin_group(url, "ranking", SPECS), sizes["features_per_block"]
        lengths = {**sizes, "block": -(-sizes["input"] // per_block)}
        with writing(url):
            create_array(group, SPECS[RESULTS], lengths, per_block)
            create_array(group, SPECS[DONE], lengths)
        return cls(url, group, write_header(group, url, "ranking", {**facts, "sizes": dict(sizes)}))

    # Blocks of features

    @retried
    def write_block(self, block: NodeBlock, results: NDArray[np.float64]) -> None:
        """Write the (result, feature) results of a block, and then its mark."""
        check_writable(self._group, self.url, self.header)
        with writing(self.url):
            self.array(RESULTS)[:, block.start : block.stop] = results
            self.array(DONE)[block.index] = self._mark

    @retried
    def read_done(self, block: NodeBlock) -> NDArray[np.float64] | None:
        """(result, feature) results of a block; None if it is not marked, or damaged."""
        if not has_chunk(self.array(DONE), (block.index,)) or not has_chunk(self.array(RESULTS), (0, block.index)):
            return None
        try:
            with reading(self.url, DONE):
                if self.array(DONE)[block.index] != self._mark:
                    return None
            with reading(self.url, RESULTS):
                return np.asarray(self.array(RESULTS)[:, block.start : block.stop])
        except StoreFormatError:
            return None

    def n_done(self) -> int:
        """Number of blocks with a mark."""
        return int(self.array(DONE).nchunks_initialized)

    @property
    def _mark(self) -> np.uint64:
        """A digest of the job, so that blocks of another job do not count as done."""
        try:
            return np.uint64(int(self.header["job"][:16], 16) | 1)
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.url, "its header does not name its job") from error

    # Copies of X by columns

    @retried
    def prepare_staging(self, n_samples: int, rows_per_range: int, dtype: np.dtype) -> int:
        """Create the array of column chunks unless an earlier call did; returns its rows per range."""
        if STAGED in self._group and RANGES_DONE in self._group:
            return self.array(STAGED).chunks[1]
        sizes = {**self.header["sizes"], "sample": n_samples, "range": -(-n_samples // rows_per_range)}
        per_block = sizes["features_per_block"]
        with writing(self.url):
            create_array(
                self._group, SPECS[STAGED], sizes, per_block, dtype.str, chunks_besides={"sample": rows_per_range}
            )
            create_array(self._group, SPECS[RANGES_DONE], sizes)
        return rows_per_range

    @retried
    def stage_codes(self, codes: NDArray[np.integer]) -> None:
        """Write the (sample,) class codes in ranges as those of the columns, unless an earlier call did."""
        if CODES in self._group and self.array(CODES).nchunks_initialized == self.array(CODES).nchunks:
            return
        per_range, sizes = self.array(STAGED).chunks[1], {"sample": len(codes)}
        with writing(self.url):
            self._opened[CODES] = create_array(self._group, SPECS[CODES], sizes, per_range, codes.dtype.str)
            self._opened[CODES][...] = codes

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
        check_writable(self._group, self.url, self.header)
        with writing(self.url):
            write_together(parts)
            self.array(RANGES_DONE)[index] = self._mark

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
                is_marked = bool(self.array(RANGES_DONE)[index] == self._mark)
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

    def check_staged(self) -> None:
        """Refuse a result of copies that were removed meanwhile, because they may have been read as zeros."""
        if not has_metadata(self._group, STAGED):
            raise StoreWriteError(
                f"{self.url} was finished while this part was computed; "
                "run the same call again if the result is incomplete"
            )

    # Whole arrays

    @retried
    def read_results(self) -> NDArray[np.float64]:
        """(result, feature) results of all blocks."""
        return self.read(RESULTS)

    @retried
    def write(self, name: str, values: NDArray[np.float64]) -> None:
        """Create and write one array that is not written by blocks."""
        sizes = dict(zip(SPECS[name].dimensions, values.shape, strict=True))
        with writing(self.url):
            self._opened[name] = create_array(self._group, SPECS[name], sizes)
            self._opened[name][...] = values

    @retried
    def read(self, name: str) -> NDArray[np.float64]:
        """One whole array; a missing chunk is an error, while Zarr would read zeros."""
        if self._manifest:
            self._manifest.check_array(name)
        array = self.array(name)
        if array.nchunks_initialized != array.nchunks:
            raise damaged(self.url, f"{name} has {array.nchunks_initialized} of its {array.nchunks} chunks")
        check_file_size(array, (0,) * array.ndim, self.url)
        with reading(self.url, name):
            return np.asarray(array[...])

    def __contains__(self, name: str) -> bool:
        return name in self._group

    def drop_staging(self) -> None:
        """Remove the copies of X."""
        for name in (STAGED, CODES, RANGES_DONE):
            self._opened.pop(name, None)
        if "staged" in self._group:
            del self._group["staged"]

    @retried
    def finish(self, **facts: Any) -> None:
        """Mark the ranking as finished, after all blocks are written."""
        array = self.array(DONE)
        if array.nchunks_initialized != array.nchunks:
            problem = f"{array.nchunks_initialized} of its {array.nchunks} blocks are marked"
            raise damaged(self.url, problem, "run the same call again")
        finish_group(self._group, self.url, self.header, **facts)

    def array(self, name: str) -> zarr.Array:
        """One array, opened once, because opening takes longer than writing a chunk."""
        if name not in self._opened:
            if self._manifest:
                self._manifest.check_metadata(name)
            self._opened[name] = stored_array(self._group, self.url, name)
        return self._opened[name]
