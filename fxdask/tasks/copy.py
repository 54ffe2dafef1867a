"""The task that copies some rows of samples, so that all later passes and all workers read the copy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.store.parts import write_part
from fxdask.store.sources import Source
from fxdask.tasks.reading import read_range
from fxdask.tasks.scan import digest_of_rows

__all__ = ["CopiedRows", "copy_range", "copy_rows"]


@dataclass(frozen=True)
class CopiedRows:
    """What is known about rows after they are copied."""

    n_rows: int
    digest: bytes
    """Of their content; empty if it was not asked for."""


def copy_rows(rows: NDArray, url: str, index: int, with_digest: bool) -> CopiedRows:
    """(sample, feature) raw samples -> their file, their number, and the digest of their content."""
    rows = np.ascontiguousarray(rows)
    write_part(url, index, rows)
    return CopiedRows(len(rows), digest_of_rows(rows) if with_digest else b"")


def copy_range(samples: Source, start: int, stop: int | None, url: str, index: int) -> CopiedRows:
    """Range of raw samples -> its file, its number of rows, and the digest of their content."""
    return copy_rows(read_range(samples, start, stop), url, index, True)
