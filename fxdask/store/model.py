"""The model store: create it, fill it block by block, finish it, open it again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray

from fxdask.errors import StoreFormatError
from fxdask.sizes import NodeBlock
from fxdask.store.arrays import ArrayStore
from fxdask.store.asynchronous import read_values
from fxdask.store.damage import damaged
from fxdask.store.group import (
    begin_group,
    check_file_size,
    finish_group,
    has_chunk,
    write_header,
    write_together,
    writing_part,
)
from fxdask.store.layout import (
    BLOCK_ARRAYS,
    MODEL_ARRAYS,
    OPTIONAL_ARRAYS,
    POOL_ARRAYS,
    QUANTITIES,
    ArraySpec,
    ModelShape,
    NewArray,
)
from fxdask.store.retry import reading, retried

__all__ = ["ModelStore"]

MOST_BLOCKS = 2**26
TEMPORARY_ARRAYS = (*POOL_ARRAYS, *(spec for spec in MODEL_ARRAYS if spec.name in ("probes", "codes")))
SPECS = {spec.name: spec for spec in (*BLOCK_ARRAYS, *MODEL_ARRAYS, *POOL_ARRAYS)}


class ModelStore(ArrayStore):
    """One model in a store. Tasks receive its URL and open it in their own process."""

    kind = "model"
    specs = SPECS

    @classmethod
    @retried
    def create(
        cls,
        url: str,
        shape: ModelShape,
        facts: Mapping[str, Any],
        fingerprint: NDArray[np.float32],
    ) -> ModelStore:
        """Create an empty model store with its block arrays, and replace an earlier fxdask store.

        Of the optional block arrays only those in ``shape.kept`` are created.
        """
        sizes = shape.sizes()
        group = begin_group(url, "model", SPECS)
        specs = [spec for spec in BLOCK_ARRAYS if spec.name not in OPTIONAL_ARRAYS or spec.name in shape.kept]
        new = [NewArray(spec=spec, sizes=sizes, chunk_length=shape.nodes_per_block) for spec in specs]
        store = cls(url, group, {})
        marks = NewArray(spec=SPECS["blocks_done"], sizes=sizes)
        # The array of the fingerprint keeps the name of the first format.
        store._create([*new, marks, store._whole(SPECS["canaries"], fingerprint)])
        facts = {**facts, "sizes": sizes, "nodes_per_block": shape.nodes_per_block}
        store.header = write_header(group, url, "model", facts)
        return store

    def check_shape(self, shape: ModelShape) -> None:
        """Refuse a store whose header has other sizes than the job, or an impossible block size."""
        per_block, stored = self.header.get("nodes_per_block"), self.header.get("sizes")
        if not isinstance(per_block, int) or not 1 <= per_block <= shape.n_nodes:
            raise damaged(
                self.url, f"its header has blocks of {per_block} nodes, but the model has {shape.n_nodes} nodes"
            )
        expected = replace(shape, nodes_per_block=per_block).sizes()
        if stored != expected:
            raise damaged(self.url, f"its header has sizes {stored}, but its job has {expected}")

    # Blocks

    @retried
    def write_block(self, block: NodeBlock, arrays: Mapping[str, NDArray]) -> None:
        """Write one chunk of every given array, then the mark of the block."""
        with writing_part(self.group, self.url, self.header):
            write_together(
                [
                    (self.array(name), _along(SPECS[name], "node", block.start, block.stop), values)
                    for name, values in arrays.items()
                ],
                last=(self.array("blocks_done"), (slice(block.index, block.index + 1),), np.array([self.mark])),
            )

    def is_done(self, block: NodeBlock) -> bool:
        """Whether the block is marked and its chunks are intact.

        The mark is written after the data, but Zarr does not wait for the disk: after a power failure
        there may be a mark without its data.
        """
        return (
            has_chunk(self.array("blocks_done"), (block.index,))
            and self._is_marked(block.index)
            and all(self._is_intact(spec, block) for spec in BLOCK_ARRAYS if spec.name in self)
        )

    @retried
    def _is_marked(self, index: int) -> bool:
        try:
            with reading(self.url, "blocks_done"):
                return bool(read_values(self.array("blocks_done"), index) == self.mark)
        except StoreFormatError:
            return False

    def _is_intact(self, spec: ArraySpec, block: NodeBlock) -> bool:
        """Whether a chunk exists and its content matches its checksum."""
        if not self._has_chunk(spec, block):
            return False
        try:
            self.read_block(spec.name, block)
        except StoreFormatError:
            return False
        return True

    def _has_chunk(self, spec: ArraySpec, block: NodeBlock) -> bool:
        return has_chunk(self.array(spec.name), _index(spec, block))

    def _file(self, name: str, block: NodeBlock) -> str:
        """The path of a block's chunk within the store."""
        return f"{name}/{self.array(name).metadata.encode_chunk_key(_index(SPECS[name], block))}"

    def blocks_done(self) -> NDArray[np.bool_]:
        """(block,) which blocks are marked by the job of this store; a damaged mark counts as missing."""
        array = self.array("blocks_done")
        if array.shape[0] > MOST_BLOCKS:
            raise damaged(self.url, f"it claims {array.shape[0]:,} blocks but at most {MOST_BLOCKS:,} are possible")
        try:
            with reading(self.url, "blocks_done"):
                return read_values(array, ...) == self.mark
        except StoreFormatError:
            return np.array([self._is_marked(index) for index in range(array.shape[0])])

    @retried
    def read_block(self, name: str, block: NodeBlock) -> NDArray:
        """One chunk of one block array; a missing chunk is an error, while Zarr would read zeros."""
        if not self._has_chunk(SPECS[name], block):
            raise damaged(self.url, f"{name} has no chunk {block.index}")
        if self._manifest:
            self._manifest.check([self._file(name, block)])
        check_file_size(self.array(name), _index(SPECS[name], block), self.url)
        with reading(self.url, name):
            return np.asarray(self.array(name)[_along(SPECS[name], "node", block.start, block.stop)])

    @retried
    def read_quantity(self, name: str) -> NDArray[np.float64]:
        """(class, node) one quantity of every node's statistics."""
        self.check_complete("statistics")
        with reading(self.url, "statistics"):
            return read_values(self.array("statistics"), QUANTITIES.index(name))

    @retried
    def stage_codes(self, codes: NDArray[np.integer], per_chunk: int) -> None:
        """Write the (sample,) class codes, in chunks as long as the reads of tasks, unless an earlier call did."""
        if self.has_all("codes", len(codes)):
            return
        new = NewArray(
            spec=SPECS["codes"],
            sizes={"sample": len(codes)},
            chunk_length=per_chunk,
            dtype=codes.dtype.str,
            values=codes,
        )
        self._create([new])

    @retried
    def read_codes(self, first: int, last: int) -> NDArray[np.integer]:
        """(sample,) class codes of the samples from ``first`` to ``last``; of a finished model its labels."""
        name = "labels" if self.header.get("finished") else "codes"
        if self._manifest:
            self.check_complete(name)
        with reading(self.url, name):
            return np.asarray(self.array(name)[first:last])

    @retried
    def has_all(self, name: str, length: int) -> bool:
        """Whether an earlier call wrote an array of this length, and all of its chunks are intact."""
        if name not in self:
            return False
        array = self.array(name)
        if array.shape[0] != length or array.nchunks_initialized != array.nchunks:
            return False
        try:
            for start in range(0, length, array.chunks[0]):
                with reading(self.url, name):
                    array[start : start + array.chunks[0]]
        except StoreFormatError:
            return False
        return True

    def drop(self, arrays: Iterable[ArraySpec] = TEMPORARY_ARRAYS) -> None:
        """Remove arrays, by default all that a finished model does not need: codes, probes, candidates."""
        names = [spec.name for spec in arrays]
        for name in names:
            self._opened.pop(name, None)
            if name in self:
                del self.group[name]
        for folder in {name.partition("/")[0] for name in names if "/" in name}:
            left = self.group.get(folder)
            if isinstance(left, zarr.Group) and not left.nmembers():
                del self.group[folder]

    @retried
    def finish(self, **facts: Any) -> None:
        """Mark the model as finished, after every other array is written and every block is marked."""
        missing = np.flatnonzero(~self.blocks_done())
        if len(missing):
            raise damaged(self.url, f"block {missing[0]} lacks the mark of this job", "run the same call again")
        for spec in BLOCK_ARRAYS:
            if spec.name in self:
                self.check_complete(spec.name)
        finish_group(self.group, self.url, self.header, **facts)


def _index(spec: ArraySpec, block: NodeBlock) -> tuple[int, ...]:
    return tuple(block.index if dimension == "node" else 0 for dimension in spec.dimensions)


def _along(spec: ArraySpec, dimension: str, start: int, stop: int) -> tuple[slice, ...]:
    return tuple(slice(start, stop) if name == dimension else slice(None) for name in spec.dimensions)
