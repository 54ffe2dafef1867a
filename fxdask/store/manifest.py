"""The manifest of a finished store: the length and a checksum of every file in it.

Chunks end with a CRC-32C of their content, which Zarr checks when it reads them. That does not
notice a chunk that another one was copied over, and metadata have no checksum at all; both are
noticed here. The manifest is an array of the store itself, written last of all, whose only chunk
ends with its own checksum.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import google_crc32c
import numpy as np
import zarr
from zarr.abc.store import SuffixByteRequest
from zarr.buffer import default_buffer_prototype

from fxdask.errors import StoreFormatError
from fxdask.store.asynchronous import run
from fxdask.store.layout import MANIFEST, create_array
from fxdask.store.paths import is_partial

__all__ = ["Manifest", "has_manifest", "write_manifest"]

FILES_AT_A_TIME = 64
CHUNK = f"{MANIFEST.name}/c/0"
CHECKSUM_BYTES = 4
TOO_MUCH = (OverflowError, RecursionError)
"""Raised by JSON with endless numbers or nesting."""


@dataclass(frozen=True)
class FileFacts:
    """What a file must be: so many bytes, and this checksum of them."""

    length: int
    checksum: str


class Manifest:
    """What every file of a finished store must be."""

    def __init__(self, group: zarr.Group, url: str) -> None:
        self._group, self._url = group, url
        try:
            array = group[MANIFEST.name]
            if not isinstance(array, zarr.Array):
                raise ValueError("it is no array")
            if array.chunks != array.shape or array.dtype != np.uint8:
                raise ValueError(f"it is {array.dtype} of shape {array.shape} in chunks of {array.chunks}")
            length = run(group.store.getsize(_key(group, CHUNK)))
            if array.nbytes > length:
                raise ValueError(f"it claims {array.nbytes:,} bytes but has {length:,}")
            content = json.loads(np.asarray(array[...]).tobytes())
            self._files = {name: FileFacts(int(length), str(checksum)) for name, (length, checksum) in content.items()}
            outside = [name for name in self._files if not _is_inside(name)]
            if outside:
                raise ValueError(f"it names {outside[0]!r}, which is outside of the store")
        except (
            ValueError,
            TypeError,
            KeyError,
            AttributeError,
            FileNotFoundError,
            *TOO_MUCH,
            zarr.errors.BaseZarrError,
        ) as error:
            raise StoreFormatError(f"{url} is damaged: its manifest cannot be read ({error})") from error

    @property
    def names(self) -> list[str]:
        """Every file that there must be."""
        return sorted(self._files)

    def check(self, names: Iterable[str]) -> None:
        """Refuse files that are not what they were when the store was finished; chunks by their last bytes alone."""
        for name, wrong in self._wrong(names, whole=False):
            raise StoreFormatError(f"{self._url} is damaged: {name} {wrong}")

    def check_array(self, name: str) -> None:
        """The same, of all files of one array."""
        self.check(file for file in self._files if file.startswith(f"{name}/"))

    def check_metadata(self, name: str = "") -> None:
        """The same, of the metadata of one array, or of the whole store."""
        self.check([f"{name}/zarr.json".removeprefix("/")])

    def find_damage(self) -> list[str]:
        """In words, everything that is not as it was; every byte is read."""
        return [f"{name} {wrong}" for name, wrong in self._wrong(self.names, whole=True)]

    def unknown_files(self) -> list[str]:
        """Files that were not there when the store was finished."""
        return sorted(set(_listed(self._group)) - set(self._files) - {CHUNK})

    def _wrong(self, names: Iterable[str], *, whole: bool) -> list[tuple[str, str]]:
        wanted = list(names)
        unknown = [(name, "is not in the manifest") for name in wanted if name not in self._files]
        known = [name for name in wanted if name in self._files]
        found = _facts_of_all(self._group, known, [self._files[name].length for name in known], whole=whole)
        return unknown + [
            (name, _difference(self._files[name], facts))
            for name, facts in zip(known, found, strict=True)
            if facts != self._files[name]
        ]


def _is_inside(name: str) -> bool:
    """Whether a name leads to a file of the store, and not around it."""
    return all(part not in ("", ".", "..") for part in name.split("/")) and not {"\\", ":", "\0"} & set(name)


def _difference(wanted: FileFacts, found: FileFacts | None) -> str:
    if found is None:
        return "is missing"
    if found.length != wanted.length:
        return f"has {found.length:,} bytes instead of {wanted.length:,}"
    return "is not what was written: its checksum differs"


def write_manifest(group: zarr.Group) -> None:
    """Take down every file of a store that is otherwise complete."""
    if MANIFEST.name in group:
        del group[MANIFEST.name]
    # First the array without its content, so that its metadata are among the files.
    names = sorted({*_listed(group), f"{MANIFEST.name}/zarr.json"})
    room = _length_of_manifest(group, names)
    array = create_array(group, MANIFEST, {"byte": room}, room)
    facts = _facts_of_all(group, names, [None] * len(names), whole=False)
    content = json.dumps({name: [one.length, one.checksum] for name, one in zip(names, facts, strict=True) if one})
    array[:] = np.frombuffer(content.ljust(room).encode(), np.uint8)


def has_manifest(group: zarr.Group) -> bool:
    """Whether a manifest was written, and with it everything before it."""
    return bool(run(group.store.exists(_key(group, CHUNK))))


def _length_of_manifest(group: zarr.Group, names: list[str]) -> int:
    """Room for all names, with lengths and checksums of any size."""
    return sum(len(json.dumps(name)) + 40 for name in names) + 2


def _listed(group: zarr.Group) -> list[str]:
    prefix = f"{group.path}/" if group.path else ""

    async def every() -> list[str]:
        names = [name.removeprefix(prefix) async for name in group.store.list_prefix(prefix)]
        return [name for name in names if not is_partial(name)]

    return run(every())


def _key(group: zarr.Group, name: str) -> str:
    return f"{group.path}/{name}" if group.path else name


def _facts_of_all(
    group: zarr.Group, names: list[str], lengths: Sequence[int | None], *, whole: bool
) -> list[FileFacts | None]:
    """Length and checksum of each file; None where there is none. What has not the length it should is not read."""
    at_once = asyncio.Semaphore(FILES_AT_A_TIME)

    async def one(name: str, length: int | None) -> FileFacts | None:
        async with at_once:
            return await _facts(group, name, length, whole=whole)

    async def every() -> list[FileFacts | None]:
        return await asyncio.gather(*map(one, names, lengths))

    return run(every())


async def _facts(group: zarr.Group, name: str, wanted: int | None, *, whole: bool) -> FileFacts | None:
    store, key, prototype = group.store, _key(group, name), default_buffer_prototype()
    is_chunk = not name.endswith("zarr.json")
    try:
        length: int = await store.getsize(key)
        if wanted not in (None, length):
            return FileFacts(length, "not looked at")
        if is_chunk and not whole:
            # A chunk's own checksum stands at its end; Zarr holds its content against that when it is read.
            found = await store.get(key, prototype, byte_range=SuffixByteRequest(CHECKSUM_BYTES))
            return None if found is None else FileFacts(length, found.to_bytes().hex())
        found = await store.get(key, prototype)
    except FileNotFoundError:
        return None
    if found is None:
        return None
    content = found.to_bytes()
    body, own = (content[:-CHECKSUM_BYTES], content[-CHECKSUM_BYTES:]) if is_chunk else (content, None)
    checksum = google_crc32c.value(body).to_bytes(CHECKSUM_BYTES, "little")
    return FileFacts(len(content), checksum.hex() if own in (None, checksum) else "not its own")
