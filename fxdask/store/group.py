"""One Zarr group with an fxdask header: opening it, refusing what it is not, and clear words when a write fails."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

import locket
import zarr
import zarr.errors
from numpy.typing import NDArray
from zarr.core.sync import sync
from zarr.storage import FsspecStore

from fxdask.errors import (
    DiskSpaceError,
    StoreExistsError,
    StoreFormatError,
    StoreUnfinishedError,
    StoreWriteError,
)
from fxdask.plan import format_bytes
from fxdask.store.layout import FORMAT, MANIFEST
from fxdask.store.manifest import Manifest, has_manifest, write_manifest

__all__ = [
    "Mode",
    "begin_group",
    "check_room",
    "check_still_there",
    "finish_group",
    "has_chunk",
    "move_into_place",
    "only_one_at_a_time",
    "open_group",
    "peek_header",
    "reading",
    "refuse_foreign_files",
    "remove_group",
    "store_url",
    "stored_array",
    "working_url",
    "write_header",
    "write_together",
    "writing",
]

HEADER = "fxdask"
KINDS = ("model", "scores")

Mode = Literal["r", "r+"]


def store_url(place: str | Path) -> str:
    """A path or URL -> an address that means the same in every process of this machine."""
    text = str(place).removeprefix("file://")
    return str(Path(text).expanduser().resolve()) if _is_local(text) else text


def peek_header(url: str) -> dict[str, Any] | None:
    """The header of the store at this place; None where there is nothing, or only a creation that was cut off.

    Something else than an fxdask store of a readable format is an error.
    """
    found = _look(url, "r")
    return None if found is None else found[1]


def _look(url: str, mode: Mode) -> tuple[zarr.Group, dict[str, Any]] | None:
    try:
        group = zarr.open_group(url, mode=mode)
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
    return array.with_config({"write_empty_chunks": True})


def has_chunk(array: zarr.Array, index: tuple[int, ...]) -> bool:
    """Whether a chunk is there by name: where it is not, Zarr reads zeros without a word."""
    return sync((array.store_path / array.metadata.encode_chunk_key(index)).exists())


def write_together(parts: Sequence[tuple[zarr.Array, tuple[slice, ...], NDArray]]) -> None:
    """(array, place, values) written at the same time: each write waits more than it works."""

    async def write_all() -> None:
        await asyncio.gather(*(array.async_array.setitem(place, values) for array, place, values in parts))

    sync(write_all())


def check_still_there(url: str) -> None:
    """Refuse a write into a store that is gone: a worker that was cut off may come late, and would make it anew."""
    if _is_local(url) and not (Path(url) / "zarr.json").is_file():
        raise StoreWriteError(f"{url} is gone: it was finished and moved, or taken away, while this was computed")


def begin_group(url: str, kind: str) -> zarr.Group:
    """An empty group in place of whatever fxdask store was there; until it has a header it counts as nothing."""
    with writing(url):
        aside = _move_aside(url)
        group = zarr.open_group(url, mode="w", attributes={HEADER: {"kind": kind, "format": FORMAT, "begun": True}})
        _discard(aside)
        return group


def _move_aside(url: str) -> Path | None:
    """Rename a folder in one step: one that is deleted file by file could be left neither there nor gone."""
    if not _is_local(url) or not Path(url).exists():
        return None
    return Path(url).rename(_beside(url, f"old-{uuid4().hex}"))


def _discard(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)


def _beside(url: str, word: str) -> Path:
    place = Path(url)
    return place.with_name(f".{place.name}.{word}")


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


def working_url(url: str, token: str) -> str:
    """Where to work on what shall stand at ``url`` once it is complete: a hidden folder beside it, named by the token.

    Object stores cannot rename, so there the work is done in place.
    """
    return str(_beside(url, f"next-{token}")) if _is_local(url) else url


@contextmanager
def only_one_at_a_time(url: str) -> Iterator[None]:
    """Refuse to work on what another process of this machine is working on; its end, however it comes, lifts that.

    Two that finished the same would move each other's result away. Object stores have no such lock.
    """
    if not _is_local(url) or not Path(url).parent.is_dir():
        yield
        return
    lock = _beside(url, "lock")
    refusal = f"another call is working on {url}; wait for its end, or choose another path"
    held = locket.lock_file(str(lock), timeout=0)
    try:
        with writing(url):
            held.acquire()
    except locket.LockError:
        raise StoreExistsError(refusal) from None
    try:
        # Whoever held it before may have removed the file between the opening and the lock.
        if not lock.exists():
            raise StoreExistsError(refusal)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)
    finally:
        held.release()


def move_into_place(url: str, final: str) -> None:
    """Let a finished store take its place, and that of the store that it replaces."""
    if url == final:
        return
    with writing(final):
        aside = _move_aside(final)
        Path(url).rename(final)
        _discard(aside)


def refuse_foreign_files(url: str, names: Iterable[str]) -> None:
    """Refuse to replace a store in whose folder there is something that fxdask did not put there."""
    if not _is_local(url):
        return
    own = {"zarr.json", MANIFEST.name, *(name.partition("/")[0] for name in names)}
    foreign = sorted(entry.name for entry in Path(url).iterdir() if entry.name not in own)
    if foreign:
        raise StoreExistsError(
            f"{url} holds {', '.join(foreign[:3])}, which fxdask did not put there; "
            "move that away, or choose another path"
        )


def remove_group(url: str) -> None:
    """Take away a store that this call created."""
    if _is_local(url):
        shutil.rmtree(url, ignore_errors=True)
    else:
        sync(FsspecStore.from_url(url).delete_dir(""))


def check_room(url: str, needed_bytes: int) -> None:
    """Refuse a job that needs more disk than there is, with both numbers."""
    if not _is_local(url):
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


@contextmanager
def reading(url: str, name: str) -> Iterator[None]:
    """Turn a checksum that does not match, or metadata that make no sense, into a sentence with the array's name."""
    try:
        yield
    except StoreFormatError:
        raise
    except (ValueError, TypeError, KeyError, zarr.errors.BaseZarrError) as error:
        raise StoreFormatError(f"{url} is damaged: {name} cannot be read ({' '.join(str(error).split())})") from error


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Turn the operating system's refusal of a write into one sentence that says what to do."""
    try:
        yield
    except StoreWriteError:
        raise
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.ENOSPC:
            remedy = "free some room and make the same call again: it takes up the work"
        else:
            remedy = "once that is mended the same call takes up the work"
        raise StoreWriteError(f"could not write to {url}: {reason}; {remedy}") from error


def _is_local(url: str) -> bool:
    return "://" not in url


def _is_occupied(url: str) -> bool:
    if not _is_local(url):
        return not sync(FsspecStore.from_url(url).is_empty(""))
    place = Path(url)
    return place.is_file() or (place.is_dir() and any(place.iterdir()))
