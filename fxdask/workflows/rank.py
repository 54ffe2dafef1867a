"""Rank features from checked data: plan, copy by columns if needed, score all blocks, into a store if there is one."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import ChangedSamplesError, InvalidInputError, MemoryPlanError, StoreExistsError
from fxdask.execution import rank as graphs
from fxdask.execution.client import one_span
from fxdask.execution.graphs import broadcast
from fxdask.execution.workers import check_reachable
from fxdask.kernels.criteria.base import Scores
from fxdask.kernels.criteria.relief import anchors_of_classes
from fxdask.planning.machine import Resources
from fxdask.planning.rank_plan import RankPlan, with_blocks_of
from fxdask.progress import progress_bar
from fxdask.sizes import format_bytes
from fxdask.store.columns import StagedCodes, StagedColumns
from fxdask.store.group import check_room
from fxdask.store.lease import lease_of_call
from fxdask.store.ranking import RankingStore
from fxdask.store.sources import is_reachable, location_of
from fxdask.store.transaction import Transaction
from fxdask.tasks.curves import class_curves, probed_samples
from fxdask.tasks.rank import OUTERMOST, RankParts, moment_results, result_names
from fxdask.workflows.copies import CopyOptions, readable_samples, temporary_folder
from fxdask.workflows.data import Samples
from fxdask.workflows.model import TrainingData
from fxdask.workflows.rank_request import SMALL, RankOptions, RankRequest, planned_request, request_identity
from fxdask.workflows.rank_settings import RankSettings
from fxdask.workflows.ranked import RankedFeatures
from fxdask.workflows.redundancy import candidates, choose_features
from fxdask.workflows.relief import relief_scores
from fxdask.workflows.tables import named_features
from fxdask.workflows.unchanged import unchanged_files

__all__ = ["rank", "readable_features"]

log = logging.getLogger(__name__)

SHOWN_PER_CRITERION = 3


def readable_features(X: Any, settings: RankSettings, options: RankOptions) -> AbstractContextManager[Samples]:
    """Checked samples to rank; a large Dask collection is copied if it would be read repeatedly."""
    return readable_samples(
        X,
        CopyOptions(
            store=options.store,
            # A store needs the digest of the samples, and ReliefF reads them again.
            copies_array=options.store is not None or bool(settings.of_rows),
            overwrite=options.overwrite,
            memory_limit=options.memory_limit,
            verbose=options.verbose,
            most_loaded=SMALL,
        ),
    )


def rank(settings: RankSettings, data: TrainingData, options: RankOptions) -> RankedFeatures:
    """Rank the features, into a store if one is given; an unfinished store is resumed, a finished one is loaded."""
    with one_span("fxdask rank"), named_features(data.samples.names, if_missing='pass missing="omit"'):
        started = time.perf_counter()
        check_reachable(location_of(data.samples.handle), "the samples")
        identity = request_identity(settings, data, options) if options.store else {}
        ranking = planned_request(settings, data, options, started)
        if options.store is None and (ranking.reads_where_it_is or ranking.by_rows):
            with unchanged_files(ranking.data.samples.handle):
                return _run(ranking, None)
        folder = nullcontext(None) if options.store else temporary_folder("the copies of X by columns")
        with folder as temporary:
            if temporary is None:
                return _run_into_store(ranking, str(options.store), identity, overwrite=options.overwrite)
            url = str(Path(temporary, "ranking.zarr"))
            found = _run_into_store(ranking, url, {"run": uuid4().hex}, overwrite=False)
            return replace(found, store=None)


# The store


def _run_into_store(ranking: RankRequest, url: str, identity: Mapping[str, Any], *, overwrite: bool) -> RankedFeatures:
    """Create or resume the store of this ranking, run it, and move the store to its final path."""
    job = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    with lease_of_call(url) as lease:
        transaction = Transaction.in_place(lease, "ranking", job, overwrite=overwrite)
        store, ranking = _open_or_create(transaction, ranking, identity, job)
        if transaction.is_finished:
            log.info("%s already holds this ranking", store.url)
            transaction.replace()
            return _loaded(ranking, RankingStore.open(lease.url), lease.url)
        transaction.remove_partial_files()
        check_reachable(store.url, "the store")
        try:
            with unchanged_files(ranking.data.samples.handle):
                found = _run(ranking, store)
        except InvalidInputError as error:
            # A store of invalid samples is useless, but samples that are only unreachable may be read again later.
            is_useless = transaction.header is None or isinstance(error, ChangedSamplesError)
            if is_useless and is_reachable(ranking.data.samples.handle):
                transaction.abandon()
            raise
        lease.check_held()
        store.drop_staging()
        store.finish(shown=found.shown.tolist())
        transaction.replace()
        return replace(found, store=lease.url)


def _open_or_create(
    transaction: Transaction, ranking: RankRequest, identity: Mapping[str, Any], job: str
) -> tuple[RankingStore, RankRequest]:
    """The unfinished store of the same job with its own block size, or a new one."""
    url, header, plan = transaction.url, transaction.header, ranking.plan
    if header is not None:
        _refuse_other_job(url, header, identity)
        store = RankingStore.open(url, "r+", finished=False)
        plan = with_blocks_of(plan, int(store.header["sizes"]["features_per_block"]))
        if not header["finished"]:
            _check_blocks_fit(url, plan, ranking.resources)
    else:
        check_room(url, plan.store_bytes)
        names = result_names(ranking.settings.of_columns, len(ranking.data.classes))
        sizes = {
            "result": len(names),
            "input": plan.size.n_features,
            "features_per_block": plan.features_per_block,
        }
        facts = {
            "job": job,
            "identity": dict(identity),
            "results": names,
            "classes": ranking.data.classes.tolist(),
            "class_counts": ranking.data.counts.tolist(),
            "criteria": list(ranking.settings.criteria),
        }
        store = RankingStore.create(url, sizes, facts)
    return store, replace(ranking, job=replace(ranking.job, plan=plan, store=store.url))


def _check_blocks_fit(url: str, plan: RankPlan, resources: Resources) -> None:
    """Refuse to resume a store whose blocks or ranges were made for more memory."""
    if plan.block_bytes > resources.per_task:
        raise MemoryPlanError(
            f"{url} was started with blocks of {plan.features_per_block} features, which need "
            f"{format_bytes(plan.block_bytes)} but a task may use {format_bytes(max(0, resources.per_task))}; "
            "resume with more memory, or pass overwrite=True"
        )


def _refuse_other_job(url: str, header: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    if header.get("kind") != "ranking":
        raise StoreExistsError(f"{url} holds {header.get('kind')!r}, not a ranking; choose another path")
    stored = header.get("identity", {})
    named = {"samples": "other samples", "samples_dtype": "samples of another dtype", "labels": "other labels"}
    differences = [
        named.get(key) or f"{key}={stored.get(key)!r} instead of {wanted[key]!r}"
        for key in wanted
        if stored.get(key) != wanted[key]
    ]
    if differences:
        raise StoreExistsError(
            f"{url} holds a ranking made from {', '.join(differences)}; "
            "choose another path, or pass overwrite=True to replace it"
        )


# The run


def _run(ranking: RankRequest, store: RankingStore | None) -> RankedFeatures:
    """Score all blocks, find the neighbours of ReliefF, and draw the best features."""
    if ranking.by_rows:
        return _run_by_rows(ranking, store)
    ranking, columns = _columns(ranking, store)
    job = ranking.job
    log.info("ranking %d features in %d blocks, %s", *_work(ranking.plan))
    with progress_bar("ranking", shown=ranking.options.verbose) as progress:
        parts = graphs.rank_blocks(job, columns, progress)
    results = _all_results(parts, store)
    found = _assembled(ranking, results, _relief(ranking, results, store))
    if ranking.options.draws_curves:
        shown = _best(found)
        found = _with_curves(found, shown, graphs.draw_curves(job, columns, shown), store)
    if ranking.options.redundancy is not None:
        first = ranking.settings.criteria[0]
        wanted = ranking.options.redundancy
        pool = candidates(wanted, found, first)
        chosen = choose_features(wanted, job, columns, found.score(first), pool, ranking.resources)
        found = replace(found, chosen=chosen)
    return replace(found, info=_info(ranking, parts))


def _work(plan: RankPlan) -> tuple[int, int, str]:
    """Numbers of features and blocks, and how a block is measured."""
    how = f"counted in {plan.n_passes} passes or more" if plan.is_counted else "in memory"
    return plan.size.n_features, plan.n_blocks, how


def _run_by_rows(ranking: RankRequest, store: RankingStore | None) -> RankedFeatures:
    """Add up the moments of all features in one pass over the rows; curves of copied samples are those of some."""
    job, codes = ranking.job, ranking.data.codes
    probed = probed_samples(len(codes))
    log.info("ranking %d features in one pass over %d ranges", job.plan.size.n_features, job.plan.n_ranges)
    with progress_bar("ranking", shown=ranking.options.verbose) as progress:
        summed = graphs.sum_moments(job, ranking.data.samples.handle, probed, progress)
    results = moment_results(job, summed.moments)
    if store is not None:
        for block in map(job.plan.block, range(job.plan.n_blocks)):
            store.write_block(block, results[:, block.start : block.stop])
    found = _assembled(ranking, results, _relief(ranking, results, store))
    if ranking.options.draws_curves:
        shown = _best(found)
        if ranking.reads_where_it_is:
            _, columns = _columns(ranking, store)
            curves = graphs.draw_curves(job, columns, shown)
        else:
            probes = np.concatenate([summed.probes[index] for index in sorted(summed.probes)])
            classes = [probes[codes[probed] == k] for k in range(job.n_classes)]
            curves = np.array([class_curves([rows[:, feature] for rows in classes]) for feature in shown.tolist()])
        found = _with_curves(found, shown, curves, store)
    return replace(found, info=_info(ranking, RankParts({}, summed.workers, 0)))


def _columns(ranking: RankRequest, store: RankingStore | None) -> tuple[RankRequest, Any]:
    """The source that tasks read columns from: X where it is, or copies of it in the store."""
    handle, plan = ranking.data.samples.handle, ranking.plan
    if ranking.reads_where_it_is:
        return ranking, broadcast(handle)
    assert store is not None, "copies need a store"
    dtype = ranking.data.samples.dtype.newbyteorder("=")
    per_range = store.prepare_staging(plan.size.n_samples, plan.rows_per_range, dtype)
    plan = replace(plan, rows_per_range=per_range)
    _check_blocks_fit(store.url, plan, ranking.resources)
    ranking = replace(ranking, job=replace(ranking.job, plan=plan))
    if plan.is_counted:
        store.stage_codes(ranking.data.codes)
        ranking = replace(ranking, job=replace(ranking.job, codes=StagedCodes(store.url, plan.size.n_samples)))
    with progress_bar("transposing", shown=ranking.options.verbose) as progress:
        graphs.stage_columns(ranking.job, handle, progress)
    return ranking, StagedColumns(store.url, plan.size.n_samples, per_range, dtype.itemsize)


def _all_results(parts: RankParts, store: RankingStore | None) -> NDArray[np.float64]:
    """(result, feature) results of all blocks."""
    if store is not None:
        return store.read_results()
    return np.concatenate([parts.results[index] for index in sorted(parts.results)], axis=1)


def _relief(ranking: RankRequest, results: NDArray[np.float64], store: RankingStore | None) -> Scores | None:
    """(1, feature) weights of ReliefF, read from the store if an earlier call found them; None if not wanted."""
    if not ranking.settings.of_rows:
        return None
    if store is not None and "relief" in store:
        return store.read("relief")[None]
    weights = relief_scores(
        ranking.data,
        ranking.job.priors,
        (ranking.settings.n_anchors, ranking.settings.n_neighbors),
        results[: len(OUTERMOST)],
        ranking.resources,
        verbose=ranking.options.verbose,
    )
    if store is not None:
        store.write({"relief": weights[0]})
    return weights


def _assembled(ranking: RankRequest, results: NDArray[np.float64], relief: Scores | None) -> RankedFeatures:
    """Results of all features -> scores and p-values by criterion."""
    settings, data = ranking.settings, ranking.data
    n_classes, samples = len(data.classes), data.samples
    rows = result_names(settings.of_columns, n_classes)
    scores: dict[str, Scores] = {}
    p_values: dict[str, Scores] = {}
    for name in settings.criteria:
        if name in settings.of_rows:
            assert relief is not None, "ReliefF was computed"
            scores[name] = relief
            continue
        for kind, found in (("score", scores), ("p_value", p_values)):
            chosen = [at for at, row in enumerate(rows) if row.split("/")[:2] == [name, kind]]
            if chosen:
                found[name] = results[chosen]
    names = samples.names
    if names is None:
        names = np.array([f"x{feature}" for feature in range(samples.n_features)], dtype=object)
    return RankedFeatures(
        names=names,
        classes=data.classes,
        class_counts=data.counts,
        criteria=settings.criteria,
        scores=scores,
        p_values=p_values,
        missing=results[0].astype(np.int64),
        n_anchors=int(anchors_of_classes(data.counts, settings.n_anchors).sum()) if settings.of_rows else None,
    )


def _best(found: RankedFeatures) -> NDArray[np.int64]:
    """The best features by each criterion, whose densities the report shows."""
    best = [feature for name in found.criteria for feature in found.order(name)[:SHOWN_PER_CRITERION].tolist()]
    return np.array(list(dict.fromkeys(best)), np.int64)


def _with_curves(
    found: RankedFeatures, shown: NDArray[np.int64], curves: NDArray[np.float64], store: RankingStore | None
) -> RankedFeatures:
    """The ranking with the densities of some features."""
    if store is not None:
        store.write({"curves": curves})
    return replace(found, shown=shown, curves=curves)


def _loaded(ranking: RankRequest, store: RankingStore, url: str) -> RankedFeatures:
    """The ranking of a finished store."""
    relief = store.read("relief")[None] if ranking.settings.of_rows else None
    found = _assembled(ranking, store.read_results(), relief)
    curves = store.read("curves") if "curves" in store else found.curves
    shown = np.array(store.header.get("shown", []), np.int64)
    return replace(found, shown=shown, curves=curves, store=url, info=_info(ranking, RankParts({}, {}, 0)))


def _info(ranking: RankRequest, parts: RankParts) -> dict[str, Any]:
    """Counters and timings of a ranking, for users and benchmarks."""
    return {
        "seconds": time.perf_counter() - ranking.started,
        "n_blocks": ranking.plan.n_blocks,
        "n_blocks_resumed": parts.n_resumed,
        "blocks_by_process": {process: stats.blocks for process, stats in parts.workers.items()},
        "bytes_read_by_process": {process: stats.bytes_read for process, stats in parts.workers.items()},
        "peak_bytes_by_process": {process: stats.peak_bytes for process, stats in parts.workers.items()},
        "plan": ranking.plan.facts(),
    }
