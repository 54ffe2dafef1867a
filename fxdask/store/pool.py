"""The candidates of a joint selection in the store of its model: kept while the selection runs, then removed."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import StoreFormatError
from fxdask.sizes import NodeBlock
from fxdask.store.damage import damaged
from fxdask.store.group import has_chunk, write_together, writing_part
from fxdask.store.layout import POOL_ARRAYS, NewArray, create_arrays
from fxdask.store.model import ModelStore
from fxdask.store.retry import reading, retried, writing

__all__ = ["PoolStore"]

SCORES, STATISTICS = POOL_ARRAYS


class PoolStore:
    """Normal scores and statistics of the candidates, one block of candidates for each task that measures them."""

    def __init__(self, store: ModelStore) -> None:
        self._store = store

    @classmethod
    def open(cls, url: str) -> PoolStore:
        """The candidates in the unfinished model at this URL."""
        return cls(ModelStore.open(url, "r+", finished=False))

    @retried
    def prepare(self, sizes: dict[str, int], candidates_per_chunk: int, samples_per_chunk: int) -> None:
        """Create the arrays, unless an earlier call created them with the same sizes and chunks."""
        if self._is_prepared(sizes, candidates_per_chunk, samples_per_chunk):
            return
        self._store.drop(POOL_ARRAYS)
        also = {"sample": samples_per_chunk}
        new = [
            NewArray(spec=spec, sizes=sizes, chunk_length=candidates_per_chunk, chunks_besides=also)
            for spec in POOL_ARRAYS
        ]
        with writing(self._store.url):
            create_arrays(self._store.group, new)

    def _is_prepared(self, sizes: dict[str, int], candidates_per_chunk: int, samples_per_chunk: int) -> bool:
        if any(spec.name not in self._store for spec in POOL_ARRAYS):
            return False
        scores, statistics = (self._store.array(spec.name) for spec in POOL_ARRAYS)
        per_chunk = min(candidates_per_chunk, sizes["candidate"])
        return (
            scores.shape == (sizes["candidate"], sizes["sample"])
            and statistics.shape == (2, sizes["class"], sizes["candidate"])
            and scores.chunks == (per_chunk, samples_per_chunk)
            and statistics.chunks[2] == per_chunk
        )

    @retried
    def write(self, block: NodeBlock, scores: NDArray[np.int16], statistics: NDArray[np.float64]) -> None:
        """Write (candidate, sample) scores, and then the (quantity, class, candidate) statistics as their mark."""
        store, rows = self._store, slice(block.start, block.stop)
        with writing_part(store.group, store.url, store.header):
            write_together([(store.array(SCORES.name), (rows, slice(None)), scores)])
            store.array(STATISTICS.name)[:, :, rows] = statistics

    @retried
    def read_statistics(self, block: NodeBlock) -> NDArray[np.float64] | None:
        """(quantity, class, candidate) location and spread of a block; None if it is not written, or damaged."""
        scores, statistics = (self._store.array(spec.name) for spec in POOL_ARRAYS)
        n_ranges = -(-scores.shape[1] // scores.chunks[1])
        if not has_chunk(statistics, (0, 0, block.index)):
            return None
        if not all(has_chunk(scores, (block.index, part)) for part in range(n_ranges)):
            return None
        rows = slice(block.start, block.stop)
        try:
            with reading(self._store.url, SCORES.name):
                scores[rows]
            with reading(self._store.url, STATISTICS.name):
                return np.asarray(statistics[:, :, rows])
        except StoreFormatError:
            return None

    @retried
    def read_scores(self, start: int, stop: int) -> NDArray[np.int16]:
        """(candidate, sample) scores of all candidates in a range of samples; a missing chunk is an error."""
        scores = self._store.array(SCORES.name)
        first, last = start // scores.chunks[1], (stop - 1) // scores.chunks[1]
        for block, part in product(range(scores.cdata_shape[0]), range(first, last + 1)):
            if not has_chunk(scores, (block, part)):
                missing = f"{SCORES.name} has no chunk {block}/{part}"
                raise damaged(self._store.url, missing, "run the same call again to compute it")
        with reading(self._store.url, SCORES.name):
            return np.asarray(scores[:, start:stop])

    @retried
    def n_done(self) -> int:
        """Number of blocks whose statistics are written."""
        return int(self._store.array(STATISTICS.name).nchunks_initialized)
