"""Graphs over raw samples before a fit: scan, norms, probe."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import SamplesHandle, is_in_memory, merged, row_tasks, shared_constant
from fxdask.kernels.preprocessing import (
    FeatureSummary,
    Preprocessing,
    merge_summaries,
    origin_probes,
    origin_quartiles,
    typical_norms,
)
from fxdask.sizes import rows_per_read
from fxdask.store.columns import StagedCodes
from fxdask.store.parts import PartsAddress
from fxdask.tasks import scan as tasks

__all__ = ["SampleScan", "digest_samples", "measure_class_norms", "probe_samples", "scan_samples"]


@dataclass(frozen=True)
class SampleScan:
    """The result of one pass over the training samples: a summary of their features, a digest of their content."""

    summary: FeatureSummary
    digest: str
    quartiles: NDArray[np.float64]
    """(3, feature) quartiles of a few samples, by which the origin is checked."""


def scan_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, normalize: str | None, progress: Progress | None = None
) -> SampleScan:
    """Raw samples -> summary of their features, digest of their content, quartiles of a few samples."""
    scan, known = delayed(tasks.scan_rows, pure=False), known_digest(samples)
    probed, per_read = origin_probes(n_rows, n_features), rows_per_read(n_features)
    work = [
        scan(tasks.ScanJob(normalize, known is None), part, start, stop, _between(probed, start, start + per_read))
        for start, stop, part in row_tasks(samples, n_rows, n_features)
    ]
    found = compute(work, progress, local=is_in_memory(samples))
    return SampleScan(
        summary=merge_summaries(part.summary for part in found),
        digest=known or hashlib.sha256(b"".join(part.digest for part in found)).hexdigest(),
        quartiles=origin_quartiles(np.concatenate([part.probes for part in found]), normalize),
    )


def digest_samples(samples: SamplesHandle, n_rows: int, n_features: int, progress: Progress | None = None) -> str:
    """Raw samples -> a digest of their content, the same for every chunking."""
    known = known_digest(samples)
    if known is not None:
        return known
    digest = delayed(tasks.digest_rows, pure=False)
    work = [digest(part, start, stop) for start, stop, part in row_tasks(samples, n_rows, n_features)]
    return hashlib.sha256(b"".join(compute(work, progress, local=is_in_memory(samples)))).hexdigest()


def known_digest(samples: SamplesHandle) -> str | None:
    """The digest of the content that was computed when the samples were copied; None if there is none."""
    return samples.digest if isinstance(samples, PartsAddress) else None


def _between(indices: NDArray[np.intp], first: int, last: int) -> NDArray[np.intp]:
    """Those of the ascending indices from ``first`` until before ``last``."""
    return indices[np.searchsorted(indices, first) : np.searchsorted(indices, last)]


def measure_class_norms(
    samples: SamplesHandle, codes: NDArray[np.integer] | StagedCodes, preprocessing: Preprocessing, n_classes: int
) -> NDArray[np.float64]:
    """(class,) typical norm of each class's preprocessed samples, in one more pass over them."""
    measure = delayed(tasks.norm_rows, pure=False)
    shared = [shared_constant(tasks.NormJob(preprocessing, n_classes), "norms"), shared_constant(codes, "codes")]
    ranges = row_tasks(samples, len(codes), len(preprocessing.shift))
    work = [measure(*shared, part, start, stop) for start, stop, part in ranges]
    (counts,) = compute(merged(work, tasks.add_counts), local=is_in_memory(samples))
    return typical_norms(counts)


def probe_samples(
    samples: SamplesHandle, n_rows: int, n_features: int, probed: NDArray[np.intp], progress: Progress | None = None
) -> NDArray:
    """Raw samples, (probe,) ascending indices -> (probe, feature) these samples."""
    pick = delayed(tasks.probe_rows, pure=False)
    work = []
    for start, stop, part in row_tasks(samples, n_rows, n_features):
        work.append(pick(part, start, stop, _between(probed, start, start + rows_per_read(n_features))))
    parts = compute(work, progress, local=is_in_memory(samples))
    found, offset = np.empty((len(probed), n_features), parts[0].dtype), len(probed)
    while parts:  # pop each part, so that there are never two copies of all parts
        part = parts.pop()
        offset -= len(part)
        found[offset : offset + len(part)] = part
    return found
