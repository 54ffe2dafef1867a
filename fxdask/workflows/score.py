"""Scoring whole test sets, store to store."""

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

from fxdask.errors import FxdaskError, InvalidInputError, StoreExistsError, StoreFormatError
from fxdask.execution import score as graphs
from fxdask.execution.client import active_client
from fxdask.execution.resources import measured_resources
from fxdask.execution.workers import check_reachable
from fxdask.kernels.scorer import Scorer
from fxdask.planning.score_plan import SamplesToScore, ScorePlan, plan_scores
from fxdask.progress import progress_bar
from fxdask.store.group import check_room, remove_group
from fxdask.store.lease import Lease, exclusive_lease
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import fingerprint, is_reachable, rows_per_chunk
from fxdask.store.transaction import Transaction
from fxdask.tasks.score import ScoreJob, ScoreSummary
from fxdask.workflows.data import Samples, checked_length, plain_labels
from fxdask.workflows.model import FittedModel

__all__ = ["BatchScores", "ScoreOptions", "TrueLabels", "checked_truth", "score_model"]

log = logging.getLogger(__name__)

LARGEST_DASK_CHUNK = 256 * 2**20
MOST_UNKNOWN_LABELS = 100


@dataclass(frozen=True, kw_only=True)
class BatchScores:
    """What a batch scoring did.

    Attributes
    ----------
    store : str
        Where the labels and scores are.
    n_samples : int
    seconds : float
    samples_per_second : float
        Of the samples that this call scored, reading and writing included.
    n_resumed : int
        Samples that an earlier call, which was stopped, had scored already.
    exact_share : float
        Share of the samples scored by this call whose two best classes were so close that every kernel was summed.
    summed_share : float
        Share of the densities at a point that no table covers, summed over the samples that count there.
    accuracy : float or None
        Share of right labels, if the true ones were given.
    confusion : ndarray or None
        ``confusion[i, j]`` counts the samples of ``labels[i]`` that were labelled ``labels[j]``.
    labels : ndarray or None
        The model's classes and whatever else occurs among the true labels.
    chunks_by_process, bytes_read_by_process, peak_bytes_by_process : dict
        What each process did, measured by itself.

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


@dataclass(frozen=True)
class ScoreOptions:
    """How a scoring works: none of it changes a result."""

    memory_limit: Any = None
    overwrite: bool = False
    verbose: bool = False


@dataclass(frozen=True)
class TrueLabels:
    """True labels as indices into all known labels, the model's and the true ones."""

    labels: NDArray
    codes: NDArray[np.integer]


@dataclass(frozen=True)
class _Scoring:
    """One scoring under way: what was asked for."""

    model: FittedModel
    samples: Samples
    truth: TrueLabels | None
    options: ScoreOptions

    @property
    def labels(self) -> NDArray:
        """All known labels."""
        return self.model.classes if self.truth is None else self.truth.labels


@dataclass(frozen=True)
class _Begun:
    """The store that is scored into, and the ranges that fit its chunks."""

    store: ScoreStore
    plan: ScorePlan
    resumable: bool
    """Whether a later call could tell that its samples are the same."""
    resumed: bool


def score_model(
    model: FittedModel, samples: Samples, out: str, truth: TrueLabels | None, options: ScoreOptions
) -> BatchScores:
    """Label checked samples into a store of labels and scores at ``out``."""
    started = time.perf_counter()
    scoring = _Scoring(model, samples, truth, options)
    with exclusive_lease(out) as lease:
        begun, summary, transaction = _run(scoring, lease)
        transaction.replace()
    if not begun.resumed:
        # Chunks may still have been there: from tasks of this call whose worker was lost.
        summary = replace(summary, n_resumed=0)
    return _result(out, summary, time.perf_counter() - started, model.scorer, truth)


def _run(scoring: _Scoring, lease: Lease) -> tuple[_Begun, ScoreSummary, Transaction]:
    """Begin or resume the store of this scoring, and score everything that is missing in it."""
    samples, truth, options = scoring.samples, scoring.truth, scoring.options
    job_digest, resumable = _job_digest(scoring)
    transaction = Transaction.beside(lease, "scores", job_digest, overwrite=options.overwrite)
    plan = _planned(samples, scoring.model.scorer, options.memory_limit)
    begun = _begin(transaction, scoring, plan, job_digest, resumable=resumable)
    store = begun.store
    transaction.remove_partial_files()
    check_reachable(store.url, "the scores")
    try:
        with progress_bar("scoring", shown=options.verbose, unit="samples", n_units=samples.n_samples) as progress:
            codes = None if truth is None else truth.codes
            summary = graphs.score(_score_job(scoring, begun), samples.handle, begun.plan, codes, progress)
        lease.check_held()
        store.finish(
            accuracy=_accuracy(summary),
            labels=None if truth is None else truth.labels.tolist(),
            confusion=None if summary.confusion is None else summary.confusion.tolist(),
        )
    except BaseException as error:
        if _is_useless(begun, error, samples):
            transaction.abandon()
        raise
    return begun, summary, transaction


def _score_job(scoring: _Scoring, begun: _Begun) -> ScoreJob:
    # On a cluster a task may have run before, on a worker that was lost.
    local = isinstance(scoring.samples.handle, np.ndarray) or active_client() is None
    return ScoreJob(
        scorer=scoring.model.scorer,
        classes=scoring.model.classes,
        store=begun.store.url,
        label_codes=np.searchsorted(scoring.labels, scoring.model.classes),
        n_labels=len(scoring.labels),
        chunks_may_exist=begun.resumed or not local,
    )


def _is_useless(begun: _Begun, error: BaseException, samples: Samples) -> bool:
    """Whether no later call could resume what was begun; if storage does not answer, it is kept."""
    with suppress(FxdaskError, OSError):
        bad_samples = isinstance(error, InvalidInputError) and is_reachable(samples.handle)
        return not begun.resumable or bad_samples or not begun.store.n_done()
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
    """True labels that can be compared with the model's classes."""
    checked_length(y, n_samples)
    if not len(y):
        return TrueLabels(classes, np.empty(0, np.uint8))
    y = plain_labels(y)
    if (y.dtype.kind in "UO") != (classes.dtype.kind in "UO"):
        raise InvalidInputError(f"y has dtype {y.dtype} but the model's classes are {classes.dtype}: none could match")
    if y.dtype.kind == "O":
        y = y.astype(str)
    elif y.dtype.kind in "biu" and classes.dtype.kind in "biu" and (y.astype(classes.dtype) == y).all():
        y = y.astype(classes.dtype)  # two types of integers would meet in floats, and large ones fall together there
    present, codes = np.unique(y, return_inverse=True)
    unknown = present[~np.isin(present, classes)]
    if len(unknown) > MOST_UNKNOWN_LABELS:
        raise InvalidInputError(
            f"y has {len(unknown):,} labels that the model does not know, {unknown[0]} among them, and "
            f"{MOST_UNKNOWN_LABELS} at most make sense; pass the labels of X"
        )
    labels = np.union1d(classes, present)
    return TrueLabels(labels, np.searchsorted(labels, present).astype(np.min_scalar_type(len(labels)))[codes])


def _planned(samples: Samples, scorer: Scorer, memory_limit: Any) -> ScorePlan:
    """Ranges of whole chunks that fit into the memory of the processes that will score them."""
    handle, whole = samples.handle, 0
    if isinstance(handle, DaskArray):
        chunk, copies = _uniform_rows(handle), 2
        whole = int(np.prod([max(lengths, default=0) for lengths in handle.chunks])) * samples.dtype.itemsize
    elif isinstance(handle, np.ndarray):
        chunk, copies = 0, 0
    else:
        chunk = min(rows_per_chunk(handle), samples.n_samples)
        copies = 2 if chunk else 1
    normalized = scorer.parameters.preprocessing.normalize is not None
    to_score = SamplesToScore(
        n_samples=samples.n_samples,
        n_features=samples.n_features,
        itemsize=samples.dtype.itemsize,
        rows_per_chunk=chunk,
        copies=copies,
        chunk_bytes=whole,
        widened=normalized or not np.can_cast(samples.dtype, np.float32),
    )
    local = isinstance(handle, np.ndarray) or active_client() is None
    resources = measured_resources(memory_limit, local=local)
    return plan_scores(to_score, len(scorer.parameters.nodes), scorer.n_used, scorer.n_classes, resources)


def _uniform_rows(array: DaskArray) -> int:
    """Rows of a Dask array's chunks, where these could be chunks of a Zarr array as they are; else 0."""
    rows = array.chunks[0]
    first = rows[0] if rows else 0
    uniform = first > 0 and all(length == first for length in rows[:-1]) and rows[-1] <= first
    return first if uniform and first * array.shape[1] * array.dtype.itemsize <= LARGEST_DASK_CHUNK else 0


def _job_digest(scoring: _Scoring) -> tuple[str, bool]:
    """What names a scoring, and whether an equal call would have the same name."""
    samples = scoring.samples
    # A Dask array's name may stay while the files behind it change.
    source = None if isinstance(samples.handle, DaskArray) else fingerprint(samples.handle)
    if source is None:
        return uuid4().hex, False
    facts = {
        "network": scoring.model.scorer.digest(),
        "classes": scoring.model.classes.tolist(),
        "samples": source,
        "n_samples": samples.n_samples,
    }
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest(), True


def _begin(transaction: Transaction, scoring: _Scoring, plan: ScorePlan, job_digest: str, *, resumable: bool) -> _Begun:
    """The store that an equal call left unfinished, or a new one."""
    resumed = _resumed(transaction, plan)
    if resumed is not None:
        return resumed
    url, model, n_samples = transaction.url, scoring.model, scoring.samples.n_samples
    check_room(url, n_samples * (8 * len(model.classes) + model.classes.dtype.itemsize))
    facts = {"job": job_digest, "classes": model.classes.tolist(), "model": model.job.store}
    try:
        store = ScoreStore.create(url, n_samples, plan.rows_per_task, model.classes, facts)
    except BaseException:
        remove_group(url)
        raise
    return _Begun(store, plan, resumable=resumable, resumed=False)


def _resumed(transaction: Transaction, plan: ScorePlan) -> _Begun | None:
    """What the same job left, if its chunks fit the plan; damaged, it is begun anew."""
    if transaction.header is None:
        return None
    begun_plan = plan.with_rows(transaction.header.get("rows_per_chunk"))
    if begun_plan is None:
        return None
    try:
        store = ScoreStore.open(transaction.url, "r+", finished=False)
        log.info("resuming %s, %d of %d chunks are done", transaction.url, store.n_done(), begun_plan.n_tasks)
    except (StoreFormatError, StoreExistsError) as error:
        log.info("beginning anew: %s", error)
        return None
    return _Begun(store, begun_plan, resumable=True, resumed=True)
