"""Samples where the tasks of a fit can read them: copied beside the store, probed, or loaded into memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.execution.client import active_client
from fxdask.execution.compute import compute_collection
from fxdask.execution.copy import copy_array
from fxdask.execution.graphs import SamplesHandle, broadcast
from fxdask.execution.scan import probe_samples
from fxdask.kernels.brackets import probe_indices
from fxdask.planning.fit_plan import FitPlan
from fxdask.progress import progress_bar
from fxdask.sizes import rows_per_read
from fxdask.store.columns import StagedCodes
from fxdask.store.model import ModelStore
from fxdask.store.parts import create_parts, remove_parts, remove_parts_beside
from fxdask.store.sources import ZarrAddress
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import as_declared
from fxdask.workflows.data import Samples
from fxdask.workflows.unchanged import changed_samples

__all__ = ["in_memory_without_store", "needs_copy", "probe_for_streaming", "readable_by_workers", "stage_codes"]


def needs_copy(handle: SamplesHandle) -> bool:
    """Whether samples must be copied to a file, because workers cannot read the memory of this process."""
    return isinstance(handle, np.ndarray) and active_client() is not None


@contextmanager
def readable_by_workers(samples: Samples, store: str, digest: str, *, verbose: bool) -> Iterator[SamplesHandle]:
    """The samples of this digest where workers can read them, if need be as copies beside a store.

    The caller holds the lease of the store. The copies are removed at the end of the ``with`` block.
    """
    if not needs_copy(samples.handle):
        yield samples.handle
        return
    remove_parts_beside(store)
    url = create_parts(store)
    try:
        with progress_bar("copying", shown=verbose) as progress:
            copy = copy_array(samples.handle, url, progress)
        if copy.digest != digest:
            raise changed_samples(samples.handle)
        yield copy
    finally:
        remove_parts(url)


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
