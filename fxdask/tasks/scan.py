"""The tasks on one range of raw samples before a fit: scan, norms, probe."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.preprocessing import (
    FeatureSummary,
    Preprocessing,
    checked_rows,
    merge_summaries,
    norm_exponents,
    summarize,
)
from fxdask.sizes import row_ranges
from fxdask.store.columns import StagedCodes
from fxdask.store.sources import Source
from fxdask.tasks.reading import read_range

__all__ = [
    "NormJob",
    "ScanJob",
    "ScannedRows",
    "add_counts",
    "digest_of_rows",
    "digest_rows",
    "norm_rows",
    "probe_rows",
    "scan_rows",
]

ROWS_PER_SUMMARY = 768
VALUES_PER_NORMS = 2**17  # whose float64 squares fit into the CPU cache


@dataclass(frozen=True)
class ScannedRows:
    """One range of raw samples: the summary of their features, a digest of their content, and the probed ones."""

    summary: FeatureSummary
    digest: bytes
    probes: NDArray


@dataclass(frozen=True)
class ScanJob:
    """What every task needs that scans samples."""

    normalize: str | None
    with_digest: bool
    """Whether the digest of their content is wanted."""


@dataclass(frozen=True)
class NormJob:
    """What every task needs that measures the norms of samples."""

    preprocessing: Preprocessing
    n_classes: int


def scan_rows(job: ScanJob, samples: Source, start: int, stop: int | None, probed: NDArray[np.intp]) -> ScannedRows:
    """Range of raw samples -> their summary, digest and probes."""
    rows = read_range(samples, start, stop)
    # Piece by piece, because float64 copies of all rows would take too much memory.
    pieces = row_ranges(len(rows), ROWS_PER_SUMMARY)
    summary = merge_summaries(summarize(rows[low:high], job.normalize) for low, high in pieces)
    if not summary.is_finite:
        checked_rows(rows, start)
    return ScannedRows(summary, digest_of_rows(rows) if job.with_digest else b"", rows[probed - start])


def digest_rows(samples: Source, start: int, stop: int | None) -> bytes:
    """Range of raw samples, missing values among them -> the digest of their content."""
    return digest_of_rows(read_range(samples, start, stop))


def digest_of_rows(rows: NDArray) -> bytes:
    """(sample, feature) raw samples -> the digest of their content."""
    canonical = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
    return hashlib.sha256(canonical.data).digest()


def norm_rows(
    job: NormJob, codes: NDArray[np.integer] | StagedCodes, samples: Source, start: int, stop: int | None
) -> NDArray[np.int64]:
    """Range of raw samples, all samples' class codes -> (class, exponent) counts of the preprocessed norms."""
    rows, n_classes = checked_rows(read_range(samples, start, stop), start), job.n_classes
    if stop is not None and len(rows) != stop - start:
        raise InvalidInputError(
            f"X has changed since it was scanned: samples {start} to {stop} are now {len(rows)} rows, "
            f"not {stop - start}; fit again with samples that stay as they are"
        )
    of_rows = codes[start : start + len(rows)]
    counts = norm_exponents(np.empty((0, rows.shape[1]), np.float32), of_rows[:0], n_classes)
    for low, high in row_ranges(len(rows), max(1, VALUES_PER_NORMS // max(1, rows.shape[1]))):
        counts += norm_exponents(job.preprocessing(rows[low:high]), of_rows[low:high], n_classes)
    return counts


def add_counts(parts: Sequence[NDArray[np.int64]]) -> NDArray[np.int64]:
    """(class, exponent) counts of disjoint ranges -> those of all of them."""
    return np.sum(parts, axis=0)


def probe_rows(samples: Source, start: int, stop: int | None, probed: NDArray[np.intp]) -> NDArray:
    """Range of raw samples, indices of probed samples in it -> the probed samples."""
    return read_range(samples, start, stop)[probed - start]
