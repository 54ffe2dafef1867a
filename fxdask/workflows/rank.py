"""Rank features from checked data: plan, copy by columns if needed, score all blocks, into a store if there is one."""

from __future__ import annotations

import hashlib
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, MemoryPlanError, StoreExistsError
from fxdask.execution import rank as graphs
from fxdask.execution.client import active_client
from fxdask.execution.graphs import broadcast
from fxdask.execution.resources import measured_resources
from fxdask.execution.scan import digest_samples
from fxdask.execution.workers import check_reachable
from fxdask.kernels.criteria.base import Scores
from fxdask.kernels.features import gathered_type
from fxdask.planning.machine import Resources
from fxdask.planning.rank_plan import RankPlan, RankSize, RowFacts, plan_ranking
from fxdask.progress import progress_bar
from fxdask.sizes import MIB, format_bytes
from fxdask.store.columns import StagedColumns
from fxdask.store.group import check_room
from fxdask.store.lease import exclusive_lease
from fxdask.store.parquet import ParquetAddress, row_groups
from fxdask.store.ranking import RankingStore
from fxdask.store.sources import decoded_bytes, fingerprint, is_reachable, location_of, read_all, rows_per_chunk
from fxdask.store.transaction import Transaction
from fxdask.tasks.curves import class_curves
from fxdask.tasks.rank import OUTERMOST, RankJob, RankParts, moment_results, result_names
from fxdask.tasks.reading import as_declared
from fxdask.workflows.job import prior_values
from fxdask.workflows.model import TrainingData
from fxdask.workflows.rank_settings import RankSettings
from fxdask.workflows.ranked import RankedFeatures
from fxdask.workflows.redundancy import Redundancy, choose_features
from fxdask.workflows.relief import relief_scores
from fxdask.workflows.tables import named_features

__all__ = ["RankOptions", "rank"]

log = logging.getLogger(__name__)

SMALL = 64 * MIB
LIBRARY_BYTES = 128 * MIB
"""Memory of numba and of SciPy's distributions, which a process loads with its first block."""
MOST_READS = 20_000
"""Reads of row groups by all blocks up to which columns are read from Parquet itself."""
MOST_MOMENTS = 200_000
"""Of all classes and features, in one pass over the rows: they are Python's integers, some hundred bytes each."""
MOST_PROBES = 4096
SHOWN_PER_CRITERION = 3


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
class _Ranking:
    """A running ranking: what the call requested, and how it is split."""

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
        return self.job.plan


def rank(settings: RankSettings, data: TrainingData, options: RankOptions) -> RankedFeatures:
    """Rank the features, into a store if one is given; an unfinished store is resumed, a finished one is loaded."""
    with named_features(data.samples.names):
        started = time.perf_counter()
        check_reachable(location_of(data.samples.handle), "the samples")
        identity = _identity(settings, data, options) if options.store else {}
        ranking = _planned(settings, _small_in_memory(data, settings), options, started)
        if options.store is None and (ranking.reads_where_it_is or ranking.by_rows):
            return _run(ranking, None)
        folder = nullcontext(None) if options.store else _temporary_folder()
        with folder as temporary:
            if temporary is None:
                return _run_into_store(ranking, str(options.store), identity, overwrite=options.overwrite)
            url = str(Path(temporary, "ranking.zarr"))
            found = _run_into_store(ranking, url, {"run": uuid4().hex}, overwrite=False)
            return replace(found, store=None)


@contextmanager
def _temporary_folder() -> Iterator[str]:
    """A folder for the copies by columns, removed at the end; Dask's setting temporary-directory chooses its disk."""
    with tempfile.TemporaryDirectory(prefix="fxdask-", dir=dask.config.get("temporary-directory", None)) as folder:
        try:
            check_reachable(folder, "the copies of X by columns")
        except Exception as error:
            raise type(error)(f"{error}; or pass store= with such a path") from error
        yield folder


# Planning


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
        (array,) = dask.compute(handle)
        array = as_declared(array, (samples.n_samples, samples.n_features), samples.dtype.str)
    else:
        array = read_all(handle)
    return replace(data, samples=replace(samples, handle=np.ascontiguousarray(array)))


def _planned(settings: RankSettings, data: TrainingData, options: RankOptions, started: float) -> _Ranking:
    samples, handle = data.samples, data.samples.handle
    is_local = isinstance(handle, np.ndarray) and active_client() is None
    is_broadcast = isinstance(handle, np.ndarray) and not is_local and samples.n_bytes <= SMALL
    extra = LIBRARY_BYTES + (samples.n_bytes if is_broadcast else 0)
    resources = measured_resources(options.memory_limit, extra_baseline=extra, local=is_local)
    job = RankJob(
        plan=RankPlan(size=RankSize(n_samples=samples.n_samples, n_features=samples.n_features), features_per_block=1),
        criteria=settings.of_columns,
        codes=data.codes,
        priors=prior_values(settings.priors, data.counts),
        dtype=samples.dtype.str,
        location=settings.location,
        spread=settings.spread,
        shrink_spread=settings.shrink_spread,
        seed=settings.seed,
        omits_missing=settings.missing == "omit",
    )
    groups = row_groups(handle) if isinstance(handle, ParquetAddress) else []
    size = RankSize(
        n_samples=samples.n_samples,
        n_features=samples.n_features,
        itemsize=samples.dtype.itemsize,
        gathered_itemsize=gathered_type(samples.dtype).itemsize,
        sorts_columns=job.sorts_columns,
        n_results=len(result_names(settings.of_columns, len(data.classes))),
        piece_rows=max((group.n_rows for group in groups), default=0),
    )
    plan, where_it_is = plan_ranking(size, None, resources), is_local or is_broadcast
    where_it_is |= bool(groups) and len(groups) * plan.n_blocks <= MOST_READS
    if not where_it_is:
        plan = plan_ranking(replace(size, piece_rows=0), _row_facts(handle, samples.n_bytes), resources)
    return _Ranking(
        settings=settings,
        data=data,
        options=options,
        job=replace(job, plan=plan),
        resources=resources,
        reads_where_it_is=where_it_is,
        by_rows=not where_it_is and _needs_one_pass(job, samples.dtype, options),
        started=started,
    )


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


# The store


def _identity(settings: RankSettings, data: TrainingData, options: RankOptions) -> dict[str, Any]:
    """Everything that the result depends on: parameters, data, labels; not workers or memory."""
    samples, source = data.samples, None
    if not isinstance(samples.handle, (np.ndarray, DaskArray)):
        source = fingerprint(samples.handle)
    if source is None:
        with progress_bar("reading", shown=options.verbose) as progress:
            source = digest_samples(samples.handle, samples.n_samples, samples.n_features, progress)
    return {
        **json.loads(json.dumps(asdict(settings))),
        "samples": source,
        "samples_dtype": samples.dtype.newbyteorder("<").str,
        "labels": data.labels_digest(),
        "names": None if samples.names is None else [str(name) for name in samples.names],
    }


def _run_into_store(ranking: _Ranking, url: str, identity: Mapping[str, Any], *, overwrite: bool) -> RankedFeatures:
    """Create or resume the store of this ranking, run it, and move the store to its final path."""
    job = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()
    with exclusive_lease(url) as lease:
        transaction = Transaction.in_place(lease, "ranking", job, overwrite=overwrite)
        store, ranking = _open_or_create(transaction, ranking, identity, job)
        if transaction.is_finished:
            log.info("%s already holds this ranking", store.url)
            transaction.replace()
            return _loaded(ranking, RankingStore.open(lease.url), lease.url)
        transaction.remove_partial_files()
        check_reachable(store.url, "the store")
        try:
            found = _run(ranking, store)
        except InvalidInputError:
            # A store of invalid samples is useless, but samples that are only unreachable may be read again later.
            if transaction.header is None and is_reachable(ranking.data.samples.handle):
                transaction.abandon()
            raise
        lease.check_held()
        store.drop_staging()
        store.finish(shown=found.shown.tolist())
        transaction.replace()
        return replace(found, store=lease.url)


def _open_or_create(
    transaction: Transaction, ranking: _Ranking, identity: Mapping[str, Any], job: str
) -> tuple[RankingStore, _Ranking]:
    """The unfinished store of the same job with its own block size, or a new one."""
    url, header, plan = transaction.url, transaction.header, ranking.plan
    if header is not None:
        _refuse_other_job(url, header, identity)
        store = RankingStore.open(url, "r+", finished=False)
        plan = replace(plan, features_per_block=int(store.header["sizes"]["features_per_block"]))
        if not header["finished"] and plan.block_bytes > ranking.resources.per_task:
            raise MemoryPlanError(
                f"{url} was started with blocks of {plan.features_per_block} features, which need "
                f"{format_bytes(plan.block_bytes)} but a task may use "
                f"{format_bytes(max(0, ranking.resources.per_task))}; resume with more memory, or pass overwrite=True"
            )
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


def _run(ranking: _Ranking, store: RankingStore | None) -> RankedFeatures:
    """Score all blocks, find the neighbours of ReliefF, and draw the best features."""
    if ranking.by_rows:
        return _run_by_rows(ranking, store)
    ranking, columns = _columns(ranking, store)
    job = ranking.job
    log.info("ranking %d features in %d blocks", ranking.plan.size.n_features, ranking.plan.n_blocks)
    with progress_bar("ranking", shown=ranking.options.verbose) as progress:
        parts = graphs.rank_blocks(job, columns, progress)
    results = _all_results(parts, store)
    found = _assembled(ranking, results, _relief(ranking, results, store))
    if ranking.options.draws_curves:
        shown = _best(found)
        found = _with_curves(found, shown, graphs.draw_curves(job, columns, shown), store)
    if ranking.options.redundancy is not None:
        first = ranking.settings.criteria[0]
        wanted, by_first = ranking.options.redundancy, (found.score(first), found.order(first))
        found = replace(found, chosen=choose_features(wanted, job, columns, *by_first, ranking.resources))
    return replace(found, info=_info(ranking, parts))


def _run_by_rows(ranking: _Ranking, store: RankingStore | None) -> RankedFeatures:
    """Add up the moments of all features in one pass over the rows; curves are those of some samples."""
    job, codes = ranking.job, ranking.job.codes
    probed = np.unique(np.linspace(0, len(codes) - 1, MOST_PROBES).astype(np.int64))
    log.info("ranking %d features in one pass over %d ranges", job.plan.size.n_features, job.plan.n_ranges)
    with progress_bar("ranking", shown=ranking.options.verbose) as progress:
        summed = graphs.sum_moments(job, ranking.data.samples.handle, probed, progress)
    results = moment_results(job, summed.moments)
    if store is not None:
        for block in map(job.plan.block, range(job.plan.n_blocks)):
            store.write_block(block, results[:, block.start : block.stop])
    found = _assembled(ranking, results, _relief(ranking, results, store))
    if ranking.options.draws_curves:
        probes = np.concatenate([summed.probes[index] for index in sorted(summed.probes)])
        classes = [probes[codes[probed] == k] for k in range(job.n_classes)]
        shown = _best(found)
        curves = np.array([class_curves([rows[:, feature] for rows in classes]) for feature in shown.tolist()])
        found = _with_curves(found, shown, curves, store)
    return replace(found, info=_info(ranking, RankParts({}, summed.workers, 0)))


def _columns(ranking: _Ranking, store: RankingStore | None) -> tuple[_Ranking, Any]:
    """The source that tasks read columns from: X where it is, or copies of it in the store."""
    handle, plan = ranking.data.samples.handle, ranking.plan
    if ranking.reads_where_it_is:
        return ranking, broadcast(handle)
    assert store is not None, "copies need a store"
    dtype = ranking.data.samples.dtype.newbyteorder("=")
    per_range = store.prepare_staging(plan.size.n_samples, plan.rows_per_range, dtype)
    plan = replace(plan, rows_per_range=per_range)
    ranking = replace(ranking, job=replace(ranking.job, plan=plan))
    with progress_bar("transposing", shown=ranking.options.verbose) as progress:
        graphs.stage_columns(ranking.job, handle, progress)
    return ranking, StagedColumns(store.url, plan.size.n_samples, per_range, dtype.itemsize)


def _all_results(parts: RankParts, store: RankingStore | None) -> NDArray[np.float64]:
    """(result, feature) results of all blocks."""
    if store is not None:
        return store.read_results()
    return np.concatenate([parts.results[index] for index in sorted(parts.results)], axis=1)


def _relief(ranking: _Ranking, results: NDArray[np.float64], store: RankingStore | None) -> Scores | None:
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
        store.write("relief", weights[0])
    return weights


def _assembled(ranking: _Ranking, results: NDArray[np.float64], relief: Scores | None) -> RankedFeatures:
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
    n_anchors = settings.n_anchors
    return RankedFeatures(
        names=names,
        classes=data.classes,
        class_counts=data.counts,
        criteria=settings.criteria,
        scores=scores,
        p_values=p_values,
        missing=results[0].astype(np.int64),
        n_anchors=min(n_anchors or samples.n_samples, samples.n_samples) if settings.of_rows else None,
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
        store.write("curves", curves)
    return replace(found, shown=shown, curves=curves)


def _loaded(ranking: _Ranking, store: RankingStore, url: str) -> RankedFeatures:
    """The ranking of a finished store."""
    relief = store.read("relief")[None] if ranking.settings.of_rows else None
    found = _assembled(ranking, store.read_results(), relief)
    curves = store.read("curves") if "curves" in store else found.curves
    shown = np.array(store.header.get("shown", []), np.int64)
    return replace(found, shown=shown, curves=curves, store=url, info=_info(ranking, RankParts({}, {}, 0)))


def _info(ranking: _Ranking, parts: RankParts) -> dict[str, Any]:
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
