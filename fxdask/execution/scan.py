"""Graphs over raw samples before a fit: scan, probe, staging."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import SamplesHandle, is_in_memory, row_tasks
from fxdask.kernels.preprocessing import FeatureSummary, merge_summaries
from fxdask.sizes import rows_per_read
from fxdask.tasks import scan as tasks

__all__ = ["SampleScan", "probe_samples", "scan_samples", "stage_samples"]


@dataclass(frozen=True)
class SampleScan:
    """The result of one pass over the training samples: a summary of their features, a digest of their content."""

    summary: FeatureSummary
    digest: str


def scan_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, normalize: str | None, progress: Progress | None = None
) -> SampleScan:
    """Raw samples -> summary of their features, digest of their content."""
    scan = delayed(tasks.scan_rows, pure=False)
    work = [scan(part, start, stop, normalize) for start, stop, part in row_tasks(samples, n_rows, n_features)]
    found = compute(work, progress, local=is_in_memory(samples))
    digest = hashlib.sha256(b"".join(part for _, part in found)).hexdigest()
    return SampleScan(merge_summaries(summary for summary, _ in found), digest)


def stage_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, store: str, progress: Progress | None = None
) -> None:
    """Copy samples into the store, range by range, so that every worker can read them."""
    copy = delayed(tasks.stage_rows, pure=False)
    work = [copy(part, store, start, stop) for start, stop, part in row_tasks(samples, n_rows, n_features)]
    compute(work, progress, local=is_in_memory(samples))


def probe_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, probed: NDArray[np.intp], progress: Progress | None = None
) -> NDArray:
    """Raw samples, (probe,) ascending indices -> (probe, feature) these samples."""
    pick = delayed(tasks.probe_rows, pure=False)
    work = []
    for start, stop, part in row_tasks(samples, n_rows, n_features):
        end = start + rows_per_read(n_features)
        work.append(pick(part, start, stop, probed[np.searchsorted(probed, start) : np.searchsorted(probed, end)]))
    parts = compute(work, progress, local=is_in_memory(samples))
    found, offset = np.empty((len(probed), n_features), parts[0].dtype), len(probed)
    while parts:  # pop each part, so that there are never two copies of all parts
        part = parts.pop()
        offset -= len(part)
        found[offset : offset + len(part)] = part
    return found
