"""Graphs over raw samples before a fit: the scan, the probe, the copy into a store."""

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
    """One pass over the training samples: the summary of their inputs and a digest of their content."""

    summary: FeatureSummary
    digest: str


def scan_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, normalize: str | None, progress: Progress | None = None
) -> SampleScan:
    """Look at every sample once, before anything is written."""
    look = delayed(tasks.scan_rows, pure=False)
    work = [look(part, start, stop, normalize) for start, stop, part in row_tasks(samples, n_rows, n_features)]
    found = compute(work, progress, local=is_in_memory(samples))
    digest = hashlib.sha256(b"".join(part for _, part in found)).hexdigest()
    return SampleScan(merge_summaries(summary for summary, _ in found), digest)


def stage_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, store: str, progress: Progress | None = None
) -> None:
    """Copy samples into the store, so that any worker can read them, range by range."""
    copy = delayed(tasks.stage_rows, pure=False)
    work = [copy(part, store, start, stop) for start, stop, part in row_tasks(samples, n_rows, n_features)]
    compute(work, progress, local=is_in_memory(samples))


def probe_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, probed: NDArray[np.intp], progress: Progress | None = None
) -> NDArray:
    """(probe, input) a few raw samples, by their rising indices."""
    pick = delayed(tasks.probe_rows, pure=False)
    work = []
    for start, stop, part in row_tasks(samples, n_rows, n_features):
        end = start + rows_per_read(n_features)
        work.append(pick(part, start, stop, probed[np.searchsorted(probed, start) : np.searchsorted(probed, end)]))
    parts = compute(work, progress, local=is_in_memory(samples))
    found, place = np.empty((len(probed), n_features), parts[0].dtype), len(probed)
    while parts:  # let go of each as it is taken over, so that there is never a second copy of all
        part = parts.pop()
        place -= len(part)
        found[place : place + len(part)] = part
    return found
