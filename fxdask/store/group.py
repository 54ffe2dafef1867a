"""One Zarr group with an fxdask header: create it, open it, and refuse anything else."""

from __future__ import annotations

import asyncio
import math
import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
from fxdask.store.asynchronous import exists, run, run_at
from fxdask.store.card import CARD, model_card
from fxdask.store.damage import check_count, damaged
from fxdask.store.layout import EARLIER_MANIFEST, FORMAT, MANIFEST, READABLE_FORMATS
from fxdask.store.manifest import Manifest, has_manifest, write_manifest
from fxdask.store.paths import is_hidden, is_local, is_partial, object_store, sibling_url, zarr_location
from fxdask.store.retry import reading, retried, writing

__all__ = [
    "Mode",
    "begin_group",
    "check_file_size",
    "check_room",
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
    "writing_part",
]

HEADER = "fxdask"
KINDS = ("model", "scores", "ranking")
LARGEST_HEADER = 2**28
COUNTS = {"scores": {"n_samples": 0, "rows_per_chunk": 1}, "ranking": {"features_per_block": 1}}
"""By kind, the numbers of a header by which parts of the store are found, and the least that each can be."""
OWN_CODECS = (("BytesCodec", "Crc32cCodec"), ("VLenUTF8Codec", "Crc32cCodec"))

Mode = Literal["r", "r+"]


@retried
def peek_header(url: str) -> dict[str, Any] | None:
    """The header of the store at this path or URL; None if nothing is there, or only an interrupted creation.

    Anything but an fxdask store of a readable format is an error.
    """
    opened = _open_if_exists(url, "r")
    return None if opened is None else opened[1]


def _open_if_exists(url: str, mode: Mode) -> tuple[zarr.Group, dict[str, Any]] | None:
    if is_local(url):
        _check_regular_files(url)
    with reading(url, "the header"):
        group = _open_zarr_group(url, mode)
        if group is None:
            return None
        header = _checked_header(group, url)
        return None if header is None else (group, header)


def _check_regular_files(url: str) -> None:
    """Refuse devices, pipes and huge files before they are read as a header or a manifest."""
    own = (f"{spec.name}/{file}" for spec in (MANIFEST, EARLIER_MANIFEST) for file in ("zarr.json", "c/0"))
    for name in ("zarr.json", *own):
        file = Path(url, name)
        if file.exists() and (not file.is_file() or file.stat().st_size > LARGEST_HEADER):
            raise damaged(url, f"{name} is not a regular file of at most {format_bytes(LARGEST_HEADER)}")


def _open_zarr_group(url: str, mode: Mode) -> zarr.Group | None:
    location = zarr_location(url)
    try:
        # Zarr's format 2 has codecs that unpickle, so only format 3 is opened.
        return zarr.open_group(location, mode=mode, zarr_format=3)
    except (FileNotFoundError, zarr.errors.GroupNotFoundError, zarr.errors.ContainsArrayError):
        if _is_occupied(url):
            raise StoreExistsError(f"{url} exists but is not an fxdask store; choose another path") from None
        return None
    except (zarr.errors.BaseZarrError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise StoreFormatError(f"{url} is not a readable Zarr group ({error}); choose another path") from error


def _checked_header(group: zarr.Group, url: str) -> dict[str, Any] | None:
    """The header of an open group; None if the creation of the store was interrupted."""
    header = group.attrs.asdict().get(HEADER)
    if not isinstance(header, dict) or not isinstance(header.get("format"), int):
        raise StoreExistsError(f"{url} is a Zarr group but not an fxdask store; choose another path")
    if header["format"] not in READABLE_FORMATS:
        remedy = "upgrade fxdask" if header["format"] > FORMAT else "fit into a new store"
        *earlier, last = map(str, READABLE_FORMATS)
        raise StoreFormatError(
            f"{url} has store format {header['format']} but this fxdask reads formats "
            f"{', '.join(earlier)} and {last}; {remedy}"
        )
    if header.get("begun"):
        return None
    for name in ("identity", "sizes"):
        if not isinstance(header.get(name, {}), dict):
            raise damaged(url, f"its header has {name} {header[name]!r:.60} instead of a JSON object")
    if header.get("kind") not in KINDS or not isinstance(header.get("finished"), bool):
        raise damaged(url, "its header does not say what the store holds, or whether it is finished")
    for name, least in COUNTS.get(header["kind"], {}).items():
        check_count(url, name, header.get(name, header.get("sizes", {}).get(name)), least)
    # The manifest is written last: a store without it is unfinished, even if its header says otherwise.
    return header | {"finished": header["finished"] and has_manifest(group)}


def open_group(url: str, kind: str, mode: Mode = "r", *, finished: bool = True) -> tuple[zarr.Group, dict[str, Any]]:
    """Open a store of this kind ("model", "scores" or "ranking"); with ``finished``, refuse an unfinished one."""
    try:
        opened = _open_if_exists(url, mode)
    except StoreExistsError as error:
        raise StoreFormatError(str(error).replace("; choose another path", "")) from None
    if opened is None:
        raise StoreFormatError(f"there is no fxdask store at {url}; check the path")
    group, header = opened
    if header["kind"] != kind:
        raise StoreFormatError(f"{url} holds {header['kind']!r}, not {kind!r}; check the path")
    if finished and not header["finished"]:
        raise StoreUnfinishedError(f"{url} is unfinished; run the same call again to finish it")
    if finished:
        Manifest(group, url).check_metadata()
    return group, header


def stored_array(group: zarr.Group, url: str, name: str) -> zarr.Array:
    """One array of an open store; a missing array is an error.

    Zarr does not store the setting ``write_empty_chunks``, so it is set at every opening. Without it
    a block of zeros would not be written.
    """
    with reading(url, name):
        array = group.get(name)
    if not isinstance(array, zarr.Array):
        raise damaged(url, f"it has no array {name}")
    codecs = tuple(type(codec).__name__ for codec in array.metadata.codecs)  # type: ignore[union-attr]
    if codecs not in OWN_CODECS:
        raise damaged(url, f"{name} has the codecs {', '.join(codecs)}, which fxdask never writes")
    return array.with_config({"write_empty_chunks": True})


@retried
def has_chunk(array: zarr.Array, index: tuple[int, ...]) -> bool:
    """Whether the file of a chunk exists; Zarr reads a missing chunk as zeros."""
    return exists(array.store_path / array.metadata.encode_chunk_key(index))


@retried
def check_file_size(array: zarr.Array, index: tuple[int, ...], url: str) -> None:
    """Refuse a chunk with more bytes in its metadata than in its file, before memory for it is allocated."""
    claimed = math.prod(array.chunks) * array.dtype.itemsize
    chunk = array.store_path / array.metadata.encode_chunk_key(index)
    stored = run_at(chunk.store, chunk.store.getsize(chunk.path))
    if claimed > stored:
        raise damaged(url, f"{chunk.path} has {stored:,} bytes but its metadata claim {claimed:,} bytes of values")


@retried
def count_files(array: zarr.Array) -> int:
    """Number of chunk files of an array."""

    async def count() -> int:
        return len([name async for name in array.store.list_prefix(f"{array.path}/c") if not is_partial(name)])

    return run_at(array.store, count())


Part = tuple[zarr.Array, tuple[slice, ...], NDArray]
"""An array, a selection of it and the values to write there."""


def write_together(parts: Sequence[Part], last: Part | None = None) -> None:
    """Write all parts concurrently, because a write mostly waits for storage; then the last one, such as a mark."""

    async def write_all() -> None:
        await asyncio.gather(*(array.async_array.setitem(selection, values) for array, selection, values in parts))
        if last is not None:
            array, selection, values = last
            await array.async_array.setitem(selection, values)

    run_at(parts[0][0].store, write_all())


@contextmanager
def writing_part(group: zarr.Group, url: str, header: Mapping[str, Any]) -> Iterator[None]:
    """Write a part of a result in a ``with`` block; a late write is refused, or withdrawn.

    A worker that lost its connection does not know that its job has ended, and it may be suspended at any line.
    """
    _check_writable(group, url, header)
    with writing(url):
        yield
        if is_local(url) and not has_metadata(group, ""):
            if is_hidden(url):  # else somebody may have put other files there
                _withdraw(url)
            raise _ended(url)


def _check_writable(group: zarr.Group, url: str, header: Mapping[str, Any]) -> None:
    """Refuse a late write: it would create a moved store again or change a finished one.

    In an object store, where jobs work at the final path, it would change the store of another job.
    """
    if not has_metadata(group, "") or has_manifest(group):
        raise _ended(url)
    if not is_local(url) and (peek_header(url) or {}).get("job") != header.get("job"):
        raise StoreWriteError(
            f"{url} was replaced by another job while this part was computed; choose another path for one of them"
        )


def _ended(url: str) -> StoreWriteError:
    return StoreWriteError(
        f"{url} was finished, moved or removed while this part was computed; "
        "run the same call again if the result is incomplete"
    )


def _withdraw(url: str) -> None:
    """Remove what late writes left in a hidden folder whose store was moved to its final path."""
    for folder, _, files in os.walk(url, topdown=False):
        with suppress(OSError):  # another late write may do the same
            for name in files:
                if name != "zarr.json":  # of a new store that another call is creating
                    Path(folder, name).unlink(missing_ok=True)
            Path(folder).rmdir()


def has_metadata(group: zarr.Group, name: str) -> bool:
    """Whether the metadata of an array exist now; with an empty name, those of the group."""
    return exists(group.store_path / name / "zarr.json")


def begin_group(url: str, kind: str, names: Iterable[str]) -> zarr.Group:
    """Create an empty group and replace an earlier fxdask store; without a full header it counts as no store.

    A folder with other files than those of the named arrays is refused.
    """
    if is_local(url) and Path(url).is_dir():
        refuse_foreign_files(url, names)
    with writing(url):
        old = _rename_to_old(url)
        begun: Any = {HEADER: {"kind": kind, "format": FORMAT, "begun": True}}
        group = zarr.open_group(zarr_location(url), mode="w", attributes=begun)
        _discard(old)
        return group


def _rename_to_old(url: str) -> Path | None:
    """Rename a folder before it is deleted, because an interrupted deletion would leave a part of the store."""
    if not is_local(url) or not Path(url).exists():
        return None
    return Path(url).rename(sibling_url(url, f"old-{uuid4().hex}"))


def _discard(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def write_header(group: zarr.Group, url: str, kind: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Write the header of an unfinished store, after all arrays that it describes."""
    header = {**facts, "kind": kind, "format": FORMAT, "finished": False}
    with writing(url):
        group.attrs.put({HEADER: header})
    return header


def finish_group(group: zarr.Group, url: str, header: dict[str, Any], **facts: Any) -> None:
    """Mark the store as finished and write its manifest: the last writes of a job."""
    header.update(facts, finished=True)
    with writing(url):
        group.attrs.put({HEADER: header, CARD: model_card(header)})
        write_manifest(group)


def replace_store(url: str, final: str) -> None:
    """Move a finished store to its final path and remove the store that it replaces."""
    if url == final:
        return
    with writing(final):
        old = _rename_to_old(final)
        Path(url).rename(final)
        _discard(old)


def refuse_foreign_files(url: str, names: Iterable[str]) -> None:
    """Refuse to replace a store whose folder holds files that fxdask did not write."""
    own = {"zarr.json", EARLIER_MANIFEST.name, *(name.partition("/")[0] for name in names)}
    foreign = sorted(name for name in _entries(url) if name not in own and not is_partial(name))
    if foreign:
        raise StoreExistsError(
            f"{url} holds {', '.join(foreign[:3])}, which fxdask did not write; move that away, or choose another path"
        )


def _entries(url: str) -> list[str]:
    if is_local(url):
        return os.listdir(url)

    async def names() -> list[str]:
        return [name async for name in object_store(url).list_dir("")]

    return run(names())


def remove_group(url: str) -> None:
    """Remove a store that this call created."""
    if is_local(url):
        shutil.rmtree(url, ignore_errors=True)
    else:
        run(object_store(url).delete_dir(""))


def check_room(url: str, needed_bytes: int) -> None:
    """Refuse a job that needs more bytes than the disk has free."""
    if not is_local(url):
        return
    folder = Path(url).absolute()
    while not folder.exists():
        folder = folder.parent
    free = shutil.disk_usage(folder).free
    if needed_bytes > free:
        raise DiskSpaceError(
            f"{url} needs {format_bytes(needed_bytes)} but the disk has {format_bytes(free)} free; "
            "free some disk space, or choose a path on another disk"
        )


def _is_occupied(url: str) -> bool:
    if not is_local(url):
        return not run(object_store(url).is_empty(""))
    path = Path(url)
    return any(path.iterdir()) if path.is_dir() else os.path.lexists(url)
