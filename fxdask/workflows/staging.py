"""Samples where the tasks of a fit can read them: copied into the store, probed, or loaded into memory."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.execution.client import active_client
from fxdask.execution.compute import compute_collection
from fxdask.execution.graphs import SamplesHandle, broadcast
from fxdask.execution.scan import probe_samples, stage_samples
from fxdask.kernels.brackets import probe_indices
from fxdask.planning.fit_plan import FitPlan
from fxdask.progress import progress_bar
from fxdask.sizes import rows_per_read
from fxdask.store.columns import StagedCodes
from fxdask.store.model import ModelStore
from fxdask.store.sources import ZarrAddress
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import as_declared
from fxdask.workflows.data import Samples
from fxdask.workflows.unchanged import changed_samples

__all__ = ["in_memory_without_store", "needs_staging", "probe_for_streaming", "stage_codes", "stage_in_store"]


def needs_staging(handle: SamplesHandle) -> bool:
    """Whether the samples must be copied into the store, because workers cannot read them otherwise."""
    return isinstance(handle, DaskArray) or (isinstance(handle, np.ndarray) and active_client() is not None)


def stage_in_store(store: ModelStore, samples: Samples, digest: str) -> ZarrAddress:
    """Copy samples of this digest into the store, unless an earlier call did; return their address there."""
    if not store.has_all("samples", samples.n_samples):
        store.stage_samples(samples.n_samples, samples.n_features, samples.dtype)
        if stage_samples(samples.handle, samples.n_samples, samples.n_features, store.url) != digest:
            raise changed_samples(samples.handle)
    return ZarrAddress(store.url, "samples")


def stage_codes(store: ModelStore, plan: FitPlan, codes: NDArray[np.integer]) -> StagedCodes | None:
    """Write the class codes to the store if tasks in other processes stream very many samples; their address there."""
    if not plan.is_streamed or active_client() is None:
        return None
    store.stage_codes(codes, rows_per_read(plan.n_features))
    return StagedCodes(store.url, len(codes), "model")


def probe_for_streaming(
    job: FitJob, samples: SamplesHandle, store: ModelStore | None, codes: NDArray[np.integer], *, verbose: bool
) -> tuple[FitJob, SamplesHandle | None]:
    """The job with its probe codes, and a handle of the probes: the few samples that bracket quantiles in streaming."""
    plan = job.plan
    if not plan.is_streamed:
        return job, None
    chosen = probe_indices(codes, plan.probe_counts)
    job = replace(job, probe_codes=codes[chosen])
    if active_client() is None:
        store = None  # local threads share the probes in memory
    if store is not None and store.has_all("probes", len(chosen)):
        return job, ZarrAddress(store.url, "probes")
    with progress_bar("probing", shown=verbose) as progress:
        probes = probe_samples(samples, plan.n_samples, plan.n_features, chosen, progress)
    if store is None:
        return job, broadcast(probes)
    store.write({"probes": probes})
    return job, ZarrAddress(store.url, "probes")


def in_memory_without_store(samples: Samples, store: str | None) -> Samples:
    """Load a Dask array into memory if there is no store to stage it in."""
    if store is None and isinstance(samples.handle, DaskArray):
        array = compute_collection(samples.handle)
        array = as_declared(array, (samples.n_samples, samples.n_features), samples.dtype.str)
        return replace(samples, handle=np.ascontiguousarray(array))
    return samples
