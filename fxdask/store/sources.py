"""Sources of samples and labels: addresses from which a task on any worker can read rows."""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zarr
import zarr.errors
from numpy.typing import NDArray
from zarr.buffer.cpu import NDBuffer

from fxdask.errors import InvalidInputError, StoreFormatError, StoreReadError
from fxdask.sizes import rows_per_piece, rows_per_read
from fxdask.store.damage import damaged
from fxdask.store.parquet import ParquetAddress
from fxdask.store.parquet_rows import parquet_reader
from fxdask.store.parts import PartsAddress
from fxdask.store.paths import file_version, files_at, is_local, why_unreachable, zarr_location
from fxdask.store.raw_chunks import RawChunks
from fxdask.store.retry import reading, retried

__all__ = [
    "Allocate",
    "NpyAddress",
    "RowReader",
    "Source",
    "ZarrAddress",
    "address_of_mapped",
    "address_of_path",
    "array_of_npy",
    "decoded_bytes",
    "fingerprint",
    "is_reachable",
    "is_zarr_array",
    "location_of",
    "open_rows",
    "read_all",
    "read_pieces",
    "rows_per_chunk",
    "shape_and_dtype",
    "source_of_zarr",
]

LARGEST_LENGTH = 2**62
LONGEST_NPY_HEADER = 2**14
"""Bytes; NumPy itself refuses headers of more than 10,000 characters."""
RowReader = Callable[[int, int], NDArray]
Allocate = Callable[[tuple[int, ...], np.dtype], NDArray]
"""Shape and type -> an uninitialised array to read into."""


@dataclass(frozen=True)
class ZarrAddress:
    """A Zarr array: the URL of its store and its path in the store."""

    url: str
    path: str = ""

    @retried
    def open(self) -> zarr.Array:
        """The array, opened for reading."""
        location = zarr_location(self.url)
        try:
            with reading(self.url, "the array"):
                array = zarr.open_array(location, path=self.path, mode="r")
                if 0 in array.chunks:
                    raise ValueError(f"its chunks have the shape {array.chunks}")
                if max(array.shape, default=0) > LARGEST_LENGTH:
                    raise ValueError("its shape is impossible")
                return array
        except (StoreFormatError, StoreReadError) as error:
            if isinstance(error.__cause__, (FileNotFoundError, zarr.errors.BaseZarrError)):
                where = f"{self.url}{self.path and '/' + self.path}"
                raise InvalidInputError(f"there is no Zarr array at {where}; check the path") from error
            raise


@dataclass(frozen=True)
class NpyAddress:
    """A .npy file by path or URL. Rows are read, not memory-mapped: mapped pages count as memory of the worker."""

    file: str

    def open(self) -> BinaryIO:
        """The file, seekable and unbuffered, because a buffer would be filled again for every read."""
        if is_local(self.file):
            return open(self.file, "rb", buffering=0)
        files, path = files_at(self.file)
        return files.open(path, "rb", cache_type="none")

    @retried
    def header(self) -> tuple[tuple[int, ...], np.dtype, int]:
        """Shape, type and byte offset of the first value."""
        try:
            with self.open() as stream:
                start = stream.read(LONGEST_NPY_HEADER)
        except FileNotFoundError:
            raise InvalidInputError(f"there is no file {self.file}; check the path") from None
        try:
            shape, fortran_order, dtype, data_offset = _parsed_npy_header(start)
        except Exception as error:  # NumPy parses the header as Python code, which can fail in many ways
            raise InvalidInputError(
                f"{self.file} is not a readable .npy file ({error}); write it with numpy.save, or pass Zarr or Parquet"
            ) from error
        if fortran_order and len(shape) > 1:
            raise InvalidInputError(f"{self.file} is in Fortran order; save np.ascontiguousarray of it instead")
        if dtype.hasobject:
            raise InvalidInputError(f"{self.file} holds Python objects; save numbers, or text as array.astype(str)")
        if min(shape, default=0) < 0:
            raise InvalidInputError(f"{self.file} has the impossible shape {shape}; write the file again")
        needed = data_offset + dtype.itemsize * math.prod(shape)
        files, path = files_at(self.file)
        size = files.size(path)
        if size < needed:
            raise InvalidInputError(
                f"{self.file} is truncated: it has {size} bytes but its header needs {needed}; write the file again"
            )
        return shape, dtype, data_offset


def _parsed_npy_header(start: bytes) -> tuple[tuple[int, ...], bool, np.dtype, int]:
    """The first bytes of a .npy file -> shape, whether the order is Fortran's, type, and offset of the first value."""
    # NumPy would reserve memory for a header of any length that the file claims, so it gets these bytes only.
    stream = io.BytesIO(start)
    version = np.lib.format.read_magic(stream)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    return (*read(stream), stream.tell())


def array_of_npy(content: bytes) -> NDArray:
    """The array of a whole .npy file; no more memory is used than the content takes, whatever its header claims."""
    shape, fortran_order, dtype, data_offset = _parsed_npy_header(content[:LONGEST_NPY_HEADER])
    values = np.frombuffer(content, dtype, math.prod(shape), data_offset)
    return values.reshape(shape, order="F" if fortran_order else "C")


Source = NDArray | ZarrAddress | NpyAddress | ParquetAddress | PartsAddress


def address_of_path(path: str | Path) -> ZarrAddress | NpyAddress:
    """A path or URL of a Zarr array or a .npy file -> its address."""
    text = str(path)
    if not is_local(text):
        return NpyAddress(text) if text.endswith(".npy") else ZarrAddress(text.rstrip("/"))
    absolute = Path(text).expanduser().absolute()
    if not absolute.exists():
        raise InvalidInputError(f"there is no file or folder {text}; check the path")
    return NpyAddress(str(absolute)) if absolute.is_file() else ZarrAddress(str(absolute))


def address_of_mapped(array: object) -> NpyAddress | None:
    """The .npy file of a memory-mapped array; None if the array is not the whole file.

    Reading the file range by range takes less memory than mapping it.
    """
    if not isinstance(array, np.memmap) or array.mode == "c" or array.ndim != 2:
        return None
    address = NpyAddress(str(array.filename))
    try:
        mapped = (array.shape, array.dtype, array.offset)
        return address if array.flags.c_contiguous and address.header() == mapped else None
    except InvalidInputError:
        return None


def location_of(source: object) -> str | None:
    """The path or URL of samples; None if they are in memory, or copies that this call removes at its end."""
    if isinstance(source, (ZarrAddress, ParquetAddress)):
        return source.url
    return source.file if isinstance(source, NpyAddress) else None


def is_reachable(source: object) -> bool:
    """Whether samples can be read now; if not, an error does not mean that the samples are bad."""
    url = location_of(source)
    return url is None or not why_unreachable(url)


def is_zarr_array(value: object) -> bool:
    """Whether this is an open Zarr array."""
    return isinstance(value, zarr.Array)


def source_of_zarr(array: zarr.Array) -> Source:
    """An open Zarr array -> its address, or its values if other processes cannot open it."""
    if isinstance(array.store, zarr.storage.LocalStore):
        return ZarrAddress(str(Path(array.store.root).absolute()), array.path)
    # A store with its own options, such as access keys, cannot be opened by its URL alone.
    if isinstance(array.store, zarr.storage.FsspecStore) and not set(array.store.fs.storage_options) - {"asynchronous"}:
        return ZarrAddress(array.store.fs.unstrip_protocol(array.store.path), array.path)
    return np.asarray(array[...])


def shape_and_dtype(source: Source) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type, without reading values."""
    if isinstance(source, NpyAddress):
        shape, dtype, _ = source.header()
        return shape, dtype
    if isinstance(source, ParquetAddress):
        return (source.n_rows, len(source.columns)), np.dtype(source.dtype or object)
    if isinstance(source, PartsAddress):
        return (source.n_rows, source.n_features), np.dtype(source.dtype)
    array = source.open() if isinstance(source, ZarrAddress) else source
    return tuple(array.shape), np.dtype(array.dtype)


def decoded_bytes(source: ZarrAddress | NpyAddress | ParquetAddress | PartsAddress) -> int:
    """Bytes of the chunks that Zarr decodes at the same time during one read, or of a row group of Parquet."""
    if isinstance(source, (NpyAddress, PartsAddress)):
        return 0
    if isinstance(source, ParquetAddress):
        return source.decoded_bytes
    array = source.open()
    rows, columns = array.chunks
    read = rows_per_read(array.shape[1])
    aligned = read % rows == 0 or rows % read == 0
    touched = (max(1, read // rows) if aligned else read // rows + 2) * -(-array.shape[1] // columns)
    return min(touched, zarr.config.get("async.concurrency")) * rows * columns * array.dtype.itemsize


def rows_per_chunk(source: Source) -> int:
    """Rows in one chunk; 0 if the source has no chunks, or row groups of different lengths."""
    if isinstance(source, ParquetAddress):
        return source.rows_per_group
    return int(source.open().chunks[0]) if isinstance(source, ZarrAddress) else 0


def fingerprint(source: Source) -> str | None:
    """A digest of the names, sizes and modification times of the files of the samples, not of their values.

    None if the samples are in memory or copies of this call, or if their files have no times.
    """
    if isinstance(source, (np.ndarray, PartsAddress)):
        return None
    url = f"{source.url}/{source.path}".rstrip("/") if isinstance(source, ZarrAddress) else location_of(source) or ""
    files, path = files_at(url)
    digest = hashlib.sha256(url.encode())
    if isinstance(source, ParquetAddress):
        digest.update(json.dumps(source.columns).encode())
    for name, info in sorted(files.find(path, detail=True).items()):
        version = file_version(info)
        if version is None:
            return None
        digest.update(f"{name.removeprefix(path)}\0{info['size']}\0{version}\n".encode())
    return digest.hexdigest()


def open_rows(source: Source, allocate: Allocate | None = None) -> RowReader:
    """An array or address -> a function of (start, stop) that returns those rows.

    Rows are read into an array from ``allocate``, which can use a buffer again: new memory must be
    mapped and cleared for every read, which takes as long as the read itself.
    """
    if isinstance(source, ZarrAddress):
        return _zarr_reader(source.open(), allocate)
    if isinstance(source, NpyAddress):
        return _npy_reader(source, allocate or np.empty)
    if isinstance(source, ParquetAddress):
        return parquet_reader(source, allocate or np.empty)
    if isinstance(source, PartsAddress):
        return _parts_reader(source, allocate or np.empty)
    return lambda start, stop: source[start:stop]


def read_pieces(source: Source, start: int, stop: int, allocate: Allocate = np.empty) -> Iterator[NDArray]:
    """The rows of a range as consecutive pieces; each may be overwritten by the next one.

    Pieces of files that need no decoding are so short that they stay in the CPU cache until they are used, and
    end at multiples of a tile. Other Zarr arrays give their decoded chunks: joining these would copy
    them once more. Arrays that may be reused come from ``allocate``.
    """
    if not (isinstance(source, NpyAddress) or (isinstance(source, ZarrAddress) and RawChunks.of(source.open()))):
        yield from _whole_pieces(source, start, stop, allocate)
        return
    read, (shape, dtype) = open_rows(source, allocate), shape_and_dtype(source)
    stop, per_piece = min(stop, shape[0]), rows_per_piece(shape[1], dtype.itemsize)
    for anchor in range(start - start % per_piece, stop, per_piece):
        yield read(max(start, anchor), min(stop, anchor + per_piece))


@retried
def _whole_pieces(source: Source, start: int, stop: int, allocate: Allocate) -> list[NDArray]:
    """The rows of a range; of a Zarr array its decoded chunks."""
    if not isinstance(source, ZarrAddress):
        return [open_rows(source, allocate)(start, stop)]
    array = source.open()
    try:
        chunks = _decoded_chunks(array, start, min(stop, array.shape[0]))
        return [_zarr_reader(array, allocate)(start, stop)] if chunks is None else chunks
    except (ValueError, RuntimeError, zarr.errors.BaseZarrError) as error:
        reason = " ".join(str(error).split())
        raise damaged(source.url, f"samples {start} to {stop} cannot be read ({reason})") from error


class _ChunkCollector(NDBuffer):
    """An output buffer for Zarr that keeps references to the decoded chunks instead of copying them."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        placeholder: Any = np.broadcast_to(np.empty((), dtype), shape)
        super().__init__(placeholder)
        self.chunks: list[tuple[Any, Any]] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.chunks.append((key, value))


def _decoded_chunks(array: zarr.Array, start: int, stop: int) -> list[NDArray] | None:
    """The decoded chunks of these rows in order; None if they do not form whole rows, each one once."""
    if array.chunks[1] < array.shape[1] or stop <= start:
        return None
    collector = _ChunkCollector((stop - start, array.shape[1]), array.dtype)
    array.get_basic_selection((slice(start, stop),), out=collector)
    parts: dict[int, NDArray] = {}
    for key, value in collector.chunks:
        # Zarr gives a chunk that was never written as a single value.
        if not isinstance(value, NDBuffer) or not isinstance(key, tuple) or not isinstance(key[0], slice):
            return None
        parts[key[0].start or 0] = value.as_numpy_array()
    offset = 0
    for first in sorted(parts):
        if first != offset or parts[first].shape[1:] != array.shape[1:] or parts[first].dtype != array.dtype:
            return None
        offset += len(parts[first])
    return [parts[first] for first in sorted(parts)] if offset == stop - start else None


def read_all(source: Source) -> NDArray:
    """All rows as one array, for labels and small data."""
    return open_rows(source)(0, shape_and_dtype(source)[0][0])


def _zarr_reader(array: zarr.Array, allocate: Allocate | None) -> RowReader:
    raw = RawChunks.of(array)

    @retried
    def read(start: int, stop: int) -> NDArray:
        if allocate is None and raw is None:
            with reading(str(array.store_path), f"rows {start} to {stop}"):
                return np.asarray(array[start:stop])
        stop = min(stop, array.shape[0])
        with reading(str(array.store_path), f"rows {start} to {stop}"):
            rows = (allocate or np.empty)((max(0, stop - start), *array.shape[1:]), array.dtype)
            if raw is None:
                array.get_basic_selection((slice(start, stop),), out=NDBuffer.from_numpy_array(rows))
            else:
                raw.read_into(start, rows)
        return rows

    return read


def _parts_reader(source: PartsAddress, allocate: Allocate) -> RowReader:
    dtype = np.dtype(source.dtype)

    def read(start: int, stop: int) -> NDArray:
        pieces = source.pieces(start, stop)
        rows = allocate((sum(high - low for _, low, high in pieces), source.n_features), dtype)
        offset = 0
        for file, low, high in pieces:
            _npy_reader(NpyAddress(file), partial(_given, rows[offset : offset + high - low]))(low, high)
            offset += high - low
        return rows

    return read


def _given(rows: NDArray, _shape: tuple[int, ...], _dtype: np.dtype) -> NDArray:
    """Stands for a function that allocates an array, if the array is there already."""
    return rows


def _npy_reader(source: NpyAddress, allocate: Allocate) -> RowReader:
    shape, dtype, data_offset = source.header()
    bytes_per_row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize

    @retried
    def read(start: int, stop: int) -> NDArray:
        rows = allocate((max(0, min(stop, shape[0]) - start), *shape[1:]), dtype)
        buffer = rows.reshape(-1).view(np.uint8)
        with source.open() as stream:
            stream.seek(data_offset + start * bytes_per_row)
            n_read = 0
            while n_read < len(buffer):
                count = stream.readinto(buffer[n_read:].data)  # type: ignore[attr-defined]
                if not count:
                    raise InvalidInputError(
                        f"{source.file} was truncated while it was read: it ends before row {stop} of {shape[0]}; "
                        "write the file again"
                    )
                n_read += count
        return rows

    return read
