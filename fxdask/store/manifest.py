"""The manifest of a finished store: the length and a checksum of every file in it.

Chunks end with a CRC-32C of their content, which Zarr checks when it reads them. That check does
not detect a chunk that was replaced by another one, and metadata have no checksum at all; the
manifest detects both. It is an array of the store, written last, and its only chunk ends with its
own checksum.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import google_crc32c
import numpy as np
import zarr
from zarr.abc.store import RangeByteRequest
from zarr.buffer import default_buffer_prototype
from zarr.storage import FsspecStore

from fxdask.store.asynchronous import exists, run_at
from fxdask.store.damage import damaged
from fxdask.store.layout import (
    EARLIER_MANIFEST,
    FORMAT_OF_COORDINATES,
    MANIFEST,
    ArraySpec,
    NewArray,
    create_arrays,
)
from fxdask.store.paths import is_partial

__all__ = ["Manifest", "has_manifest", "write_manifest"]

FILES_AT_A_TIME = 64
CHECKSUM_BYTES = 4
MOST_METADATA_BYTES = 2**20
NOT_READ = "not read"
TOO_MUCH = (OverflowError, RecursionError)
"""Raised by JSON with huge numbers or very deep nesting."""


@dataclass(frozen=True)
class FileFacts:
    """Length in bytes and checksum of one file."""

    length: int
    checksum: str


class Manifest:
    """The expected length and checksum of every file of a finished store."""

    def __init__(self, group: zarr.Group, url: str) -> None:
        self._group, self._url = group, url
        try:
            array = group[_spec(group).name]
            if not isinstance(array, zarr.Array):
                raise ValueError("it is not an array")
            if array.chunks != array.shape or array.dtype != np.uint8:
                raise ValueError(
                    f"it is {array.dtype} of shape {array.shape} in chunks of {array.chunks} instead of one uint8 chunk"
                )
            length = run_at(group.store, group.store.getsize(_key(group, _chunk(group))))
            if array.nbytes > length:
                raise ValueError(f"its metadata claim {array.nbytes:,} bytes but its file has {length:,}")
            content = json.loads(np.asarray(array[...]).tobytes())
            self._files = {name: FileFacts(int(length), str(checksum)) for name, (length, checksum) in content.items()}
            outside = [name for name in self._files if not _is_inside(name)]
            if outside:
                raise ValueError(f"it names {outside[0]!r}, which is outside of the store")
            negative = [name for name, facts in self._files.items() if facts.length < 0]
            if negative:
                raise ValueError(f"it gives {negative[0]!r} a length of {self._files[negative[0]].length}")
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            FileNotFoundError,
            *TOO_MUCH,
            zarr.errors.BaseZarrError,
        ) as error:
            raise damaged(url, f"its manifest cannot be read ({error})") from error

    @property
    def names(self) -> list[str]:
        """The names of all files in the manifest."""
        return sorted(self._files)

    def check(self, names: Iterable[str]) -> None:
        """Refuse files that changed since the store was finished; of a chunk only its own checksum is read."""
        for name, difference in self._differences(names, whole=False):
            raise damaged(self._url, f"{name} {difference}")

    def check_array(self, name: str) -> None:
        """Check all files of one array."""
        self.check(file for file in self._files if file.startswith(f"{name}/"))

    def holds_chunks(self, array: zarr.Array, name: str) -> bool:
        """Whether the store was finished with all chunks of an array, each large enough for its values."""
        lengths = [facts.length for file, facts in self._files.items() if file.startswith(f"{name}/c")]
        n_bytes = math.prod(array.chunks) * array.dtype.itemsize
        return len(lengths) == array.nchunks and all(length >= n_bytes for length in lengths)

    def check_metadata(self, name: str = "") -> None:
        """Check the metadata of one array; with an empty name, those of the group."""
        self.check([f"{name}/zarr.json".removeprefix("/")])

    def find_damage(self) -> list[str]:
        """One description per changed or missing file; every byte of the store is read."""
        return [f"{name} {difference}" for name, difference in self._differences(self.names, whole=True)]

    def unknown_files(self) -> list[str]:
        """Files that were added after the store was finished."""
        return sorted(set(_listed(self._group)) - set(self._files) - {_chunk(self._group)})

    def _differences(self, names: Iterable[str], *, whole: bool) -> list[tuple[str, str]]:
        requested = list(names)
        unknown = [(name, "is not in the manifest") for name in requested if name not in self._files]
        known = [name for name in requested if name in self._files]
        stored = _facts_of_all(self._group, known, [self._files[name].length for name in known], whole=whole)
        return unknown + [
            (name, _difference(self._files[name], facts))
            for name, facts in zip(known, stored, strict=True)
            if facts != self._files[name]
        ]


def _is_inside(name: str) -> bool:
    """Whether a name is a path inside the store."""
    return all(part not in ("", ".", "..") for part in name.split("/")) and not {"\\", ":", "\0"} & set(name)


def _difference(expected: FileFacts, stored: FileFacts | None) -> str:
    if stored is None:
        return "is missing"
    if stored.length != expected.length:
        return f"has {stored.length:,} bytes instead of {expected.length:,}"
    return "was changed: its checksum differs"


def write_manifest(group: zarr.Group) -> None:
    """Write the manifest of a store that is otherwise complete."""
    spec = _spec(group)
    if EARLIER_MANIFEST.name in group:
        del group[EARLIER_MANIFEST.name]
    # The array is created before its content is written, so that the manifest includes its metadata.
    own = {f"{name}/zarr.json": None for name in {EARLIER_MANIFEST.name, spec.name}}
    lengths = {**_listed(group), **own}
    names = sorted(lengths)
    n_bytes = _length_of_manifest(names)
    (array,) = create_arrays(group, [NewArray(spec=spec, sizes={"byte": n_bytes}, chunk_length=n_bytes)])
    facts = _facts_of_all(group, names, [lengths[name] for name in names], whole=False)
    if any(file and file.checksum == NOT_READ for file in facts):
        facts = _facts_of_all(group, names, [None] * len(names), whole=False)  # the listing was an old one
    content = json.dumps({name: [file.length, file.checksum] for name, file in zip(names, facts, strict=True) if file})
    run_at(group.store, array.async_array.setitem(..., np.frombuffer(content.ljust(n_bytes).encode(), np.uint8)))


def has_manifest(group: zarr.Group) -> bool:
    """Whether the manifest exists; it is written after everything else."""
    return exists(group.store_path / _chunk(group))


def _length_of_manifest(names: list[str]) -> int:
    """Bytes that are enough for all names with any lengths and checksums."""
    return sum(len(json.dumps(name)) + 40 for name in names) + 2


def _listed(group: zarr.Group) -> dict[str, int | None]:
    """The files of a store, and their lengths where the listing tells them: in object stores that saves requests."""
    prefix = f"{group.path}/" if group.path else ""

    async def list_all() -> dict[str, int | None]:
        store = group.store
        if isinstance(store, FsspecStore):
            root = f"{store.path}/"
            found = await store.fs._find(f"{root}{prefix}", detail=True)
            return {name.removeprefix(root): facts.get("size") for name, facts in found.items()}
        return {name: None async for name in store.list_prefix(prefix)}

    lengths = {name.removeprefix(prefix): length for name, length in run_at(group.store, list_all()).items()}
    return {name: length for name, length in lengths.items() if not is_partial(name)}


def _spec(group: zarr.Group) -> ArraySpec:
    """The array of the manifest; stores of earlier formats have it at another path."""
    header: Any = group.attrs.asdict().get("fxdask")
    stored = header.get("format") if isinstance(header, dict) else None
    return EARLIER_MANIFEST if isinstance(stored, int) and stored < FORMAT_OF_COORDINATES else MANIFEST


def _chunk(group: zarr.Group) -> str:
    return f"{_spec(group).name}/c/0"


def _key(group: zarr.Group, name: str) -> str:
    return f"{group.path}/{name}" if group.path else name


def _facts_of_all(
    group: zarr.Group, names: list[str], lengths: Sequence[int | None], *, whole: bool
) -> list[FileFacts | None]:
    """Length and checksum of each file, None for a missing one; a file of another length than given is not read."""
    limit = asyncio.Semaphore(FILES_AT_A_TIME)

    async def read_one(name: str, length: int | None) -> FileFacts | None:
        async with limit:
            return await _facts(group, name, length, whole=whole)

    async def read_all() -> list[FileFacts | None]:
        return await asyncio.gather(*map(read_one, names, lengths))

    return run_at(group.store, read_all())


async def _facts(group: zarr.Group, name: str, expected: int | None, *, whole: bool) -> FileFacts | None:
    """Length and checksum of one file: of a chunk the checksum at its end, against which Zarr checks the rest.

    A request of an object store takes long, so a file of the expected length takes one.
    """
    store, key, is_chunk = group.store, _key(group, name), not name.endswith("zarr.json")
    try:
        length = expected
        if length is None or whole or (length > MOST_METADATA_BYTES and not is_chunk):
            length = await store.getsize(key)
        if expected not in (None, length):
            return FileFacts(length, NOT_READ)
        first = max(0, length - CHECKSUM_BYTES) if is_chunk and not whole else 0
        content = await _read_part(group, key, first, length)
    except FileNotFoundError:
        return None
    if content is None:
        return FileFacts(await store.getsize(key), NOT_READ)
    if first:
        return FileFacts(length, content.hex())
    body, own = (content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]) if is_chunk else (content, None)
    checksum = google_crc32c.value(body).to_bytes(CHECKSUM_BYTES, "little")
    return FileFacts(length, checksum.hex() if own in (None, checksum) else "differs from its own")


async def _read_part(group: zarr.Group, key: str, first: int, length: int) -> bytes | None:
    """The bytes of a file from ``first`` on; None if it has another length."""
    # One byte more is requested, which only a longer file has.
    part = RangeByteRequest(first, length + 1)
    try:
        buffer = await group.store.get(key, default_buffer_prototype(), byte_range=part)
    except FileNotFoundError:
        raise
    except OSError:
        # Object stores refuse a range that begins beyond the end of a file.
        if await group.store.getsize(key) > first:
            raise
        return None
    if buffer is None:
        raise FileNotFoundError(key)
    return buffer.to_bytes() if first + len(buffer) == length else None
