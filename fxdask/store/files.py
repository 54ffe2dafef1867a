"""Single files beside stores."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.store.paths import is_local

__all__ = ["array_file", "check_file_path", "write_atomically"]


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
