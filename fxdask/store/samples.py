"""Samples and labels where they are: addresses that a task on any worker can read rows from."""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import zarr
import zarr.errors
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.plan import rows_per_read

__all__ = [
    "NpyAddress",
    "RowReader",
    "Source",
    "ZarrAddress",
    "address_of_mapped",
    "address_of_path",
    "decoded_bytes",
    "fingerprint",
    "is_zarr_array",
    "open_rows",
    "read_all",
    "rows_per_chunk",
    "shape_and_dtype",
    "source_of_zarr",
]

RowReader = Callable[[int, int], NDArray]


@dataclass(frozen=True)
class ZarrAddress:
    """A Zarr array by the address of its store and its path inside."""

    url: str
    path: str = ""

    def open(self) -> zarr.Array:
        """The array, opened for reading."""
        try:
            return zarr.open_array(self.url, path=self.path, mode="r")
        except (FileNotFoundError, zarr.errors.BaseZarrError) as error:
            raise InvalidInputError(f"there is no Zarr array at {self.url}{self.path and '/' + self.path}") from error


@dataclass(frozen=True)
class NpyAddress:
    """A .npy file. Rows are read, never memory-mapped: mapped pages count as a worker's memory."""

    file: str

    def header(self) -> tuple[tuple[int, ...], np.dtype, int]:
        """Shape, type and the place of the first value."""
        try:
            with open(self.file, "rb") as stream:
                version = np.lib.format.read_magic(stream)
                read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
                shape, fortran_order, dtype = read(stream)
                first = stream.tell()
        except FileNotFoundError:
            raise InvalidInputError(f"there is no file {self.file}") from None
        except (OSError, ValueError) as error:
            raise InvalidInputError(f"{self.file} is not a readable .npy file: {error}") from error
        if fortran_order and len(shape) > 1:
            raise InvalidInputError(f"{self.file} is in Fortran order; save np.ascontiguousarray of it instead")
        if dtype.hasobject:
            raise InvalidInputError(f"{self.file} holds Python objects, not numbers")
        needed = first + dtype.itemsize * int(np.prod(shape, dtype=np.int64))
        size = Path(self.file).stat().st_size
        if size < needed:
            raise InvalidInputError(f"{self.file} is cut short: it has {size} bytes but its header promises {needed}")
        return shape, dtype, first


Source = NDArray | ZarrAddress | NpyAddress


def address_of_path(path: str | Path) -> ZarrAddress | NpyAddress:
    """A path or URL of a Zarr array or a .npy file -> its address."""
    text = str(path)
    if "://" in text:
        return ZarrAddress(text)
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


def is_zarr_array(value: object) -> bool:
    """Whether this is an open Zarr array."""
    return isinstance(value, zarr.Array)


def source_of_zarr(array: zarr.Array) -> Source:
    """An open Zarr array -> its address, or its values where no other process could find it."""
    if isinstance(array.store, zarr.storage.LocalStore):
        return ZarrAddress(str(Path(array.store.root).absolute()), array.path)
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

    None where there are no local files to look at.
    """
    if isinstance(source, np.ndarray) or (isinstance(source, ZarrAddress) and "://" in source.url):
        return None
    place = Path(source.file if isinstance(source, NpyAddress) else f"{source.url}/{source.path}")
    files = [place] if place.is_file() else sorted(file for file in place.rglob("*") if file.is_file())
    digest = hashlib.sha256(str(place).encode())
    for file in files:
        found = file.stat()
        digest.update(f"{file.relative_to(place)}\0{found.st_size}\0{found.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def open_rows(source: Source, *, reuse: bool = False) -> RowReader:
    """An array or address -> a function of (start, stop) that gives those rows.

    With ``reuse`` the rows may be overwritten by the next read but one.
    """
    if isinstance(source, ZarrAddress):
        array = source.open()
        return lambda start, stop: np.asarray(array[start:stop])
    if isinstance(source, NpyAddress):
        return _npy_reader(source, reuse=reuse)
    return lambda start, stop: source[start:stop]


def read_all(source: Source) -> NDArray:
    """Every row at once, for labels and small data."""
    return open_rows(source)(0, shape_and_dtype(source)[0][0])


def _npy_reader(source: NpyAddress, *, reuse: bool) -> RowReader:
    shape, dtype, first = source.header()
    bytes_per_row = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
    # Fresh memory has to be mapped and cleared for every read, which takes as long as reading.
    buffers: deque[NDArray[np.uint8]] = deque([np.empty(0, np.uint8)] * 2)

    def read(start: int, stop: int) -> NDArray:
        n_rows = max(0, min(stop, shape[0]) - start)
        n_bytes = n_rows * bytes_per_row
        buffers.rotate()
        if not reuse or len(buffers[0]) < n_bytes:
            buffers[0] = np.empty(n_bytes, np.uint8)
        into = buffers[0][:n_bytes]
        with open(source.file, "rb", buffering=0) as stream:
            stream.seek(first + start * bytes_per_row)
            n_read = 0
            while n_read < n_bytes:
                count = stream.readinto(into[n_read:].data)
                if not count:
                    raise InvalidInputError(f"{source.file} ended before row {stop}")
                n_read += count
        return into.view(dtype).reshape(n_rows, *shape[1:])

    return read
