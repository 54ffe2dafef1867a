"""Fit a model from checked data: scan, plan, compute the blocks, select nodes."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.errors import FewUsableNodesWarning, InvalidInputError, ZeroSpreadWarning, warn_user
from fxdask.execution import fit as fit_graphs
from fxdask.execution.client import active_client
from fxdask.execution.compute import Progress
from fxdask.execution.graphs import SamplesHandle, broadcast
from fxdask.execution.resources import measured_resources
from fxdask.execution.scan import SampleScan, probe_samples, scan_samples, stage_samples
from fxdask.execution.score import tabulate
from fxdask.execution.workers import check_reachable
from fxdask.kernels.brackets import probe_indices
from fxdask.kernels.network import NetworkParameters, SelectedNodes, assemble
from fxdask.kernels.preprocessing import LARGEST_PRODUCT, Preprocessing, preprocessing_from
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.selection import NO_NODE
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.kernels.weights import weight_rows
from fxdask.planning.fit_plan import FitPlan, SampleFacts
from fxdask.planning.fit_search import FitSize, plan_fit, replanned
from fxdask.progress import progress_bar
from fxdask.store.group import peek_header
from fxdask.store.lease import Lease, exclusive_lease
from fxdask.store.model import ModelStore
from fxdask.store.sources import ZarrAddress, decoded_bytes, is_reachable, location_of
from fxdask.store.transaction import Transaction
from fxdask.tasks.fit import FitSummary
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import as_declared
from fxdask.workflows.data import Samples
from fxdask.workflows.model import FittedModel, TrainingData, weight_fingerprint
from fxdask.workflows.persistence import ModelRequest, load_model, open_or_create, write_model
from fxdask.workflows.settings import FitSettings

__all__ = ["FitOptions", "fit_model", "measure_classes", "plan_model"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class FitOptions:
    """Options of a fit that never change its result."""

    store: str | None = None
    overwrite: bool = False
    nodes_per_block: int | str = "auto"
    memory_limit: Any = None
    verbose: bool = False


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """A running fit: the requested model, and the job that its tasks get."""

    request: ModelRequest
    job: FitJob
    started: float
    verbose: bool

    @property
    def settings(self) -> FitSettings:
        return self.request.settings

    @property
    def data(self) -> TrainingData:
        return self.request.data


def plan_model(settings: FitSettings, data: TrainingData, options: FitOptions) -> FitPlan:
    """Plan a fit from sizes and memory; only the labels are read."""
    samples, store, nodes_per_block = data.samples, options.store, options.nodes_per_block
    if store and not options.overwrite:
        # A resumed fit must keep the block size of its store.
        stored = (peek_header(store) or {}).get("nodes_per_block")
        nodes_per_block = stored if isinstance(stored, int) and stored > 0 else nodes_per_block
    # Without a store a Dask array is loaded into memory, and a local array is sent to every worker.
    to_load = isinstance(samples.handle, DaskArray) or (
        isinstance(samples.handle, np.ndarray) and active_client() is not None
    )
    extra_baseline = samples.n_bytes if to_load and store is None else 0
    size = FitSize(
        n_nodes=settings.n_nodes,
        n_features=samples.n_features,
        class_counts=tuple(map(int, data.counts)),
        n_selected=settings.n_selected,
        kept=settings.kept,
        n_tables=settings.density_options.rule.n_densities(len(data.counts), settings.n_selected, settings.n_nodes),
    )
    return plan_fit(
        size,
        nodes_per_block,
        samples=_sample_facts(samples, settings, store),
        resources=measured_resources(options.memory_limit, extra_baseline),
    )


def _sample_facts(samples: Samples, settings: FitSettings, store: str | None) -> SampleFacts:
    array = isinstance(samples.handle, (np.ndarray, DaskArray))
    in_memory = array and not (store and _needs_staging(samples.handle))
    return SampleFacts(
        itemsize=samples.dtype.itemsize,
        in_memory=in_memory,
        read_bytes=0 if array else decoded_bytes(samples.handle),
        widened=settings.normalize is not None or not np.can_cast(samples.dtype, np.float32),
        probes_in_memory=store is None or active_client() is None,
    )


def fit_model(settings: FitSettings, data: TrainingData, options: FitOptions) -> FittedModel:
    """Fit a network, into a store if one is given; an unfinished store is resumed, a finished one is loaded."""
    started = time.perf_counter()
    check_reachable(location_of(data.samples.handle), "the samples")
    plan = plan_model(settings, data, options)
    samples = _in_memory_without_store(data.samples, options.store)
    data = replace(data, samples=samples)
    with progress_bar("reading", shown=options.verbose) as progress:
        scan = scan_samples(samples.handle, samples.n_samples, samples.n_features, settings.normalize, progress)
    staged = samples.n_bytes if options.store and _needs_staging(samples.handle) else 0
    request = ModelRequest(settings=settings, data=data, scan=scan, plan=plan, staged_bytes=staged)
    fit = _Fit(request=request, job=_job(request), started=started, verbose=options.verbose)
    if options.store is None:
        return _run(fit, broadcast(samples.handle), None)
    with exclusive_lease(options.store) as lease:
        return _run_into_store(fit, lease, overwrite=options.overwrite)


def measure_classes(
    settings: FitSettings,
    data: TrainingData,
    scan: SampleScan,
    options: FitOptions,
    progress: Progress | None = None,
) -> tuple[FitJob, FitSummary]:
    """Store every class's location and spread at every node, without selecting nodes.

    The caller selects nodes by its own rule. The samples must be at an address and scanned already;
    the same call resumes a store that is unfinished.
    """
    request = ModelRequest(settings=settings, data=data, scan=scan, plan=plan_model(settings, data, options))
    url = str(options.store)
    store = open_or_create(url, peek_header(url), request)
    check_reachable(store.url, "the store")
    job = _in_store(_job(request), store)
    job, probes = _probe(job, data.samples.handle, store, verbose=False)
    summary = fit_graphs.fit_blocks(job, data.samples.handle, probes, progress)
    _warn_of_zero_spreads(summary.source_counts, data.classes, "its samples may all be equal")
    return replace(job, probe_codes=None), summary


def _job(request: ModelRequest) -> FitJob:
    settings, data = request.settings, request.data
    preprocessing = preprocessing_from(request.scan.summary, settings.normalize, data.samples.dtype)
    _check_range(preprocessing, request.scan, data.samples.n_features)
    return FitJob(
        plan=request.plan,
        seed=settings.seed,
        preprocessing=preprocessing,
        codes=data.codes,
        priors=_prior_values(settings.priors, data.counts),
        criterion=settings.criterion,
        location=settings.location,
        spread=settings.spread,
    )


def _in_store(job: FitJob, store: ModelStore) -> FitJob:
    """The job with the store's path and the store's block size."""
    plan = job.plan
    if store.header["nodes_per_block"] != plan.nodes_per_block:
        plan = replanned(plan, store.header["nodes_per_block"])
    return replace(job, plan=plan, store=store.url)


def _run_into_store(fit: _Fit, lease: Lease, *, overwrite: bool) -> FittedModel:
    """Create or resume the store of this fit, run the fit, and move the store to its final path."""
    samples = fit.data.samples
    transaction = Transaction.in_place(lease, "model", fit.request.job, overwrite=overwrite)
    store = open_or_create(transaction.url, transaction.header, fit.request)
    if transaction.is_finished:
        log.info("%s already holds this model", store.url)
        transaction.replace()
        return replace(load_model(lease.url), names=samples.names)
    transaction.remove_partial_files()
    check_reachable(store.url, "the store")
    fit = replace(fit, job=_in_store(fit.job, store))
    try:
        fitted = _run(fit, _stage(store, samples) if fit.request.staged_bytes else samples.handle, store, lease)
    except InvalidInputError:
        # A store of invalid samples is useless, but samples that are only unreachable may be read again later.
        if transaction.header is None and is_reachable(samples.handle):
            transaction.abandon()
        raise
    transaction.replace()
    return replace(fitted, job=replace(fitted.job, store=lease.url))


def _run(fit: _Fit, handle: SamplesHandle, store: ModelStore | None, lease: Lease | None = None) -> FittedModel:
    """Compute all blocks, select nodes, tabulate densities, and finish the store if there is one."""
    job, samples = fit.job, fit.data.samples
    log.info("fitting %d nodes in %d blocks of %d", job.plan.n_nodes, job.plan.n_blocks, job.plan.nodes_per_block)
    job, probes = _probe(job, samples.handle if store is None else handle, store, verbose=fit.verbose)
    with progress_bar("fitting", shown=fit.verbose) as progress:
        summary = fit_graphs.fit_blocks(job, handle, probes, progress)
    _check_usable(summary, fit.data.classes)
    _warn_of_zero_spreads(
        summary.source_counts,
        fit.data.classes,
        'one far outlier or very many features can cause this; remove the outlier, or try normalize="feature"',
    )
    # A local array is projected by this process, because workers have only a copy of it.
    local_handle = samples.handle if isinstance(samples.handle, np.ndarray) else handle
    parameters, fallbacks = _select(fit, job, local_handle, summary)
    _log_fallbacks(fit.settings.spread, summary.source_counts, fallbacks)
    scorer = Scorer(parameters, fit.settings.density)
    with progress_bar("tabulating", shown=fit.verbose) as progress:
        density_error = tabulate(scorer, progress)
    model = FittedModel(
        settings=fit.settings,
        classes=fit.data.classes,
        job=replace(job, probe_codes=None),
        scorer=scorer,
        selected_nodes=summary.top.nodes,
        divergences=_divergences(summary, job.plan.n_blocks, store),
        density_error=density_error,
        source_counts=summary.source_counts,
        samples_digest=fit.request.scan.digest,
        fingerprint=weight_fingerprint(job.seed, job.plan),
        bandwidth_fallbacks=fallbacks,
        info={},
        names=samples.names,
    )
    if store is not None:
        if lease is not None:
            lease.check_held()
        write_model(store, model)
    return replace(model, info=_info(summary, job.plan, time.perf_counter() - fit.started))


def _divergences(summary: FitSummary, n_blocks: int, store: ModelStore | None) -> NDArray[np.float64]:
    """(class, node) scores of all nodes, from the store or from the blocks' summaries."""
    if store is not None:
        return store.read_quantity("divergence")
    return np.concatenate([summary.divergences[index] for index in range(n_blocks)], axis=1)


def _info(summary: FitSummary, plan: FitPlan, seconds: float) -> dict[str, Any]:
    """Counters and timings of a fit, for users and benchmarks."""
    workers = summary.workers
    return {
        "seconds": seconds,
        "n_blocks": plan.n_blocks,
        "n_blocks_resumed": summary.n_resumed,
        "blocks_by_process": {process: stats.blocks for process, stats in workers.items()},
        "bytes_read_by_process": {process: stats.bytes_read for process, stats in workers.items()},
        "peak_bytes_by_process": {process: stats.peak_bytes for process, stats in workers.items()},
        "passes": sum(stats.passes for stats in workers.values()),
        "rows_repeated": sum(stats.rows_repeated for stats in workers.values()),
        "plan": plan.facts(),
    }


def _probe(
    job: FitJob, samples: SamplesHandle, store: ModelStore | None, *, verbose: bool
) -> tuple[FitJob, SamplesHandle | None]:
    """The job with its probe codes, and a handle of the probes: the few samples that bracket quantiles in streaming."""
    plan = job.plan
    if not plan.is_streamed:
        return job, None
    chosen = probe_indices(job.codes, plan.probe_counts)
    job = replace(job, probe_codes=job.codes[chosen])
    if active_client() is None:
        store = None  # local threads share the probes in memory
    if store is not None and store.has_all("probes", len(chosen)):
        return job, ZarrAddress(store.url, "probes")
    with progress_bar("probing", shown=verbose) as progress:
        probes = probe_samples(samples, plan.n_samples, plan.n_features, chosen, progress)
    if store is None:
        return job, broadcast(probes)
    store.write("probes", probes)
    return job, ZarrAddress(store.url, "probes")


def _in_memory_without_store(samples: Samples, store: str | None) -> Samples:
    """Load a Dask array into memory if there is no store to stage it in."""
    if store is None and isinstance(samples.handle, DaskArray):
        (array,) = dask.compute(samples.handle)
        array = as_declared(array, (samples.n_samples, samples.n_features), samples.dtype.str)
        return replace(samples, handle=np.ascontiguousarray(array))
    return samples


def _check_range(preprocessing: Preprocessing, scan: SampleScan, n_features: int) -> None:
    fits = preprocessing.largest * n_features < LARGEST_PRODUCT
    if not (fits and np.isfinite(scan.summary.squares).all()):
        largest = max(np.abs(scan.summary.minimum).max(), np.abs(scan.summary.maximum).max())
        raise InvalidInputError(f"X has values up to {largest:.3g}, whose projections overflow float32; scale X down")


def _prior_values(priors: str | tuple[float, ...], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    if priors == "class_share":
        return counts / counts.sum()
    if priors == "equal":
        return np.full(len(counts), 1 / len(counts))
    values = np.asarray(priors, dtype=np.float64)
    if values.shape != (len(counts),):
        raise InvalidInputError(
            f"priors has {values.size} values but y has {len(counts)} classes; pass one prior per class"
        )
    values = values / values.max()
    return values / values.sum()


def _check_usable(summary: FitSummary, classes: NDArray) -> None:
    usable = (summary.top.nodes != NO_NODE).sum(axis=1)
    wanted = summary.top.nodes.shape[1]
    for label, count in zip(classes, usable, strict=True):
        if count == 0:
            raise InvalidInputError(
                f"no node separates class {label} from the others, because every projection is constant; "
                "check that the samples of X differ, and by more than the rounding of its largest value"
            )
        if count < wanted:
            warn_user(
                f"class {label} has only {count} usable nodes of the {wanted} requested; the model uses those",
                FewUsableNodesWarning,
            )


def _warn_of_zero_spreads(source_counts: NDArray[np.int64], classes: NDArray, remedy: str) -> None:
    """Warn if most spreads of a class are zero within rounding, because its nodes are then chosen almost at random."""
    for label, counts in zip(classes, source_counts, strict=True):
        if 2 * counts[-1] > counts.sum():
            warn_user(
                f"class {label} counts as constant at {counts[-1]} of {counts.sum()} nodes; {remedy}",
                ZeroSpreadWarning,
            )


def _log_fallbacks(spread: str, source_counts: NDArray[np.int64], bandwidth_fallbacks: dict[str, int]) -> None:
    for name, count in zip(SPREAD_SOURCES, source_counts.sum(axis=0), strict=True):
        if name != spread and count:
            log.info("%d of %d spreads were zero by %s, so %s was used", count, source_counts.sum(), spread, name)
    for name, count in bandwidth_fallbacks.items():
        if count:
            log.info("%d bandwidths of selected nodes used the fallback of the %s", count, name)


def _select(
    fit: _Fit, job: FitJob, samples: SamplesHandle, summary: FitSummary
) -> tuple[NetworkParameters, dict[str, int]]:
    """The selected nodes of all classes with their training values and bandwidths, and how many fallbacks were used."""
    chosen = summary.top.nodes
    nodes = np.unique(chosen[chosen != NO_NODE])
    weights = weight_rows(job.seed, nodes, job.plan.n_features)
    with progress_bar("selecting", shown=fit.verbose) as progress:
        values = fit_graphs.project_selected(job, samples, weights, progress)
    selected = SelectedNodes(nodes, weights, values, job.plan.class_slices)
    return assemble(job.preprocessing, selected, chosen, job.priors, fit.settings.density_options)


def _needs_staging(handle: SamplesHandle) -> bool:
    """Whether the samples must be copied into the store, because workers cannot read them otherwise."""
    return isinstance(handle, DaskArray) or (isinstance(handle, np.ndarray) and active_client() is not None)


def _stage(store: ModelStore, samples: Samples) -> ZarrAddress:
    if not store.has_all("samples", samples.n_samples):
        store.stage_samples(samples.n_samples, samples.n_features, samples.dtype)
        stage_samples(samples.handle, samples.n_samples, samples.n_features, store.url)
    return ZarrAddress(store.url, "samples")
