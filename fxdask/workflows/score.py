"""Score whole test sets into a store."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.errors import FxdaskError, InvalidInputError, MemoryPlanError, StoreExistsError, StoreFormatError
from fxdask.execution import score as graphs
from fxdask.execution.client import active_client, one_span
from fxdask.execution.resources import measured_resources
from fxdask.execution.workers import check_reachable
from fxdask.kernels.scorer import Scorer
from fxdask.planning.score_plan import SamplesToScore, ScorePlan, plan_scores
from fxdask.progress import progress_bar
from fxdask.store.group import check_room, remove_group
from fxdask.store.lease import Lease, lease_of_call
from fxdask.store.parquet import ParquetAddress
from fxdask.store.score_table import KIND as TABLE
from fxdask.store.score_table import ScoreTable, score_columns
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import fingerprint, is_reachable, rows_per_chunk
from fxdask.store.transaction import Transaction
from fxdask.tasks.score import ScoreJob, ScoreSummary, merge_score_summaries, write_scores
from fxdask.workflows.data import Samples, checked_length, plain_labels
from fxdask.workflows.model import FittedModel
from fxdask.workflows.tables import Ids, named_features
from fxdask.workflows.unchanged import changed_samples

__all__ = ["BatchScores", "ScoreOptions", "TrueLabels", "checked_truth", "planned_ranges", "score_model"]

log = logging.getLogger(__name__)

LARGEST_CHUNK = 256 * 2**20
MOST_UNKNOWN_LABELS = 100


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """Result of a batch scoring.

    Attributes
    ----------
    store : str
        Path of the labels and scores.
    n_samples : int
    seconds : float
    samples_per_second : float
        Throughput of the samples that this call scored, reading and writing included.
    n_resumed : int
        Samples that an earlier, interrupted call had scored already.
    exact_share : float
        Share of the samples of this call whose two best classes were so close that every kernel was summed.
    summed_share : float
        Share of the densities outside of their table, which were summed over the samples that contribute there.
    accuracy : float or None
        Share of correct labels, if the true labels were given.
    confusion : ndarray or None
        ``confusion[i, j]`` counts the samples of ``labels[i]`` that were labelled ``labels[j]``.
    labels : ndarray or None
        The model's classes, and all other labels that occur among the true ones.
    chunks_by_process, bytes_read_by_process, peak_bytes_by_process : dict
        Counters of each process, measured by the process itself.

    Examples
    --------
    >>> import tempfile, fxdask
    >>> clf = fxdask.FisherNetworkClassifier(n_nodes=50).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> result = fxdask.batch_score(clf, [[0.05], [3.1]], tempfile.mkdtemp() + "/scored.zarr", y=[0, 0])
    >>> result.confusion
    array([[1, 1],
           [0, 0]])
    """

    store: str
    n_samples: int
    seconds: float
    n_resumed: int = 0
    exact_share: float = 0.0
    summed_share: float = 0.0
    accuracy: float | None = None
    confusion: NDArray[np.int64] | None = None
    labels: NDArray | None = None
    chunks_by_process: dict[str, int] = field(default_factory=dict)
    bytes_read_by_process: dict[str, int] = field(default_factory=dict)
    peak_bytes_by_process: dict[str, int] = field(default_factory=dict)

    @property
    def samples_per_second(self) -> float:
        """Throughput, reading and writing included."""
        return (self.n_samples - self.n_resumed) / self.seconds


@dataclass(frozen=True, kw_only=True)
class ScoreOptions:
    """Options of a scoring; ``likelihood``, ``as_table`` and ``ids`` change what is written."""

    memory_limit: Any = None
    overwrite: bool = False
    verbose: bool = False
    likelihood: bool = False
    as_table: bool = False
    ids: Ids | None = None


@dataclass(frozen=True)
class TrueLabels:
    """True labels as indices into all known labels: the model's classes and the true labels."""

    labels: NDArray
    codes: NDArray[np.integer]


@dataclass(frozen=True)
class _Scoring:
    """A running scoring: what the call requested."""

    model: FittedModel
    samples: Samples
    truth: TrueLabels | None
    options: ScoreOptions

    @property
    def labels(self) -> NDArray:
        """All known labels."""
        return self.model.classes if self.truth is None else self.truth.labels


@dataclass(frozen=True)
class _Target:
    """The store that is written, new or resumed, and the plan that matches its chunks."""

    store: ScoreStore | ScoreTable
    plan: ScorePlan
    resumable: bool
    """Whether a later call can verify that its samples are the same."""
    resumed: bool


def score_model(
    model: FittedModel, samples: Samples, out: str, truth: TrueLabels | None, options: ScoreOptions
) -> BatchScores:
    """Label checked samples into a store of labels and scores at ``out``."""
    started = time.perf_counter()
    scoring = _Scoring(model, samples, truth, options)
    with one_span("fxdask score"), named_features(samples.names), lease_of_call(out) as lease:
        summary = _run(scoring, lease)
    return _result(out, summary, time.perf_counter() - started, model.scorer, truth)


def _run(scoring: _Scoring, lease: Lease) -> ScoreSummary:
    """Create or resume the store of this scoring, score every missing chunk, and move the store to its final path."""
    options = scoring.options
    job_digest, resumable = _job_digest(scoring)
    kind = TABLE if options.as_table else "scores"
    transaction = Transaction.beside(lease, kind, job_digest, overwrite=options.overwrite)
    plan = planned_ranges(scoring.samples, scoring.model.scorer, options.memory_limit)
    if transaction.is_finished:
        return _finished_before(scoring, transaction, plan)
    target = _create_or_resume(transaction, scoring, plan, job_digest, resumable=resumable)
    transaction.remove_partial_files()
    check_reachable(target.store.url, "the scores")
    try:
        summary = _score_missing(scoring, target)
        if resumable and _job_digest(scoring)[0] != job_digest:
            raise changed_samples(scoring.samples.handle)
        lease.check_held()
        target.store.finish(
            accuracy=_accuracy(summary),
            labels=None if scoring.truth is None else scoring.truth.labels.tolist(),
            confusion=None if summary.confusion is None else summary.confusion.tolist(),
        )
    except BaseException as error:
        if _cannot_be_resumed(target, error, scoring.samples):
            transaction.abandon()
        raise
    transaction.replace()
    # Tasks that ran again after a lost worker report their chunks as resumed, but this call wrote them.
    return summary if target.resumed else replace(summary, n_resumed=0)


def _finished_before(scoring: _Scoring, transaction: Transaction, plan: ScorePlan) -> ScoreSummary:
    """The summary of scores that an equal call has finished; they are read only to compare them with true labels."""
    log.info("%s already holds these scores", transaction.url)
    n_samples = scoring.samples.n_samples
    store: ScoreTable | ScoreStore
    store = ScoreTable.open(transaction.url) if scoring.options.as_table else ScoreStore.open(transaction.url)
    store.check_finished()
    if scoring.truth is None:
        return replace(merge_score_summaries([]), n_samples=n_samples, n_resumed=n_samples)
    rows = store.header["rows_per_file" if scoring.options.as_table else "rows_per_chunk"]
    return _score_missing(scoring, _Target(store, replace(plan, rows_per_task=rows), resumable=True, resumed=True))


def _score_missing(scoring: _Scoring, target: _Target) -> ScoreSummary:
    """Score every chunk that the store does not have -> the summary of all chunks."""
    options, truth, job = scoring.options, scoring.truth, _score_job(scoring, target)
    n_samples = scoring.samples.n_samples
    with progress_bar("scoring", shown=options.verbose, unit="samples", n_units=n_samples) as progress:
        codes = None if truth is None else truth.codes
        summary = graphs.score(job, scoring.samples.handle, target.plan, codes, progress)
    if options.as_table and not target.plan.n_tasks and not target.resumed:
        # One file without rows, because only a file can say which columns the table has.
        write_scores(job, 0, 0, np.empty((0, len(scoring.model.classes))))
    return summary


def _score_job(scoring: _Scoring, target: _Target) -> ScoreJob:
    # On a cluster a chunk may exist already, written by a worker that was lost.
    local = isinstance(scoring.samples.handle, np.ndarray) or active_client() is None
    return ScoreJob(
        scorer=scoring.model.scorer,
        classes=scoring.model.classes,
        store=target.store.url,
        label_codes=np.searchsorted(scoring.labels, scoring.model.classes),
        n_labels=len(scoring.labels),
        likelihood=scoring.options.likelihood,
        chunks_may_exist=target.resumed or not local,
        as_table=scoring.options.as_table,
        ids=None if scoring.options.ids is None else scoring.options.ids.source,
    )


def _cannot_be_resumed(target: _Target, error: BaseException, samples: Samples) -> bool:
    """Whether the unfinished store is useless to a later call; False if storage does not answer."""
    with suppress(FxdaskError, OSError):
        bad_samples = isinstance(error, InvalidInputError) and is_reachable(samples.handle)
        return not target.resumable or bad_samples or not target.store.n_done()
    return False


def _result(store: str, summary: ScoreSummary, seconds: float, scorer: Scorer, truth: TrueLabels | None) -> BatchScores:
    n_densities = sum(map(len, scorer.used_nodes))
    n_scored = max(1, summary.n_samples - summary.n_resumed)
    workers = summary.workers
    return BatchScores(
        store=store,
        n_samples=summary.n_samples,
        seconds=seconds,
        n_resumed=summary.n_resumed,
        exact_share=summary.n_exact / n_scored,
        summed_share=summary.n_summed / (n_scored * n_densities),
        accuracy=_accuracy(summary),
        confusion=summary.confusion,
        labels=None if truth is None else truth.labels,
        chunks_by_process={process: stats.blocks for process, stats in workers.items()},
        bytes_read_by_process={process: stats.bytes_read for process, stats in workers.items()},
        peak_bytes_by_process={process: stats.peak_bytes for process, stats in workers.items()},
    )


def _accuracy(summary: ScoreSummary) -> float | None:
    if summary.confusion is None or not summary.n_samples:
        return None
    return float(np.trace(summary.confusion) / summary.n_samples)


def checked_truth(y: NDArray, n_samples: int, classes: NDArray) -> TrueLabels:
    """Check that true labels can be compared with the model's classes, and encode them."""
    checked_length(y, n_samples)
    if not len(y):
        return TrueLabels(classes, np.empty(0, np.uint8))
    y = plain_labels(y)
    if (y.dtype.kind in "UO") != (classes.dtype.kind in "UO"):
        raise InvalidInputError(
            f"y has dtype {y.dtype} but the model's classes have {classes.dtype}, so no label can match; convert y"
        )
    if y.dtype.kind == "O":
        y = y.astype(str)
    elif y.dtype.kind in "biu" and classes.dtype.kind in "biu" and (y.astype(classes.dtype) == y).all():
        y = y.astype(classes.dtype)  # NumPy compares mixed integer types as floats, which merges large integers
    present, codes = np.unique(y, return_inverse=True)
    unknown = present[~np.isin(present, classes)]
    if len(unknown) > MOST_UNKNOWN_LABELS:
        raise InvalidInputError(
            f"y has {len(unknown):,} labels that the model does not know, such as {unknown[0]}, but at most "
            f"{MOST_UNKNOWN_LABELS} are allowed; pass the true labels of X"
        )
    labels = np.union1d(classes, present)
    return TrueLabels(labels, np.searchsorted(labels, present).astype(np.min_scalar_type(len(labels)))[codes])


def planned_ranges(samples: Samples, scorer: Scorer, memory_limit: Any) -> ScorePlan:
    """Plan row ranges of whole chunks that fit into the memory of the processes."""
    handle = samples.handle
    local = isinstance(handle, np.ndarray) or active_client() is None
    resources = measured_resources(memory_limit, local=local)

    def plan(to_score: SamplesToScore) -> ScorePlan:
        return plan_scores(to_score, len(scorer.parameters.nodes), scorer.n_used, scorer.n_classes, resources)

    to_score = _samples_to_score(samples, widened=scorer.parameters.preprocessing.normalize is not None)
    try:
        return plan(to_score)
    except MemoryPlanError:
        if not to_score.decoded_bytes:
            raise
        # Ranges of whole row groups are only faster: shorter ones need less memory.
        return plan(replace(to_score, rows_per_chunk=0))


def _samples_to_score(samples: Samples, *, widened: bool) -> SamplesToScore:
    """Size, type and chunks of the samples, for the plan."""
    handle, whole, decoded = samples.handle, 0, 0
    if isinstance(handle, DaskArray):
        chunk, copies = _uniform_rows(handle), 2
        whole = int(np.prod([max(lengths, default=0) for lengths in handle.chunks])) * samples.dtype.itemsize
    elif isinstance(handle, np.ndarray):
        chunk, copies = 0, 0
    elif isinstance(handle, ParquetAddress):
        chunk, copies, decoded = min(rows_per_chunk(handle), samples.n_samples), 1, handle.decoded_bytes
        if chunk * samples.n_features * samples.dtype.itemsize > LARGEST_CHUNK:
            chunk = 0
    else:
        chunk = min(rows_per_chunk(handle), samples.n_samples)
        copies = 2 if chunk else 1
    return SamplesToScore(
        n_samples=samples.n_samples,
        n_features=samples.n_features,
        itemsize=samples.dtype.itemsize,
        rows_per_chunk=chunk,
        copies=copies,
        chunk_bytes=whole,
        decoded_bytes=decoded,
        widened=widened or not np.can_cast(samples.dtype, np.float32),
    )


def _uniform_rows(array: DaskArray) -> int:
    """Rows per chunk of a Dask array whose chunks are regular, as Zarr needs, and not too large; else 0."""
    rows = array.chunks[0]
    first = rows[0] if rows else 0
    uniform = first > 0 and all(length == first for length in rows[:-1]) and rows[-1] <= first
    return first if uniform and first * array.shape[1] * array.dtype.itemsize <= LARGEST_CHUNK else 0


def _job_digest(scoring: _Scoring) -> tuple[str, bool]:
    """Digest of a scoring, and whether the same call would compute the same digest."""
    samples = scoring.samples
    # A Dask array has no fingerprint, because its name can stay the same while its files change.
    source = None if isinstance(samples.handle, DaskArray) else fingerprint(samples.handle)
    if source is None:
        return uuid4().hex, False
    facts = {
        "network": scoring.model.scorer.digest(),
        "classes": scoring.model.classes.tolist(),
        "samples": source,
        "n_samples": samples.n_samples,
    }
    if scoring.options.likelihood:
        # Only then, so that unfinished scores of an earlier fxdask are still the same job.
        facts["likelihood"] = True
    if scoring.options.as_table:
        facts["table"] = _table_columns(scoring)
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest(), True


def _create_or_resume(
    transaction: Transaction, scoring: _Scoring, plan: ScorePlan, job_digest: str, *, resumable: bool
) -> _Target:
    """The unfinished store of the same job, or a new one."""
    resumed = _resumed(transaction, plan)
    if resumed is not None:
        return resumed
    url, model, n_samples = transaction.url, scoring.model, scoring.samples.n_samples
    likelihood = scoring.options.likelihood
    check_room(url, n_samples * (8 * (len(model.classes) + likelihood) + model.classes.dtype.itemsize))
    facts = {"job": job_digest, "classes": model.classes.tolist(), "model": model.job.store}
    store: ScoreStore | ScoreTable
    if scoring.options.as_table:
        store = ScoreTable.create(url, facts | _table_facts(scoring, plan))
        return _Target(store, plan, resumable=resumable, resumed=False)
    try:
        store = ScoreStore.create(url, n_samples, plan.rows_per_task, model.classes, facts, likelihood=likelihood)
    except BaseException:
        remove_group(url)
        raise
    return _Target(store, plan, resumable=resumable, resumed=False)


def _table_columns(scoring: _Scoring) -> list[str]:
    options = scoring.options
    ids = [] if options.ids is None else list(options.ids.names)
    return score_columns(scoring.model.classes, ids, likelihood=options.likelihood)


def _table_facts(scoring: _Scoring, plan: ScorePlan) -> dict[str, Any]:
    """What the header of a score table says besides its job, classes and model."""
    return {
        "network": scoring.model.scorer.digest(),
        "n_samples": scoring.samples.n_samples,
        "rows_per_file": plan.rows_per_task,
        "columns": _table_columns(scoring),
    }


def _resumed(transaction: Transaction, plan: ScorePlan) -> _Target | None:
    """The unfinished store of the same job, or None if it is missing, damaged or of other chunks than the plan."""
    if transaction.header is None:
        return None
    as_table = transaction.kind == TABLE
    stored_plan = plan.with_rows(transaction.header.get("rows_per_file" if as_table else "rows_per_chunk"))
    if stored_plan is None:
        return None
    try:
        store: ScoreStore | ScoreTable
        if as_table:
            store = ScoreTable.open(transaction.url, finished=False)
        else:
            store = ScoreStore.open(transaction.url, "r+", finished=False)
        log.info("resuming %s, %d of %d chunks are done", transaction.url, store.n_done(), stored_plan.n_tasks)
    except (StoreFormatError, StoreExistsError) as error:
        log.info("starting again: %s", error)
        return None
    return _Target(store, stored_plan, resumable=True, resumed=True)
