"""Single files beside stores."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, StoreWriteError
from fxdask.store.paths import files_at, is_local

__all__ = ["array_file", "check_file_path", "copy_objects", "write_atomically", "write_file"]


def check_file_path(path: str | Path, what: str) -> None:
    """Refuse a path at which no file can be written; ``what`` is written there, such as "report"."""
    folder = Path(path).absolute().parent
    reasons = {
        "it is a URL, and only local files are written": not is_local(str(path)),
        "it is a folder": Path(path).is_dir(),
        "its folder does not exist": not folder.is_dir(),
        "its folder is read-only": folder.is_dir() and not os.access(folder, os.W_OK),
    }
    for reason, holds in reasons.items():
        if holds:
            raise InvalidInputError(f"no {what} can be written to {path}: {reason}; choose another path")


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers find either the old content or the new content, never a part."""
    draft = path.with_name(f".{path.name}.begun")
    try:
        # A text may contain a path that is not valid UTF-8; the file is written nevertheless.
        draft.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
        draft.replace(path)
    except OSError:
        # On a full disk, a part of a file would only take space.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: str | bytes, what: str) -> None:
    """Write a file atomically; ``what`` it is, such as "report", is named if that fails."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise StoreWriteError(
            f"no {what} can be written to {path}: {error.strerror or error}; choose another path"
        ) from error


@contextmanager
def array_file(path: Path, shape: tuple[int, ...]) -> Iterator[NDArray[np.float64]]:
    """A new .npy file to fill in a ``with`` block, without its content in memory; it gets its name at the end."""
    check_file_path(path, "array")
    draft = path.with_name(f".{path.name}.begun")
    try:
        array = np.lib.format.open_memmap(draft, mode="w+", dtype=np.float64, shape=shape)
        yield array
        array.flush()
        draft.replace(path)
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def copy_objects(source: str, target: str, last: Sequence[str]) -> None:
    """Copy all objects below a URL of an object store to another URL, on the server; some names last, in this order."""
    files, root = files_at(source)
    _, goal = files_at(target)
    names = [name.removeprefix(f"{root}/") for name in files.find(root)]
    for group in ([name for name in names if name not in last], *([name] for name in last if name in names)):
        if group:
            files.copy([f"{root}/{name}" for name in group], [f"{goal}/{name}" for name in group])
