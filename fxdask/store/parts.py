"""Copies of samples as consecutive .npy files in a hidden folder beside a store, for the time of one call."""

from __future__ import annotations

import io
import shutil
from contextlib import suppress
from dataclasses import dataclass
from glob import escape
from itertools import accumulate
from pathlib import Path
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fxdask.store.paths import files_at, is_local, sibling_url
from fxdask.store.retry import retried, writing

__all__ = ["PartsAddress", "create_parts", "remove_parts", "remove_parts_beside", "write_part"]

WORD = "samples-"


@dataclass(frozen=True, kw_only=True)
class PartsAddress:
    """Rows in consecutive .npy files of one folder, which only the call that wrote them uses."""

    url: str
    lengths: tuple[int, ...]
    """Rows of each file."""
    n_features: int
    dtype: str
    digest: str | None = None
    """Of the content, if it was computed while the rows were copied."""

    @property
    def n_rows(self) -> int:
        """Rows of all files."""
        return sum(self.lengths)

    def pieces(self, start: int, stop: int) -> list[tuple[str, int, int]]:
        """The files that hold a range of rows, each with the first and last row that is taken from it."""
        stops = np.fromiter(accumulate(self.lengths), np.int64, len(self.lengths))
        found = []
        for index in range(int(np.searchsorted(stops, start, side="right")), len(stops)):
            first = int(stops[index]) - self.lengths[index]
            if first >= stop:
                break
            low, high = max(start - first, 0), min(stop - first, self.lengths[index])
            if low < high:
                found.append((part_url(self.url, index), low, high))
        return found


def part_url(url: str, index: int) -> str:
    """The path or URL of one file."""
    return f"{url}/{index:08}.npy"


def create_parts(store: str) -> str:
    """A new, empty folder beside a store; of an object store only a name, as it has no folders."""
    url = sibling_url(store, f"{WORD}{uuid4().hex}")
    if is_local(url):
        with writing(url):
            Path(url).mkdir(parents=True)
    return url


@retried
def write_part(url: str, index: int, rows: NDArray) -> None:
    """Write one whole file; the same rows may be written twice, also at the same time."""
    target = part_url(url, index)
    with writing(target):
        if not is_local(target):
            stream = io.BytesIO()
            np.lib.format.write_array(stream, rows, allow_pickle=False)
            files, path = files_at(target)
            files.pipe_file(path, stream.getvalue())
            return
        # A name of its own: after a lost connection two workers may write the same part.
        draft = Path(f"{target}-{uuid4().hex}")
        try:
            with draft.open("wb") as file:
                np.lib.format.write_array(file, rows, allow_pickle=False)
            draft.replace(target)
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)


def remove_parts(url: str) -> None:
    """Remove a folder of copies; an error must not hide an error of the work."""
    with suppress(Exception):  # clients of object stores have exceptions of their own
        if is_local(url):
            shutil.rmtree(url)
        else:
            files, path = files_at(url)
            files.rm(path, recursive=True)


def remove_parts_beside(store: str) -> None:
    """Remove the copies that killed calls left beside a store; the caller holds its lease."""
    files, path = files_at(sibling_url(store, WORD))
    with writing(store):
        left = files.glob(f"{escape(path)}*")
    for folder in left:
        remove_parts(folder if is_local(store) else files.unstrip_protocol(folder))
