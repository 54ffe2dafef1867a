"""What a ranking was asked for and how it will run: its data, its plan, and all that its result depends on."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from dask.array import Array as DaskArray

from fxdask.execution.client import active_client
from fxdask.execution.compute import compute_collection
from fxdask.execution.resources import measured_resources
from fxdask.execution.scan import digest_samples
from fxdask.kernels.features import gathered_type
from fxdask.planning.machine import Resources
from fxdask.planning.rank_plan import RankPlan, RankSize, RowFacts, plan_ranking
from fxdask.progress import progress_bar
from fxdask.sizes import MIB
from fxdask.store.parquet import ParquetAddress, row_groups
from fxdask.store.sources import decoded_bytes, fingerprint, read_all, rows_per_chunk
from fxdask.tasks.rank import RankJob, result_names
from fxdask.tasks.reading import as_declared
from fxdask.workflows.job import prior_values
from fxdask.workflows.model import TrainingData
from fxdask.workflows.rank_settings import RankSettings
from fxdask.workflows.redundancy import Redundancy

__all__ = ["RankOptions", "RankRequest", "planned_request", "request_identity"]

SMALL = 64 * MIB
"""Memory of numba and of SciPy's distributions, which a process loads with its first block."""
MOST_READS = 20_000
"""Reads of row groups by all blocks up to which columns are read from Parquet itself."""
MOST_MOMENTS = 200_000
"""Of all classes and features, in one pass over the rows: they are Python's integers, some hundred bytes each."""


@dataclass(frozen=True, kw_only=True)
class RankOptions:
    """How a ranking runs; nothing of it changes a score."""

    store: str | None = None
    overwrite: bool = False
    memory_limit: Any = None
    verbose: bool = False
    draws_curves: bool = True
    """Whether the densities of the best features are computed for the report."""
    redundancy: Redundancy | None = None
    """How features are chosen by the first criterion that do not repeat each other."""


@dataclass(frozen=True, kw_only=True)
class RankRequest:
    """The ranking that a call requests, and how it is split."""

    settings: RankSettings
    data: TrainingData
    options: RankOptions
    job: RankJob
    resources: Resources
    reads_where_it_is: bool
    """Whether tasks can read columns of X without a copy."""
    by_rows: bool
    """Whether one pass over the rows gives all that the criteria need, so that no copy is needed."""
    started: float

    @property
    def plan(self) -> RankPlan:
        """How the ranking is split."""
        return self.job.plan


def planned_request(settings: RankSettings, data: TrainingData, options: RankOptions, started: float) -> RankRequest:
    """Plan a ranking; small samples are loaded into memory, larger ones stay where they are."""
    data = _small_in_memory(data, settings)
    samples, handle = data.samples, data.samples.handle
    is_local = isinstance(handle, np.ndarray) and active_client() is None
    is_broadcast = isinstance(handle, np.ndarray) and not is_local and samples.n_bytes <= SMALL
    extra = samples.n_bytes if is_broadcast else 0
    resources = measured_resources(options.memory_limit, extra_baseline=extra, compiles=True, local=is_local)
    job, size = _unplanned(settings, data, options)
    by_rows = not is_broadcast and _needs_one_pass(job, samples.dtype, options)
    where_it_is, plan = is_local or is_broadcast, None
    if not by_rows:
        groups = row_groups(handle) if isinstance(handle, ParquetAddress) else []
        largest = max((group.n_rows for group in groups), default=0)
        plan = plan_ranking(replace(size, piece_rows=largest), None, resources)
        # What is read several times is copied: decoding Parquet takes longer than reading a copy.
        where_it_is |= bool(groups) and not plan.is_counted and len(groups) * plan.n_blocks <= MOST_READS
    if plan is None or not where_it_is:
        facts = _row_facts(handle, samples.n_bytes)
        plan = plan_ranking(replace(size, whole_columns=not by_rows), facts, resources)
    return RankRequest(
        settings=settings,
        data=data,
        options=options,
        job=replace(job, plan=plan),
        resources=resources,
        reads_where_it_is=where_it_is,
        by_rows=by_rows,
        started=started,
    )


def _unplanned(settings: RankSettings, data: TrainingData, options: RankOptions) -> tuple[RankJob, RankSize]:
    """The job of a ranking before it is planned, and its size."""
    samples = data.samples
    size = RankSize(
        n_samples=samples.n_samples,
        n_features=samples.n_features,
        itemsize=samples.dtype.itemsize,
        gathered_itemsize=gathered_type(samples.dtype).itemsize,
        n_results=len(result_names(settings.of_columns, len(data.classes))),
        n_classes=len(data.classes),
    )
    job = RankJob(
        plan=RankPlan(size=size, features_per_block=1),
        criteria=settings.of_columns,
        codes=data.codes,
        class_counts=tuple(data.counts.tolist()),
        priors=prior_values(settings.priors, data.counts),
        dtype=samples.dtype.str,
        location=settings.location,
        spread=settings.spread,
        shrink_spread=settings.shrink_spread,
        seed=settings.seed,
        omits_missing=settings.missing == "omit",
    )
    is_joint = options.redundancy is not None and options.redundancy.how == "joint"
    whole = ("redundancy='joint'",) if is_joint else ()
    return job, replace(size, sorts_columns=job.sorts_columns, sorting=job.sorting_criteria, whole=whole)


def _small_in_memory(data: TrainingData, settings: RankSettings) -> TrainingData:
    """Small samples are loaded into memory, where columns can be read; larger ones stay where they are."""
    samples, handle = data.samples, data.samples.handle
    if isinstance(handle, ParquetAddress) and settings.missing == "omit" and samples.dtype.kind != "f":
        # Integers have no NaN; float64 columns have, where a value is missing.
        handle = replace(handle, dtype="<f8")
        samples = replace(samples, handle=handle, dtype=np.dtype(np.float64))
    if isinstance(handle, np.ndarray) or samples.n_bytes > SMALL:
        return replace(data, samples=samples)
    if isinstance(handle, DaskArray):
        array = compute_collection(handle)
        array = as_declared(array, (samples.n_samples, samples.n_features), samples.dtype.str)
    else:
        array = read_all(handle)
    return replace(data, samples=replace(samples, handle=np.ascontiguousarray(array)))


def _needs_one_pass(job: RankJob, dtype: np.dtype, options: RankOptions) -> bool:
    """Whether moments, which can be added, are all that is needed; those of rounded values need whole columns."""
    few = job.n_classes * job.plan.size.n_features <= MOST_MOMENTS
    no_columns = not job.sorts_columns and options.redundancy is None
    return few and no_columns and gathered_type(dtype) == np.float32


def _row_facts(handle: Any, n_bytes: int) -> RowFacts:
    """How rows of the samples are read, for the plan of the copies."""
    if isinstance(handle, np.ndarray):
        return RowFacts(copies=0)
    if isinstance(handle, DaskArray):
        largest = int(np.prod([max(lengths, default=0) for lengths in handle.chunks])) * handle.dtype.itemsize
        return RowFacts(rows_per_chunk=int(handle.chunksize[0]), copies=2, chunk_bytes=min(largest, n_bytes))
    if isinstance(handle, ParquetAddress):
        return RowFacts(rows_per_chunk=rows_per_chunk(handle), chunk_bytes=decoded_bytes(handle))
    per_chunk = rows_per_chunk(handle)
    return RowFacts(rows_per_chunk=per_chunk, copies=2 if per_chunk else 1)


def request_identity(settings: RankSettings, data: TrainingData, options: RankOptions) -> dict[str, Any]:
    """Everything that the result depends on: parameters, data, labels; not workers or memory."""
    samples, source = data.samples, None
    if not isinstance(samples.handle, (np.ndarray, DaskArray)):
        source = fingerprint(samples.handle)
    if source is None:
        with progress_bar("reading", shown=options.verbose) as progress:
            source = digest_samples(samples.handle, samples.n_samples, samples.n_features, progress)
    return {
        **json.loads(json.dumps(settings.identity())),
        "samples": source,
        "samples_dtype": samples.dtype.newbyteorder("<").str,
        "labels": data.labels_digest(),
        "names": None if samples.names is None else [str(name) for name in samples.names],
    }
