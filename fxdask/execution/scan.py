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
from fxdask.sizes import row_ranges, rows_per_read
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
    copy: PartsAddress | None = None
    """The copy that the same pass wrote, if it was asked for."""


def scan_samples(
    samples: SamplesHandle,
    n_rows: int,
    n_features: int,
    normalize: str | None,
    progress: Progress | None = None,
    copy_to: str | None = None,
) -> SampleScan:
    """Raw samples -> summary of their features, digest of their content, quartiles of a few samples.

    Samples in memory can be copied to files of a folder in the same pass.
    """
    scan, known = delayed(tasks.scan_rows, pure=False), known_digest(samples)
    probed, per_read = origin_probes(n_rows, n_features), rows_per_read(n_features)
    job = tasks.ScanJob(normalize, known is None, copy_to)
    ranges = row_tasks(samples, n_rows, n_features)
    work = [
        scan(job, part, start, stop, index, _between(probed, start, start + per_read))
        for index, (start, stop, part) in enumerate(ranges)
    ]
    found = compute(work, progress, local=is_in_memory(samples))
    digest = known or hashlib.sha256(b"".join(part.digest for part in found)).hexdigest()
    probes = np.concatenate([part.probes for part in found])
    return SampleScan(
        summary=merge_summaries(part.summary for part in found),
        digest=digest,
        quartiles=origin_quartiles(probes, normalize),
        copy=None if copy_to is None else _copied(copy_to, n_rows, per_read, probes, digest),
    )


def _copied(url: str, n_rows: int, per_file: int, some_rows: NDArray, digest: str) -> PartsAddress:
    """The address of a copy of samples, of which these are some rows."""
    return PartsAddress(
        url=url,
        lengths=tuple(stop - start for start, stop in row_ranges(n_rows, per_file)),
        n_features=some_rows.shape[1],
        dtype=some_rows.dtype.str,
        digest=digest,
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
