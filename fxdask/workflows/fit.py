"""Fit a model from checked data: scan, compute the blocks, select nodes, into a store if there is one."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import ChangedSamplesError, InvalidInputError
from fxdask.execution import fit as fit_graphs
from fxdask.execution.client import one_span
from fxdask.execution.graphs import SamplesHandle, broadcast
from fxdask.execution.scan import digest_samples, scan_samples
from fxdask.execution.score import tabulate
from fxdask.execution.workers import check_reachable
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.scorer import Scorer
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.table_plan import plan_tables
from fxdask.progress import progress_bar
from fxdask.store.lease import Lease, lease_of_call
from fxdask.store.model import ModelStore
from fxdask.store.sources import is_reachable, location_of
from fxdask.store.transaction import Transaction
from fxdask.tasks.fit import FitSummary
from fxdask.tasks.job import FitJob
from fxdask.tasks.telemetry import merge_worker_stats
from fxdask.workflows.importance import measure_importances
from fxdask.workflows.job import checked_preprocessing, make_job, with_store
from fxdask.workflows.loading import load_model
from fxdask.workflows.model import FittedModel, TrainingData, weight_fingerprint
from fxdask.workflows.model_request import ModelRequest
from fxdask.workflows.persistence import open_or_create, write_model
from fxdask.workflows.plan import FitOptions, plan_model, with_tables_if_large
from fxdask.workflows.pool import select_shared
from fxdask.workflows.selection import (
    Network,
    TableRequest,
    assemble_selected,
    check_usable,
    log_fallbacks,
    tabulate_selected,
    warn_of_zero_spreads,
)
from fxdask.workflows.settings import FitSettings
from fxdask.workflows.staging import (
    in_memory_without_store,
    needs_copy,
    probe_for_streaming,
    readable_by_workers,
    stage_codes,
)
from fxdask.workflows.tables import named_features
from fxdask.workflows.unchanged import changed_samples, file_versions

__all__ = ["fit_model"]


log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class _Fit:
    """A running fit: the requested model, and what is done to its samples."""

    request: ModelRequest
    preprocessing: Preprocessing
    started: float
    verbose: bool
    versions: str | None
    """Of the files of the samples, before the scan."""

    @property
    def settings(self) -> FitSettings:
        return self.request.settings

    @property
    def data(self) -> TrainingData:
        return self.request.data

    def nearest(self, handle: SamplesHandle) -> SamplesHandle:
        """The samples in the memory of this process, as reading their copy takes longer; else those of this handle."""
        own = self.data.samples.handle
        return own if isinstance(own, np.ndarray) else handle


def fit_model(settings: FitSettings, data: TrainingData, options: FitOptions) -> FittedModel:
    """Fit a network, into a store if one is given; an unfinished store is resumed, a finished one is loaded."""
    with one_span("fxdask fit"), named_features(data.samples.names):
        return _fit_model(settings, data, options)


def _fit_model(settings: FitSettings, data: TrainingData, options: FitOptions) -> FittedModel:
    started = time.perf_counter()
    check_reachable(location_of(data.samples.handle), "the samples")
    settings = with_tables_if_large(settings, data)
    plan = plan_model(settings, data, options)
    samples = in_memory_without_store(data.samples, options.store)
    data = replace(data, samples=samples)
    versions = file_versions(samples.handle)
    with progress_bar("reading", shown=options.verbose) as progress:
        scan = scan_samples(samples.handle, samples.n_samples, samples.n_features, settings.scanned_as, progress)
    request = ModelRequest(
        settings=settings.resolved(scan.summary, scan.quartiles),
        data=data,
        scan=scan,
        plan=plan,
        normalize_requested=settings.normalize,
        copied_bytes=samples.n_bytes if options.store and needs_copy(samples.handle) else 0,
    )
    fit = _Fit(
        request=request,
        preprocessing=checked_preprocessing(request),
        started=started,
        verbose=options.verbose,
        versions=versions,
    )
    if options.store is None:
        job = make_job(request, fit.preprocessing, samples.handle)
        return _run(fit, job, broadcast(samples.handle), None)
    with lease_of_call(options.store) as lease:
        return _run_into_store(fit, lease, overwrite=options.overwrite)


def _run_into_store(fit: _Fit, lease: Lease, *, overwrite: bool) -> FittedModel:
    """Create or resume the store of this fit, run the fit, and move the store to its final path."""
    samples = fit.data.samples
    transaction = Transaction.in_place(lease, "model", fit.request.job, overwrite=overwrite)
    store = open_or_create(transaction.url, transaction.header, fit.request)
    if transaction.is_finished:
        log.info("%s already holds this model", store.url)
        transaction.replace()
        requested = fit.request.normalize_requested
        return replace(load_model(lease.url), names=samples.names, normalize_requested=requested)
    transaction.remove_partial_files()
    check_reachable(store.url, "the store")
    try:
        with readable_by_workers(samples, lease.url, fit.request.scan.digest, verbose=fit.verbose) as handle:
            codes = stage_codes(store, fit.request.plan, fit.data.codes)
            job = with_store(make_job(fit.request, fit.preprocessing, fit.nearest(handle), codes), store)
            fitted = _run(fit, job, handle, store, lease)
    except InvalidInputError as error:
        # A store of invalid samples is useless, but samples that are only unreachable may be read again later.
        is_useless = transaction.header is None or isinstance(error, ChangedSamplesError)
        if is_useless and is_reachable(samples.handle):
            transaction.abandon()
        raise
    transaction.replace()
    if fit.settings.keeps_tables:
        # Its class codes are in the store, so that they do not travel with the model.
        loaded = load_model(lease.url)
        if loaded.scorer.parameters.reread is not None:
            requested = fit.request.normalize_requested
            return replace(loaded, names=samples.names, info=fitted.info, normalize_requested=requested)
    return replace(fitted, job=replace(fitted.job, store=lease.url))


def _run(
    fit: _Fit, job: FitJob, handle: SamplesHandle, store: ModelStore | None, lease: Lease | None = None
) -> FittedModel:
    """Compute all blocks, select nodes, tabulate densities, and finish the store if there is one."""
    job, summary, probes = _fit_blocks(fit, job, handle, store)
    chosen, overlaps = summary.top.nodes, None
    if fit.settings.selection == "joint":
        shared = select_shared(job, handle, chosen, store, criterion=fit.settings.criterion, verbose=fit.verbose)
        chosen, overlaps = shared.nodes, shared.overlaps
        summary = replace(summary, workers=merge_worker_stats([summary.workers, shared.workers]))
    in_memory = replace(job, codes=fit.data.codes)
    network = _selected_network(fit, job, handle, store, (chosen, probes))
    log_fallbacks(fit.settings.spread, summary.source_counts, network.fallbacks)
    scorer = Scorer(network.parameters, fit.settings.density)
    with progress_bar("tabulating", shown=fit.verbose) as progress:
        density_error = tabulate(scorer, progress)
    divergences = _divergences(summary, job.plan.n_blocks, store)
    model = FittedModel(
        settings=fit.settings,
        classes=fit.data.classes,
        job=replace(in_memory, probe_codes=None),
        scorer=scorer,
        selected_nodes=chosen,
        overlaps=overlaps,
        divergences=divergences,
        density_error=density_error,
        temperature=network.temperature(scorer),
        normalize_requested=fit.request.normalize_requested,
        source_counts=summary.source_counts,
        samples_digest=fit.request.scan.digest,
        fingerprint=weight_fingerprint(job.seed, job.plan),
        bandwidth_fallbacks=network.fallbacks,
        info={},
        names=fit.data.samples.names,
        importances=measure_importances(job, divergences, known=summary.importances, verbose=fit.verbose),
    )
    _refuse_changed_samples(fit)
    if store is not None:
        if lease is not None:
            lease.check_held()
        write_model(store, model)
    return replace(model, info=_info(summary, job.plan, time.perf_counter() - fit.started))


def _selected_network(
    fit: _Fit,
    job: FitJob,
    handle: SamplesHandle,
    store: ModelStore | None,
    selected: tuple[NDArray[np.int64], SamplesHandle | None],
) -> Network:
    """The selected nodes and the probes of the samples -> the network of these nodes."""
    chosen, probes = selected
    # A local array is projected by this process, because workers have only a copy of it.
    nearest = fit.nearest(handle)
    options = fit.settings.density_options
    if fit.settings.keeps_tables:
        request = _table_request(fit, job, nearest, store, probes)
        return tabulate_selected(request, chosen, options, verbose=fit.verbose)
    of_all = replace(job, codes=fit.data.codes)
    return assemble_selected(of_all, nearest, chosen, options, verbose=fit.verbose)


def _refuse_changed_samples(fit: _Fit) -> None:
    """Refuse samples that are not those of the scan; their content is read again only if their files were written."""
    samples = fit.data.samples
    if file_versions(samples.handle) == fit.versions:
        return
    if digest_samples(samples.handle, samples.n_samples, samples.n_features) != fit.request.scan.digest:
        raise changed_samples(samples.handle)


def _table_request(
    fit: _Fit, job: FitJob, handle: SamplesHandle, store: ModelStore | None, probes: SamplesHandle | None
) -> TableRequest:
    """What the tables of the selected nodes are made of; samples are probed if the blocks needed no probes."""
    data, plan = fit.data, job.plan
    tables = plan_tables(plan, min(plan.n_nodes, plan.n_selected * plan.n_classes))
    if probes is None:
        job, probes = probe_for_streaming(replace(job, plan=tables.fit), handle, store, data.codes, verbose=fit.verbose)
    return TableRequest(
        job=replace(job, plan=plan),
        samples=handle,
        probes=probes,
        codes=data.codes,
        plan=tables,
        training=data.samples.handle if location_of(data.samples.handle) else None,
        digest=fit.request.scan.digest,
    )


def _fit_blocks(
    fit: _Fit, job: FitJob, handle: SamplesHandle, store: ModelStore | None
) -> tuple[FitJob, FitSummary, SamplesHandle | None]:
    """Compute all blocks and check what they found -> the job with its probes, the summary of the blocks, probes."""
    samples = fit.data.samples.handle if store is None else handle
    log.info("fitting %d nodes in %d blocks of %d", job.plan.n_nodes, job.plan.n_blocks, job.plan.nodes_per_block)
    job, probes = probe_for_streaming(job, samples, store, fit.data.codes, verbose=fit.verbose)
    with progress_bar("fitting", shown=fit.verbose) as progress:
        summary = fit_graphs.fit_blocks(job, handle, probes, progress)
    check_usable(summary, fit.data.classes, fit.settings.n_selected)
    warn_of_zero_spreads(
        summary.source_counts,
        fit.data.classes,
        "check whether its samples are all equal, or differ by less than float32 can represent",
    )
    return job, summary, probes


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
