"""Raw samples on their way into a task: read ahead, checked, counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.evidence import Tally
from fxdask.kernels.preparation import checked_rows
from fxdask.kernels.scratch import Scratch
from fxdask.store.samples import Room, Source, open_rows

__all__ = ["as_declared", "read_ahead", "read_range"]


def read_range(samples: Source, start: int, stop: int | None) -> NDArray:
    """The range of raw samples: read from where they are, or with no ``stop`` already the range itself."""
    return np.asarray(samples) if stop is None else open_rows(samples)(start, stop)


def as_declared(rows: NDArray, shape: tuple[int, int], dtype: str) -> NDArray:
    """A chunk of a Dask array, unchanged, if it is what the array promised."""
    rows = np.asarray(rows)
    if rows.shape != shape or rows.dtype != np.dtype(dtype):
        raise InvalidInputError(
            f"X is a Dask array that promised {np.dtype(dtype)} of shape {shape} "
            f"but gave {rows.dtype} of shape {rows.shape}"
        )
    return rows


def read_ahead(samples: Source, ranges: Iterable[tuple[int, int]], tally: Tally) -> Iterator[tuple[int, NDArray]]:
    """Each range of raw samples with its start, the next one being read while this one is worked on.

    No more than those two are in memory, if whoever takes a range lets go of it before the next.

    Files may have changed since they were surveyed, so what is read from them is checked again.
    """
    read = open_rows(samples, _two_in_turn())
    if isinstance(samples, np.ndarray):
        for start, stop in ranges:
            yield start, read(start, stop)
        return
    with ThreadPoolExecutor(1, "fxdask-read") as reader:
        coming: Future[NDArray] | None = None
        coming_start = 0
        for start, stop in [*ranges, (0, 0)]:
            here, here_start = coming, coming_start
            coming, coming_start = (reader.submit(read, start, stop) if stop else None), start
            if here is not None:
                rows, here = checked_rows(here.result(), here_start), None
                tally.bytes_read += rows.nbytes
                yield here_start, rows
                del rows


def _two_in_turn() -> Room:
    """Room for one read after the other: each is overwritten by the next but one."""
    scratch, names = Scratch(), cycle(("this", "next"))
    return lambda shape, dtype: scratch(next(names), shape, dtype)
