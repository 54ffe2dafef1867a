"""Samples and labels where they are: addresses that a task on any worker can read rows from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import zarr
import zarr.errors
from numpy.typing import NDArray
from zarr.buffer.cpu import NDBuffer

from fxdask.errors import InvalidInputError, StoreFormatError, StoreReadError
from fxdask.sizes import rows_per_read
from fxdask.store.paths import files_at, is_local, why_unreachable, zarr_location
from fxdask.store.retry import reading, retried

__all__ = [
    "Allocate",
    "NpyAddress",
    "RowReader",
    "Source",
    "ZarrAddress",
    "address_of_mapped",
    "address_of_path",
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

RowReader = Callable[[int, int], NDArray]
Allocate = Callable[[tuple[int, ...], np.dtype], NDArray]
"""Shape and type -> an array of anything, to be read into."""


@dataclass(frozen=True)
class ZarrAddress:
    """A Zarr array by the address of its store and its path inside."""

    url: str
    path: str = ""

    @retried
    def open(self) -> zarr.Array:
        """The array, opened for reading."""
        place = zarr_location(self.url)
        try:
            with reading(self.url, "the array"):
                return zarr.open_array(place, path=self.path, mode="r")
        except (StoreFormatError, StoreReadError) as error:
            if isinstance(error.__cause__, (FileNotFoundError, zarr.errors.BaseZarrError)):
                where = f"{self.url}{self.path and '/' + self.path}"
                raise InvalidInputError(f"there is no Zarr array at {where}") from error
            raise


@dataclass(frozen=True)
class NpyAddress:
    """A .npy file, by path or URL. Rows are read, never memory-mapped: mapped pages count as a worker's memory."""

    file: str

    def open(self) -> BinaryIO:
        """The file, to be read from any place; without a buffer that would be filled for every row."""
        if is_local(self.file):
            return open(self.file, "rb", buffering=0)
        files, path = files_at(self.file)
        return files.open(path, "rb", cache_type="none")

    @retried
    def header(self) -> tuple[tuple[int, ...], np.dtype, int]:
        """Shape, type and the place of the first value."""
        try:
            with self.open() as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran_order, dtype = read(stream)
                first = stream.tell()
        except FileNotFoundError:
            raise InvalidInputError(f"there is no file {self.file}") from None
        except (ValueError, OverflowError) as error:
            raise InvalidInputError(f"{self.file} is not a readable .npy file: {error}") from error
        if fortran_order and len(shape) > 1:
            raise InvalidInputError(f"{self.file} is in Fortran order; save np.ascontiguousarray of it instead")
        if dtype.hasobject:
            raise InvalidInputError(f"{self.file} holds Python objects, not numbers")
        if min(shape, default=0) < 0:
            raise InvalidInputError(f"{self.file} has shape {shape}")
        needed = first + dtype.itemsize * math.prod(shape)
        files, path = files_at(self.file)
        size = files.size(path)
        if size < needed:
            raise InvalidInputError(f"{self.file} is cut short: it has {size} bytes but its header promises {needed}")
        return shape, dtype, first


Source = NDArray | ZarrAddress | NpyAddress


def address_of_path(path: str | Path) -> ZarrAddress | NpyAddress:
    """A path or URL of a Zarr array or a .npy file -> its address."""
    text = str(path)
    if not is_local(text):
        return NpyAddress(text) if text.endswith(".npy") else ZarrAddress(text.rstrip("/"))
    place = Path(text).expanduser().absolute()
    if not place.exists():
        raise InvalidInputError(f"there is no file or folder {text}")
    return NpyAddress(str(place)) if place.is_file() else ZarrAddress(str(place))


def address_of_mapped(array: object) -> NpyAddress | None:
    """The .npy file that a memory-mapped array shows as it is: read piece by piece, it takes less memory."""
    if not isinstance(array, np.memmap) or array.mode == "c" or array.ndim != 2:
        return None
    address = NpyAddress(str(array.filename))
    try:
        shown = (array.shape, array.dtype, array.offset)
        return address if array.flags.c_contiguous and address.header() == shown else None
    except InvalidInputError:
        return None


def location_of(source: object) -> str | None:
    """The path or URL that samples are read from; None where they are no file."""
    if isinstance(source, ZarrAddress):
        return source.url
    return source.file if isinstance(source, NpyAddress) else None


def is_reachable(source: object) -> bool:
    """Whether samples can be looked at now: where they cannot, it is not they that are wrong."""
    place = location_of(source)
    return place is None or not why_unreachable(place)


def is_zarr_array(value: object) -> bool:
    """Whether this is an open Zarr array."""
    return isinstance(value, zarr.Array)


def source_of_zarr(array: zarr.Array) -> Source:
    """An open Zarr array -> its address, or its values where no other process could find it."""
    if isinstance(array.store, zarr.storage.LocalStore):
        return ZarrAddress(str(Path(array.store.root).absolute()), array.path)
    # With options of its own, such as keys, it could not be opened by its address alone.
    if isinstance(array.store, zarr.storage.FsspecStore) and not set(array.store.fs.storage_options) - {"asynchronous"}:
        return ZarrAddress(array.store.fs.unstrip_protocol(array.store.path), array.path)
    return np.asarray(array[...])


def shape_and_dtype(source: Source) -> tuple[tuple[int, ...], np.dtype]:
    """Shape and type without reading a value."""
    if isinstance(source, NpyAddress):
        shape, dtype, _ = source.header()
        return shape, dtype
    array = source.open() if isinstance(source, ZarrAddress) else source
    return tuple(array.shape), np.dtype(array.dtype)


def decoded_bytes(source: ZarrAddress | NpyAddress) -> int:
    """Memory that Zarr decodes chunks into during one read: those it touches, a few at a time."""
    if isinstance(source, NpyAddress):
        return 0
    array = source.open()
    rows, columns = array.chunks
    read = rows_per_read(array.shape[1])
    aligned = read % rows == 0 or rows % read == 0
    touched = (max(1, read // rows) if aligned else read // rows + 2) * -(-array.shape[1] // columns)
    return min(touched, zarr.config.get("async.concurrency")) * rows * columns * array.dtype.itemsize


def rows_per_chunk(source: Source) -> int:
    """Rows that are stored, so read, together; 0 where any range of rows can be read by itself."""
    return int(source.open().chunks[0]) if isinstance(source, ZarrAddress) else 0


def fingerprint(source: Source) -> str | None:
    """A digest that changes when a file of the samples does: of names, sizes and times, not of the values.

    None where there are no files to look at, or where these have no times.
    """
    if isinstance(source, np.ndarray):
        return None
    place = source.file if isinstance(source, NpyAddress) else f"{source.url}/{source.path}".rstrip("/")
    files, path = files_at(place)
    digest = hashlib.sha256(place.encode())
    for name, found in sorted(files.find(path, detail=True).items()):
        # Object stores name an object's content by a tag; elsewhere its time tells that it changed.
        changed = found.get("ETag") or found.get("LastModified") or found.get("mtime")
        if changed is None:
            return None
        digest.update(f"{name.removeprefix(path)}\0{found['size']}\0{changed}\n".encode())
    return digest.hexdigest()


def open_rows(source: Source, room: Allocate | None = None) -> RowReader:
    """An array or address -> a function of (start, stop) that gives those rows, read into the room where there is one.

    Fresh memory has to be mapped and cleared for every read, which takes as long as reading.
    """
    if isinstance(source, ZarrAddress):
        return _zarr_reader(source.open(), room)
    if isinstance(source, NpyAddress):
        return _npy_reader(source, room or np.empty)
    return lambda start, stop: source[start:stop]


@retried
def read_pieces(source: Source, start: int, stop: int, room: Allocate | None = None) -> list[NDArray]:
    """The rows of a range, in consecutive pieces of their own: of a Zarr array its chunks as they were decoded.

    Reading the range in one piece would copy them all once more. Where chunks are narrower than
    rows they are put together, in the room if there is one.
    """
    if not isinstance(source, ZarrAddress):
        return [open_rows(source, room)(start, stop)]
    array = source.open()
    try:
        caught = _caught_chunks(array, start, min(stop, array.shape[0]))
        return [_zarr_reader(array, room)(start, stop)] if caught is None else caught
    except (ValueError, RuntimeError, zarr.errors.BaseZarrError) as error:
        reason = " ".join(str(error).split())
        raise StoreFormatError(
            f"{source.url} is damaged: samples {start} to {stop} cannot be read ({reason})"
        ) from error


class _Catcher(NDBuffer):
    """What Zarr takes for the array to read into, and which keeps what it is given instead of copying it."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype) -> None:
        nothing: Any = np.broadcast_to(np.empty((), dtype), shape)
        super().__init__(nothing)
        self.caught: list[tuple[Any, Any]] = []

    def __setitem__(self, key: Any, value: Any) -> None:
        self.caught.append((key, value))


def _caught_chunks(array: zarr.Array, start: int, stop: int) -> list[NDArray] | None:
    """The decoded chunks of these rows in order; None where they do not make up whole rows, each one once."""
    if array.chunks[1] < array.shape[1] or stop <= start:
        return None
    catcher = _Catcher((stop - start, array.shape[1]), array.dtype)
    array.get_basic_selection((slice(start, stop),), out=catcher)
    parts: dict[int, NDArray] = {}
    for key, value in catcher.caught:
        # A chunk that was never written is no array but one value.
        if not isinstance(value, NDBuffer) or not isinstance(key, tuple) or not isinstance(key[0], slice):
            return None
        parts[key[0].start or 0] = value.as_numpy_array()
    place = 0
    for first in sorted(parts):
        if first != place or parts[first].shape[1:] != array.shape[1:] or parts[first].dtype != array.dtype:
            return None
        place += len(parts[first])
    return [parts[first] for first in sorted(parts)] if place == stop - start else None


def read_all(source: Source) -> NDArray:
    """Every row at once, for labels and small data."""
    return open_rows(source)(0, shape_and_dtype(source)[0][0])


def _zarr_reader(array: zarr.Array, room: Allocate | None) -> RowReader:
    @retried
    def read(start: int, stop: int) -> NDArray:
        if room is None:
            with reading(str(array.store_path), f"rows {start} to {stop}"):
                return np.asarray(array[start:stop])
        stop = min(stop, array.shape[0])
        into = room((max(0, stop - start), *array.shape[1:]), array.dtype)
        with reading(str(array.store_path), f"rows {start} to {stop}"):
            array.get_basic_selection((slice(start, stop),), out=NDBuffer.from_numpy_array(into))
        return into

    return read


def _npy_reader(source: NpyAddress, room: Allocate) -> RowReader:
    shape, dtype, first = source.header()
    bytes_per_row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize

    @retried
    def read(start: int, stop: int) -> NDArray:
        rows = room((max(0, min(stop, shape[0]) - start), *shape[1:]), dtype)
        into = rows.reshape(-1).view(np.uint8)
        with source.open() as stream:
            stream.seek(first + start * bytes_per_row)
            n_read = 0
            while n_read < len(into):
                count = stream.readinto(into[n_read:].data)  # type: ignore[attr-defined]
                if not count:
                    raise InvalidInputError(f"{source.file} ended before row {stop}")
                n_read += count
        return rows

    return read
