"""The tasks on one range of raw samples before a fit: scan, probe, staging."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.preprocessing import FeatureSummary, checked_rows, merge_summaries, summarize
from fxdask.sizes import row_ranges
from fxdask.store.model import ModelStore
from fxdask.store.sources import Source
from fxdask.tasks.reading import read_range

__all__ = ["probe_rows", "scan_rows", "stage_rows"]

ROWS_PER_SUMMARY = 768


def scan_rows(samples: Source, start: int, stop: int | None, normalize: str | None) -> tuple[FeatureSummary, bytes]:
    """Range of raw samples -> summary of their features, digest of their content."""
    rows = read_range(samples, start, stop)
    # Piece by piece, because float64 copies of all rows would take too much memory.
    pieces = row_ranges(len(rows), ROWS_PER_SUMMARY)
    summary = merge_summaries(summarize(rows[low:high], normalize) for low, high in pieces)
    if not summary.is_finite:
        checked_rows(rows, start)
    canonical = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
    return summary, hashlib.sha256(canonical.data).digest()


def probe_rows(samples: Source, start: int, stop: int | None, probed: NDArray[np.intp]) -> NDArray:
    """Range of raw samples, indices of probed samples in it -> the probed samples."""
    return read_range(samples, start, stop)[probed - start]


def stage_rows(samples: Source, store: str, start: int, stop: int | None) -> None:
    """Range of raw samples -> its chunk in the store."""
    rows = checked_rows(read_range(samples, start, stop), start)
    ModelStore.open(store, "r+", finished=False).write_samples(start, rows)
