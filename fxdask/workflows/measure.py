"""Every class's location and spread at every node, for callers that select nodes by their own rule."""

from __future__ import annotations

from dataclasses import replace

from fxdask.execution.compute import Progress
from fxdask.execution.fit import fit_blocks
from fxdask.execution.scan import SampleScan
from fxdask.execution.workers import check_reachable
from fxdask.store.group import peek_header
from fxdask.tasks.fit import FitSummary
from fxdask.tasks.job import FitJob
from fxdask.workflows.job import checked_preprocessing, make_job, with_store
from fxdask.workflows.model import TrainingData
from fxdask.workflows.model_request import ModelRequest
from fxdask.workflows.persistence import open_or_create
from fxdask.workflows.plan import FitOptions, plan_model
from fxdask.workflows.selection import warn_of_zero_spreads
from fxdask.workflows.settings import FitSettings
from fxdask.workflows.staging import probe_for_streaming

__all__ = ["measure_classes"]


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
    request = ModelRequest(
        settings=settings,
        data=data,
        scan=scan,
        plan=plan_model(settings, data, options),
        normalize_requested=settings.normalize,
    )
    url = str(options.store)
    store = open_or_create(url, peek_header(url), request)
    check_reachable(store.url, "the store")
    job = with_store(make_job(request, checked_preprocessing(request), data.samples.handle), store)
    job, probes = probe_for_streaming(job, data.samples.handle, store, data.codes, verbose=False)
    summary = fit_blocks(job, data.samples.handle, probes, progress)
    warn_of_zero_spreads(summary.source_counts, data.classes, "check whether its samples are all equal")
    return replace(job, probe_codes=None), summary
