"""What models, rankings and scores share: the arrays of one store, opened once, checked and read whole."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Self

import numpy as np
import zarr
from numpy.typing import NDArray

from fxdask.errors import FxdaskError, StoreWriteError
from fxdask.sizes import rows_per_read
from fxdask.store.damage import RESTORE, damaged
from fxdask.store.group import Mode, check_file_size, count_files, has_metadata, open_group, stored_array
from fxdask.store.layout import ArraySpec, NewArray, create_arrays
from fxdask.store.manifest import Manifest
from fxdask.store.retry import reading, retried, writing

__all__ = ["ArrayStore"]

LABELS_PER_CHUNK = 2**22
BYTES_PER_CHUNK = 2**22  # of an array that is written whole
MOST_CHUNKS = 2**26


class ArrayStore:
    """The arrays of one store. Tasks receive its URL and open it in their own process."""

    kind: ClassVar[str]
    specs: ClassVar[Mapping[str, ArraySpec]]
    staged: ClassVar[str]
    """The array that holds copies of the samples while a ranking runs; other stores have none."""

    def __init__(self, url: str, group: zarr.Group, header: dict[str, Any]) -> None:
        self.url = url
        self.header = header
        self.group = group
        self._opened: dict[str, zarr.Array] = {}
        self._lengths: dict[str, int] = dict(header.get("sizes") or {})
        # Every read of a finished store is checked against the manifest.
        self._manifest = Manifest(group, url) if header.get("finished") else None

    @classmethod
    @retried
    def open(cls, url: str, mode: Mode = "r", *, finished: bool = True) -> Self:
        """Open the store at this URL; with ``finished``, refuse an unfinished one."""
        return cls(url, *open_group(url, cls.kind, mode, finished=finished))

    def __contains__(self, name: str) -> bool:
        with reading(self.url, name):
            return name in self.group

    def array(self, name: str) -> zarr.Array:
        """One array, opened and checked once, because opening takes longer than writing a chunk."""
        if name not in self._opened:
            if self._manifest:
                self._manifest.check_metadata(name)
            array = stored_array(self.group, self.url, name)
            self._check_shape(self.specs[name], array)
            self._opened[name] = array
        return self._opened[name]

    def _check_shape(self, spec: ArraySpec, array: zarr.Array) -> None:
        """Refuse an array whose shape or type contradicts the header or another array, or whose chunks are empty."""
        wrong = [
            dimension
            for dimension, length in zip(spec.dimensions, array.shape, strict=False)
            if length != self._lengths.setdefault(dimension, length)
        ]
        if len(array.shape) != len(spec.dimensions) or wrong or (spec.dtype and array.dtype != np.dtype(spec.dtype)):
            raise damaged(
                self.url,
                f"{spec.name} is {array.dtype} of shape {array.shape}, which contradicts its header or another array",
            )
        if 0 in array.chunks:
            raise damaged(self.url, f"{spec.name} has chunks of shape {array.chunks}")
        n_chunks = math.prod(-(-length // chunk) for length, chunk in zip(array.shape, array.chunks, strict=True))
        if n_chunks > MOST_CHUNKS:  # for which Zarr would list the names of all
            raise damaged(self.url, f"{spec.name} claims more than {MOST_CHUNKS:,} chunks, which no store has")

    @retried
    def write(self, arrays: Mapping[str, NDArray]) -> None:
        """Create and write arrays that are not written by blocks."""
        self._create([self._whole(self.specs[name], values) for name, values in arrays.items()])

    def _whole(self, spec: ArraySpec, values: NDArray) -> NewArray:
        is_text = values.dtype.kind in "UO"
        return NewArray(
            spec=spec,
            sizes=dict(zip(spec.dimensions, values.shape, strict=True)),
            chunk_length=_chunk_length(spec, values),
            dtype=spec.dtype or ("string" if is_text else values.dtype.str),
            values=values.astype(object) if is_text else values,
        )

    def _create(self, arrays: Sequence[NewArray]) -> None:
        with writing(self.url):
            created = create_arrays(self.group, arrays)
        self._opened |= {new.spec.name: array for new, array in zip(arrays, created, strict=True)}

    @retried
    def read(self, name: str) -> NDArray:
        """One whole array; a missing chunk is an error, while Zarr would read zeros."""
        self.check_complete(name)
        with reading(self.url, name):
            return np.asarray(self.array(name)[...])

    def check_complete(self, name: str, remedy: str = RESTORE) -> None:
        """Refuse an array with missing chunks, before memory for it is allocated."""
        if self._manifest:
            self._manifest.check_array(name)
        array = self.array(name)
        if self._manifest and self._manifest.holds_chunks(array, name):
            return
        # Zarr checks every chunk by name, which would take too long if the metadata claim very many chunks.
        n_stored = min(array.nchunks, count_files(array))
        if n_stored == array.nchunks:
            n_stored = array.nchunks_initialized
        if n_stored != array.nchunks:
            raise damaged(self.url, f"{name} has {n_stored} of its {array.nchunks} chunks", remedy)
        if array.nchunks and array.dtype.kind in "biuf":
            check_file_size(array, (0,) * array.ndim, self.url)

    @property
    def mark(self) -> np.uint64:
        """The mark of a finished part: a digest of the job, so that parts of another job do not count as done."""
        try:
            return np.uint64(int(self.header["job"][:16], 16) | 1)  # never zero, because a missing mark reads as zero
        except (KeyError, TypeError, ValueError) as error:
            raise damaged(self.url, "its header does not name its job") from error

    @contextmanager
    def staged_reads(self) -> Iterator[None]:
        """Refuse what was computed from staged samples that were removed meanwhile.

        A removed chunk is read as zeros, and a removed array would be called damaged.
        """
        try:
            yield
        except FxdaskError:
            self.check_staged()
            raise
        self.check_staged()

    def check_staged(self) -> None:
        """Raise an error if the staged samples are no longer there."""
        if not has_metadata(self.group, self.staged):
            raise StoreWriteError(
                f"{self.url} was finished while this part was computed; "
                "run the same call again if the result is incomplete"
            )


def _chunk_length(spec: ArraySpec, values: NDArray) -> int:
    """The length of a chunk of an array that is written whole."""
    if spec.chunked == "sample" and values.ndim == 1:
        return LABELS_PER_CHUNK
    if spec.chunked == "probe":
        return rows_per_read(values.shape[1])
    return max(1, BYTES_PER_CHUNK // max(1, values[:1].nbytes))
