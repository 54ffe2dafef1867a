"""One Zarr group with an fxdask header: opening it, and refusing what it is not."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import zarr
import zarr.errors
from numpy.typing import NDArray

from fxdask.errors import (
    DiskSpaceError,
    StoreExistsError,
    StoreFormatError,
    StoreUnfinishedError,
    StoreWriteError,
)
from fxdask.sizes import format_bytes
from fxdask.store.asynchronous import run
from fxdask.store.layout import FORMAT, MANIFEST
from fxdask.store.manifest import Manifest, has_manifest, write_manifest
from fxdask.store.paths import is_local, is_partial, object_store, sibling_url, zarr_location
from fxdask.store.retry import reading, retried, writing

__all__ = [
    "Mode",
    "begin_group",
    "check_file_size",
    "check_room",
    "check_writable",
    "count_files",
    "finish_group",
    "has_chunk",
    "has_metadata",
    "open_group",
    "peek_header",
    "refuse_foreign_files",
    "remove_group",
    "replace_store",
    "stored_array",
    "write_header",
    "write_together",
]

HEADER = "fxdask"
KINDS = ("model", "scores")
LARGEST_HEADER = 2**28
OWN_CODECS = (("BytesCodec", "Crc32cCodec"), ("VLenUTF8Codec", "Crc32cCodec"))

Mode = Literal["r", "r+"]


@retried
def peek_header(url: str) -> dict[str, Any] | None:
    """The header of the store at this place; None where there is nothing, or only a creation that was cut off.

    Something else than an fxdask store of a readable format is an error.
    """
    found = _look(url, "r")
    return None if found is None else found[1]


def _look(url: str, mode: Mode) -> tuple[zarr.Group, dict[str, Any]] | None:
    if is_local(url):
        _check_plain_files(url)
    with reading(url, "the header"):
        return _looked(url, mode)


def _check_plain_files(url: str) -> None:
    """Refuse devices, pipes and endless files where there should be a header or a manifest, before they are read."""
    for name in ("zarr.json", f"{MANIFEST.name}/zarr.json", f"{MANIFEST.name}/c/0"):
        file = Path(url, name)
        if file.exists() and (not file.is_file() or file.stat().st_size > LARGEST_HEADER):
            raise StoreFormatError(
                f"{url} is damaged: {name} is no file, or one of more than {format_bytes(LARGEST_HEADER)}"
            )


def _looked(url: str, mode: Mode) -> tuple[zarr.Group, dict[str, Any]] | None:
    place = zarr_location(url)
    try:
        # Version 2 has codecs that unpickle; fxdask never wrote it.
        group = zarr.open_group(place, mode=mode, zarr_format=3)
    except (FileNotFoundError, zarr.errors.GroupNotFoundError, zarr.errors.ContainsArrayError):
        if _is_occupied(url):
            raise StoreExistsError(f"{url} exists but is not an fxdask store; choose another path") from None
        return None
    except (zarr.errors.BaseZarrError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreFormatError(f"{url} is not a readable Zarr group: {error}") from error
    header = group.attrs.asdict().get(HEADER)
    if not isinstance(header, dict) or not isinstance(header.get("format"), int):
        raise StoreExistsError(f"{url} is a Zarr group but not an fxdask store; choose another path")
    if header["format"] != FORMAT:
        remedy = "upgrade fxdask" if header["format"] > FORMAT else "fit into a new store"
        raise StoreFormatError(
            f"{url} has store format {header['format']} but this fxdask reads format {FORMAT}; {remedy}"
        )
    if header.get("begun"):
        return None
    for name in ("identity", "sizes"):
        if not isinstance(header.get(name, {}), dict):
            raise StoreFormatError(f"{url} is damaged: its header has {name} {header[name]!r:.60}")
    if header.get("kind") not in KINDS or not isinstance(header.get("finished"), bool):
        raise StoreFormatError(f"{url} is damaged: its header does not say what it holds, or whether that is complete")
    # The manifest is the last thing that is written: without it the store is not finished, whatever the header says.
    return group, header | {"finished": header["finished"] and has_manifest(group)}


def open_group(url: str, kind: str, mode: Mode = "r", *, finished: bool = True) -> tuple[zarr.Group, dict[str, Any]]:
    """Open a store of this kind ("model" or "scores"); with ``finished``, only a finished one."""
    try:
        found = _look(url, mode)
    except StoreExistsError as error:
        raise StoreFormatError(str(error).replace("; choose another path", "")) from None
    if found is None:
        raise StoreFormatError(f"there is no fxdask store at {url}")
    group, header = found
    if header["kind"] != kind:
        raise StoreFormatError(f"{url} holds {header['kind']!r}, not {kind!r}")
    if finished and not header["finished"]:
        raise StoreUnfinishedError(f"{url} was begun but never finished; run the same call again to finish it")
    if finished:
        Manifest(group, url).check_metadata()
    return group, header


def stored_array(group: zarr.Group, url: str, name: str) -> zarr.Array:
    """One array of an open store; its absence is damage.

    Whether chunks of nothing but the fill value are written is no part of a stored array: it must
    be asked for at every opening, or a block of zeros would be missing.
    """
    with reading(url, name):
        array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise StoreFormatError(f"{url} is damaged: it has no array {name}")
    codecs = tuple(type(codec).__name__ for codec in array.metadata.codecs)  # type: ignore[union-attr]
    if codecs not in OWN_CODECS:
        raise StoreFormatError(f"{url} is damaged: {name} is encoded by {', '.join(codecs)}, which fxdask never does")
    return array.with_config({"write_empty_chunks": True})


@retried
def has_chunk(array: zarr.Array, index: tuple[int, ...]) -> bool:
    """Whether a chunk is there by name: where it is not, Zarr reads zeros without a word."""
    return run((array.store_path / array.metadata.encode_chunk_key(index)).exists())


@retried
def check_file_size(array: zarr.Array, index: tuple[int, ...], url: str) -> None:
    """Refuse a chunk that claims more values than its file has bytes, before room for them is made."""
    claimed = math.prod(array.chunks) * array.dtype.itemsize
    place = array.store_path / array.metadata.encode_chunk_key(index)
    found = run(place.store.getsize(place.path))
    if claimed > found:
        raise StoreFormatError(
            f"{url} is damaged: {place.path} claims {claimed:,} bytes of values but is a file of {found:,}"
        )


@retried
def count_files(array: zarr.Array) -> int:
    """How many files an array has besides its metadata."""

    async def counted() -> int:
        return len([name async for name in array.store.list_prefix(f"{array.path}/c") if not is_partial(name)])

    return run(counted())


def write_together(parts: Sequence[tuple[zarr.Array, tuple[slice, ...], NDArray]]) -> None:
    """(array, place, values) written at the same time: each write waits more than it works."""

    async def write_all() -> None:
        await asyncio.gather(*(array.async_array.setitem(place, values) for array, place, values in parts))

    run(write_all())


def check_writable(group: zarr.Group, url: str, header: Mapping[str, Any]) -> None:
    """Refuse a write that comes too late: a worker that was cut off does not know that its job is over.

    It would make a store anew that was moved into its place, spoil one that is finished, or, in an
    object store, where work is done in place, write into the one that another job has begun.
    """
    if not has_metadata(group, "") or has_manifest(group):
        raise StoreWriteError(f"{url} was finished and moved, or taken away, while this was computed")
    if not is_local(url) and (peek_header(url) or {}).get("job") != header.get("job"):
        raise StoreWriteError(f"{url} was given to another job while this was computed")


def has_metadata(group: zarr.Group, name: str) -> bool:
    """Whether an array, or with no name the group itself, is there now."""
    return bool(run((group.store_path / name / "zarr.json").exists()))


def begin_group(url: str, kind: str, names: Iterable[str]) -> zarr.Group:
    """An empty group in place of whatever fxdask store was there; until it has a header it counts as nothing.

    Other files than those of the arrays of these names are not replaced.
    """
    if is_local(url) and Path(url).is_dir():
        refuse_foreign_files(url, names)
    with writing(url):
        aside = _rename_aside(url)
        begun: Any = {HEADER: {"kind": kind, "format": FORMAT, "begun": True}}
        group = zarr.open_group(zarr_location(url), mode="w", attributes=begun)
        _discard(aside)
        return group


def _rename_aside(url: str) -> Path | None:
    """Rename a folder in one step: one that is deleted file by file could be left neither there nor gone."""
    if not is_local(url) or not Path(url).exists():
        return None
    return Path(url).rename(sibling_url(url, f"old-{uuid4().hex}"))


def _discard(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def write_header(group: zarr.Group, url: str, kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """The header, once every array that it speaks of is there."""
    header = {**facts, "kind": kind, "format": FORMAT, "finished": False}
    with writing(url):
        group.attrs.put({HEADER: header})
    return header


def finish_group(group: zarr.Group, url: str, header: dict[str, Any], **facts: Any) -> None:
    """Mark the store as finished, and take down all of its files: the last write of a job."""
    header.update(facts, finished=True)
    with writing(url):
        group.attrs.put({HEADER: header})
        write_manifest(group)


def replace_store(url: str, final: str) -> None:
    """Let a finished store take its place, and that of the store that it replaces."""
    if url == final:
        return
    with writing(final):
        aside = _rename_aside(final)
        Path(url).rename(final)
        _discard(aside)


def refuse_foreign_files(url: str, names: Iterable[str]) -> None:
    """Refuse to replace a store in whose folder there is something that fxdask did not put there."""
    own = {"zarr.json", MANIFEST.name, *(name.partition("/")[0] for name in names)}
    foreign = sorted(name for name in _entries(url) if name not in own and not is_partial(name))
    if foreign:
        raise StoreExistsError(
            f"{url} holds {', '.join(foreign[:3])}, which fxdask did not put there; "
            "move that away, or choose another path"
        )


def _entries(url: str) -> list[str]:
    if is_local(url):
        return os.listdir(url)

    async def listed() -> list[str]:
        return [name async for name in object_store(url).list_dir("")]

    return run(listed())


def remove_group(url: str) -> None:
    """Take away a store that this call created."""
    if is_local(url):
        shutil.rmtree(url, ignore_errors=True)
    else:
        run(object_store(url).delete_dir(""))


def check_room(url: str, needed_bytes: int) -> None:
    """Refuse a job that needs more disk than there is, with both numbers."""
    if not is_local(url):
        return
    folder = Path(url).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise DiskSpaceError(
            f"{url} needs {format_bytes(needed_bytes)} but the disk has {format_bytes(free)} free; "
            "free some room, choose another path, or ask for fewer nodes"
        )


def _is_occupied(url: str) -> bool:
    if not is_local(url):
        return not run(object_store(url).is_empty(""))
    place = Path(url)
    return any(place.iterdir()) if place.is_dir() else os.path.lexists(url)  # whatever it is, it is not ours
