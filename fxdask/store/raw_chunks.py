"""Chunks of local Zarr arrays that hold nothing but values: rows are read straight from their files.

Zarr reads whole chunks only, each into new memory. Reading some rows at a time into the same array is
quicker, because they are still in the CPU cache when they are used.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from numpy.typing import NDArray
from zarr.codecs import BytesCodec
from zarr.storage import LocalStore

__all__ = ["RawChunks"]


@dataclass(frozen=True)
class RawChunks:
    """The chunk files of an array of whole rows, which are neither compressed nor reordered nor checksummed."""

    folder: Path
    array: zarr.Array

    @classmethod
    def of(cls, array: zarr.Array) -> RawChunks | None:
        """The chunk files of an array; None if Zarr has to decode them."""
        store = array.store
        codecs: Sequence[Any] = getattr(array.metadata, "codecs", ())  # format 2 of Zarr has none
        of_whole_rows = array.ndim == 2 and array.chunks[1] == array.shape[1]
        is_numeric = isinstance(array.dtype, np.dtype) and array.dtype.kind in "biuf"
        if not (of_whole_rows and is_numeric and sys.byteorder == "little"):
            return None
        is_plain = len(codecs) == 1 and isinstance(codecs[0], BytesCodec)
        if not (isinstance(store, LocalStore) and is_plain):
            return None
        endian = codecs[0].endian
        is_little = endian is None or endian.value == "little"
        return cls(store.root / array.path, array) if is_little and array.dtype.isnative else None

    def read_into(self, start: int, rows: NDArray) -> None:
        """Fill ``rows`` with the rows of the array from ``start`` on."""
        per_chunk, done = self.array.chunks[0], 0
        while done < len(rows):
            index, first = divmod(start + done, per_chunk)
            part = rows[done : done + per_chunk - first]
            self._read_part(index, first, part)
            done += len(part)

    def _read_part(self, index: int, first: int, rows: NDArray) -> None:
        """Fill ``rows`` with the rows of one chunk from its row ``first`` on."""
        name = self.array.metadata.encode_chunk_key((index, 0))
        row_bytes = rows.shape[1] * rows.itemsize
        try:
            file = (self.folder / name).open("rb", buffering=0)
        except FileNotFoundError:
            rows[...] = self.array.fill_value  # as for Zarr, a chunk that was never written
            return
        with file:
            expected, size = self.array.chunks[0] * row_bytes, os.fstat(file.fileno()).st_size
            if size != expected:
                raise ValueError(f"chunk {name} has {size:,} bytes instead of {expected:,}")
            file.seek(first * row_bytes)
            buffer, n_read = rows.reshape(-1).view(np.uint8).data, 0
            while n_read < len(buffer):
                count = file.readinto(buffer[n_read:])
                if not count:
                    raise ValueError(f"chunk {name} became shorter while it was read")
                n_read += count
