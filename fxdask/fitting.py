"""From checked data to a fitted model: survey, plan, blocks, selection."""

from __future__ import annotations

import logging
import time
import warnings
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask import graph, score_graph
from fxdask.errors import FewUsableNodesWarning, InvalidInputError, ZeroSpreadWarning
from fxdask.fitted import (
    FitSettings,
    FittedModel,
    TrainingData,
    canaries,
    finish_store,
    load_model,
    open_job_store,
)
from fxdask.graph import Handle, Progress, Survey
from fxdask.inputs import Samples
from fxdask.job import FitJob
from fxdask.kernels.assembly import assemble
from fxdask.kernels.brackets import probe_indices
from fxdask.kernels.decision import FittedNetwork
from fxdask.kernels.preparation import LARGEST_PRODUCT, Preparation, preparation_from
from fxdask.kernels.selection import NO_NODE
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.kernels.weights import weight_rows
from fxdask.plan import FitPlan, SampleFacts
from fxdask.planning import plan_fit, replanned
from fxdask.progress import progress_bar
from fxdask.reading import as_declared
from fxdask.resources import measured_resources
from fxdask.store.group import move_into_place, peek_header, remove_group
from fxdask.store.lease import Lease, only_one_at_a_time
from fxdask.store.model import ModelStore
from fxdask.store.samples import ZarrAddress, decoded_bytes, is_still_there, place_of
from fxdask.tasks import FitSummary
from fxdask.workers import check_reachable

__all__ = ["FitPlace", "fit_model", "measure_classes", "plan_model"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Fit:
    """One fit under way: what was asked for, what the survey saw, and the work that follows from both."""

    settings: FitSettings
    data: TrainingData
    seen: Survey
    job: FitJob
    started: float
    verbose: bool


@dataclass(frozen=True)
class FitPlace:
    """Where a fit puts its model and in what pieces it works: none of it changes a result."""

    store: str | None = None
    overwrite: bool = False
    nodes_per_block: int | str = "auto"
    memory_limit: Any = None


def plan_model(settings: FitSettings, data: TrainingData, place: FitPlace) -> FitPlan:
    """How a fit would be cut, and what it would take; nothing but the labels is read."""
    samples, store, nodes_per_block = data.samples, place.store, place.nodes_per_block
    if store and not place.overwrite:
        # A fit that was begun goes on with the blocks that it has.
        stored = (peek_header(store) or {}).get("nodes_per_block")
        nodes_per_block = stored if isinstance(stored, int) and stored > 0 else nodes_per_block
    on_workers = graph.active_client() is not None
    # Without a store a Dask array is loaded, and what is in memory here is sent to every worker.
    to_come = isinstance(samples.handle, DaskArray) or (isinstance(samples.handle, np.ndarray) and on_workers)
    in_memory = isinstance(samples.handle, (np.ndarray, DaskArray)) and not (store and _needs_staging(samples.handle))
    facts = SampleFacts(
        samples.dtype.itemsize,
        in_memory,
        0 if in_memory or isinstance(samples.handle, (np.ndarray, DaskArray)) else decoded_bytes(samples.handle),
        widened=settings.normalize is not None or not np.can_cast(samples.dtype, np.float32),
        probes_in_memory=store is None or not on_workers,
    )
    return plan_fit(
        settings.n_nodes,
        samples.n_inputs,
        tuple(map(int, data.counts)),
        settings.n_selected,
        nodes_per_block,
        samples=facts,
        resources=measured_resources(place.memory_limit, samples.n_bytes if to_come and store is None else 0),
        kept=settings.kept,
        # By this rule every class looks at every class's nodes.
        n_tables=len(data.counts) * min(settings.n_nodes, settings.n_selected * len(data.counts))
        if settings.combine == "log"
        else 0,
    )


def fit_model(settings: FitSettings, data: TrainingData, place: FitPlace, *, verbose: bool = False) -> FittedModel:
    """Fit a network, into a store if one is named; finish or load what an equal call left there."""
    started = time.perf_counter()
    check_reachable(place_of(data.samples.handle), "the samples")
    plan = plan_model(settings, data, place)
    samples = _in_memory_without_store(data.samples, place.store)
    data = replace(data, samples=samples)
    with progress_bar("reading", shown=verbose) as progress:
        seen = graph.survey(samples.handle, samples.n_samples, samples.n_inputs, settings.normalize, progress)
    fit = _Fit(settings, data, seen, _job(settings, data, seen, plan), started, verbose)
    if place.store is None:
        return _run(fit, graph.place(samples.handle), None)
    with only_one_at_a_time(place.store) as lease:
        return _run_into_store(fit, lease, overwrite=place.overwrite)


def measure_classes(
    settings: FitSettings, data: TrainingData, seen: Survey, place: FitPlace, progress: Progress | None = None
) -> tuple[FitJob, FitSummary]:
    """Every class's location and spread at every node into a store, and no more: for who selects otherwise.

    The samples are at an address, and were surveyed before; an equal call goes on where one was stopped.
    """
    plan = plan_model(settings, data, place)
    store, _ = open_job_store(str(place.store), settings, data, seen, plan, 0, overwrite=False)
    check_reachable(store.url, "the store")
    job = _in_store(_job(settings, data, seen, plan), store)
    job, probes = _probe(job, data.samples.handle, store, verbose=False)
    summary = graph.fit_blocks(job, data.samples.handle, probes, progress)
    _warn_of_zero_spreads(summary.source_counts, data.classes, "its samples may all be the same")
    return replace(job, probe_codes=None), summary


def _job(settings: FitSettings, data: TrainingData, seen: Survey, plan: FitPlan) -> FitJob:
    preparation = preparation_from(seen.summary, settings.normalize, data.samples.dtype)
    _check_range(preparation, seen, data.samples.n_inputs)
    return FitJob(
        plan,
        settings.seed,
        preparation,
        data.codes,
        _prior_values(settings.priors, data.counts),
        settings.criterion,
        settings.location,
        settings.spread,
    )


def _in_store(job: FitJob, store: ModelStore) -> FitJob:
    """The job as the store has it: with the blocks that it was begun with."""
    plan = job.plan
    if store.header["nodes_per_block"] != plan.nodes_per_block:
        plan = replanned(plan, store.header["nodes_per_block"])
    return replace(job, plan=plan, store=store.url)


def _run_into_store(fit: _Fit, lease: Lease, *, overwrite: bool) -> FittedModel:
    samples, plan, url = fit.data.samples, fit.job.plan, lease.url
    staged = samples.n_bytes if _needs_staging(samples.handle) else 0
    store, created = open_job_store(url, fit.settings, fit.data, fit.seen, plan, staged, overwrite=overwrite)
    if store.header["finished"]:
        log.info("%s already holds this model", store.url)
        move_into_place(store.url, url)
        return replace(load_model(url), names=samples.names)
    lease.sweep(store.url)
    check_reachable(store.url, "the store")
    fit = replace(fit, job=_in_store(fit.job, store))
    try:
        fitted = _run(fit, _stage(store, samples) if staged else samples.handle, store, lease)
    except InvalidInputError:
        # Samples that are bad will stay so; what was done from samples that only went away will be of use.
        if created and is_still_there(samples.handle) and lease.is_mine():
            remove_group(store.url)
        raise
    lease.confirm()
    move_into_place(store.url, url)
    return replace(fitted, job=replace(fitted.job, store=url))


def _run(fit: _Fit, handle: Handle, store: ModelStore | None, lease: Lease | None = None) -> FittedModel:
    """All blocks, the selection, and with a store its last arrays and its mark."""
    job, samples = fit.job, fit.data.samples
    log.info("fitting %d nodes in %d blocks of %d", job.plan.n_nodes, job.plan.n_blocks, job.plan.nodes_per_block)
    job, probes = _probe(job, samples.handle if store is None else handle, store, verbose=fit.verbose)
    with progress_bar("fitting", shown=fit.verbose) as progress:
        summary = graph.fit_blocks(job, handle, probes, progress)
    _check_usable(summary, fit.data.classes)
    _warn_of_zero_spreads(
        summary.source_counts,
        fit.data.classes,
        'one far outlier, or very many inputs, can do that: leave the outlier out, or try normalize="feature"',
    )
    # An array of this process is projected here; what the workers have of it is a copy.
    here = samples.handle if isinstance(samples.handle, np.ndarray) else handle
    network, bandwidth_fallbacks = _select(fit.settings, job, here, summary, verbose=fit.verbose)
    _log_fallbacks(fit.settings.spread, summary.source_counts, bandwidth_fallbacks)
    with progress_bar("tabulating", shown=fit.verbose) as progress:
        density_error = score_graph.tabulate(network, progress)
    if store is None:
        divergences = np.concatenate([summary.divergences[i] for i in range(job.plan.n_blocks)], axis=1)
    else:
        divergences = store.read_quantity("divergence")
        if lease:
            lease.confirm()
        finish_store(store, job, network, density_error, summary, bandwidth_fallbacks)
    info = {
        "seconds": time.perf_counter() - fit.started,
        "n_blocks": job.plan.n_blocks,
        "n_blocks_resumed": summary.n_resumed,
        "blocks_by_process": {process: work.blocks for process, work in summary.processes.items()},
        "bytes_read_by_process": {process: work.bytes_read for process, work in summary.processes.items()},
        "peak_bytes_by_process": {process: work.peak_bytes for process, work in summary.processes.items()},
        "passes": sum(work.passes for work in summary.processes.values()),
        "rows_repeated": sum(work.rows_repeated for work in summary.processes.values()),
        "plan": job.plan.facts(),
    }
    return FittedModel(
        fit.settings,
        fit.data.classes,
        replace(job, probe_codes=None),  # without what the tasks kept with it
        network,
        summary.top.nodes,
        divergences,
        density_error,
        summary.source_counts,
        fit.seen.digest,
        canaries(job.seed, job.plan),
        bandwidth_fallbacks,
        info,
        samples.names,
    )


def _probe(job: FitJob, samples: Handle, store: ModelStore | None, *, verbose: bool) -> tuple[FitJob, Handle | None]:
    """The job and the few samples that its streaming tasks bracket quantiles with, where they can read them."""
    plan = job.plan
    if not plan.is_streamed:
        return job, None
    chosen = probe_indices(job.codes, plan.probe_counts)
    job = replace(job, probe_codes=job.codes[chosen])
    if graph.active_client() is None:
        store = None  # this process's threads find them in its memory
    if store is not None and store.has_all("probes", len(chosen)):
        return job, ZarrAddress(store.url, "probes")
    with progress_bar("probing", shown=verbose) as progress:
        probes = graph.probe(samples, plan.n_samples, plan.n_inputs, chosen, progress)
    if store is None:
        return job, graph.place(probes)
    store.write("probes", probes)
    return job, ZarrAddress(store.url, "probes")


def _in_memory_without_store(samples: Samples, store: str | None) -> Samples:
    """Without a store there is nowhere to copy a Dask array's values to but memory."""
    if store is None and isinstance(samples.handle, DaskArray):
        (array,) = dask.compute(samples.handle)
        array = as_declared(array, (samples.n_samples, samples.n_inputs), samples.dtype.str)
        return replace(samples, handle=np.ascontiguousarray(array))
    return samples


def _check_range(preparation: Preparation, seen: Survey, n_inputs: int) -> None:
    fits = preparation.largest * n_inputs < LARGEST_PRODUCT
    if not (fits and np.isfinite(seen.summary.squares).all()):
        largest = max(np.abs(seen.summary.minimum).max(), np.abs(seen.summary.maximum).max())
        raise InvalidInputError(f"X has values up to {largest:.3g}, whose products leave float32's range; scale X down")


def _prior_values(priors: str | tuple[float, ...], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    if priors == "class_share":
        return counts / counts.sum()
    if priors == "equal":
        return np.full(len(counts), 1 / len(counts))
    values = np.asarray(priors, dtype=np.float64)
    if values.shape != (len(counts),):
        raise InvalidInputError(f"priors has {values.size} values but y has {len(counts)} classes; give one for each")
    values = values / values.max()
    return values / values.sum()


def _check_usable(summary: FitSummary, classes: NDArray) -> None:
    usable = (summary.top.nodes != NO_NODE).sum(axis=1)
    wanted = summary.top.nodes.shape[1]
    for label, count in zip(classes, usable, strict=True):
        if count == 0:
            raise InvalidInputError(
                f"no node tells class {label} from the others: every projection is constant; "
                "X may hold one sample repeated, or differences too small beside its largest value"
            )
        if count < wanted:
            warnings.warn(
                f"class {label} has only {count} usable nodes of the {wanted} asked for; those are used",
                FewUsableNodesWarning,
                stacklevel=5,
            )


def _warn_of_zero_spreads(source_counts: NDArray[np.int64], classes: NDArray, remedy: str) -> None:
    """Where most of a class's spreads drown in rounding, its nodes are chosen by little more than chance."""
    for label, counts in zip(classes, source_counts, strict=True):
        if 2 * counts[-1] > counts.sum():
            warnings.warn(
                f"class {label} counts as constant at {counts[-1]} of {counts.sum()} nodes; {remedy}",
                ZeroSpreadWarning,
                stacklevel=5,
            )


def _log_fallbacks(spread: str, source_counts: NDArray[np.int64], bandwidth_fallbacks: dict[str, int]) -> None:
    for name, count in zip(SPREAD_SOURCES, source_counts.sum(axis=0), strict=True):
        if name != spread and count:
            log.info("%d spreads of %d were zero by %s and came from %s", count, source_counts.sum(), spread, name)
    for name, count in bandwidth_fallbacks.items():
        if count:
            log.info("%d bandwidths of selected nodes needed the fallback of the %s", count, name)


def _select(
    settings: FitSettings, job: FitJob, samples: Handle, summary: FitSummary, *, verbose: bool
) -> tuple[FittedNetwork, dict[str, int]]:
    """The nodes that any class selected, with their training values and bandwidths; and the fallbacks these took."""
    chosen = summary.top.nodes
    nodes = np.unique(chosen[chosen != NO_NODE])
    weights = weight_rows(job.seed, nodes, job.plan.n_inputs)
    with progress_bar("selecting", shown=verbose) as progress:
        projections = graph.project_selected(job, samples, weights, progress)
    return assemble(
        job.preparation,
        nodes,
        weights,
        projections,
        job.plan.class_slices,
        chosen,
        job.priors,
        settings.density_rules,
    )


def _needs_staging(handle: Handle) -> bool:
    """Whether workers could not read the samples from where they are."""
    return isinstance(handle, DaskArray) or (isinstance(handle, np.ndarray) and graph.active_client() is not None)


def _stage(store: ModelStore, samples: Samples) -> ZarrAddress:
    if not store.has_all("samples", samples.n_samples):
        store.stage_samples(samples.n_samples, samples.n_inputs, samples.dtype)
        graph.stage(samples.handle, samples.n_samples, samples.n_inputs, store.url)
    return ZarrAddress(store.url, "samples")
