"""Scoring whole test sets, store to store."""

from __future__ import annotations

import hashlib
import json
import logging
import time
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask import score_graph
from fxdask.errors import FxdaskError, InvalidInputError, StoreExistsError, StoreFormatError
from fxdask.graph import active_client
from fxdask.inputs import Samples, as_labels, as_samples, check_test_samples, checked_length, plain_labels
from fxdask.kernels.decision import FittedNetwork
from fxdask.loading import load
from fxdask.network import FisherNetworkClassifier
from fxdask.progress import progress_bar
from fxdask.resources import checked_limit, measured_resources
from fxdask.score_plan import ScorePlan, TestSet, plan_scores
from fxdask.score_tasks import ScoreJob, ScoreSummary
from fxdask.store.group import (
    check_room,
    move_into_place,
    peek_header,
    refuse_foreign_files,
    remove_group,
)
from fxdask.store.layout import SCORE_ARRAYS
from fxdask.store.lease import Lease, only_one_at_a_time
from fxdask.store.place import store_url, working_url
from fxdask.store.samples import fingerprint, is_still_there, rows_per_chunk
from fxdask.store.scores import ScoreStore
from fxdask.workers import check_reachable

__all__ = ["BatchScores", "batch_score"]

log = logging.getLogger(__name__)

LARGEST_DASK_CHUNK = 256 * 2**20
MOST_UNKNOWN_LABELS = 100


@dataclass(frozen=True)
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
        Share of the densities at a place that no table covers, summed over the samples that count there.
    accuracy : float or None
        Share of right labels, if the true ones were given.
    confusion : ndarray or None
        ``confusion[i, j]`` counts the samples of ``labels[i]`` that were labelled ``labels[j]``.
    labels : ndarray or None
        The model's classes and whatever else occurs among the true labels.
    chunks_by_process, bytes_read_by_process, peak_bytes_by_process : dict
        What each process did, as told by itself.
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
class _Begun:
    """The store that is scored into, and the ranges that fit its chunks."""

    store: ScoreStore
    plan: ScorePlan
    resumable: bool
    """Whether a later call could tell that its samples are the same."""
    resumed: bool


@dataclass(frozen=True)
class _Truth:
    """True labels as places among all known labels."""

    labels: NDArray
    codes: NDArray[np.integer]


def batch_score(
    model: str | Path | FisherNetworkClassifier,
    X: Any,
    out: str | Path,
    y: Any = None,
    *,
    density: str | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    verbose: bool = False,
) -> BatchScores:
    """Label a test set of any size into a Zarr group.

    The group holds ``labels`` (sample,) and ``scores`` (sample, class), the log scores whose
    largest decides, in the order of the model's classes. Samples at a path, or in a Dask array,
    are scored on the workers of the connected client; an array in memory is scored where it is.

    Each task reads whole chunks of X and writes one whole chunk of the result. The same call after
    one that was stopped goes on where that stopped, if X is a path whose files have not changed, by
    their names, sizes and times. What is in memory, or comes from Dask, is scored from the start:
    whether that has changed could only be told by looking at all of it.

    Parameters
    ----------
    model : path, URL or fitted FisherNetworkClassifier
    X : array, DataFrame, Dask array, Zarr array, or path of a Zarr array or .npy file
    out : path or URL
        Must not exist yet, unless ``overwrite`` is set and it holds earlier scores. On a disk those
        stay until the new ones are complete; in an object store they go first.
    y : labels, optional
        Gives the accuracy and the confusion matrix.
    density : {"table", "exact"}, optional
        Densities looked up, or every kernel summed; the labels are the same. By default as the model was fitted.
    memory_limit : int, str or None
        Bytes, or a text such as "2 GiB", that local threads may use; None: what the machine has
        free. Workers have limits of their own.
    overwrite : bool, default=False
    verbose : bool, default=False
        Show a progress bar on standard error.

    Returns
    -------
    BatchScores
        Where the scores are, how many, how long it took, which processes did it; and the accuracy
        and the confusion matrix if ``y`` was given.

    Examples
    --------
    >>> import tempfile, fxdask
    >>> clf = fxdask.FisherNetworkClassifier(n_nodes=50).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> result = fxdask.batch_score(clf, [[0.05], [3.1]], tempfile.mkdtemp() + "/scored.zarr", y=[0, 1])
    >>> result.n_samples, result.accuracy
    (2, 1.0)
    """
    started = time.perf_counter()
    classifier = model if isinstance(model, FisherNetworkClassifier) else load(model)
    network = classifier.network_
    if density is not None:
        network = network.with_density(density)
    checked_limit(memory_limit)
    samples = as_samples(X, min_samples=0)
    check_test_samples(classifier, samples)
    truth = None if y is None else _checked_truth(as_labels(y), samples.n_samples, classifier.classes_)
    if not isinstance(out, (str, Path)):
        raise InvalidInputError(f"out must be a path or a URL, not {out!r}")
    final = store_url(out)
    with only_one_at_a_time(final) as lease:
        return _score_into(lease, classifier, network, samples, truth, memory_limit, started, overwrite, verbose)


def _score_into(
    lease: Lease,
    classifier: FisherNetworkClassifier,
    network: FittedNetwork,
    samples: Samples,
    truth: _Truth | None,
    memory_limit: Any,
    started: float,
    overwrite: bool,
    verbose: bool,
) -> BatchScores:
    """Score checked samples, while nobody else scores into the same place."""
    classes, final = classifier.classes_, lease.url
    _refuse_to_replace(final, overwrite=overwrite)
    begun = _begin(final, classifier.store_, network, classes, samples, _planned(samples, network, memory_limit))
    store, plan = begun.store, begun.plan
    lease.sweep(store.url)
    check_reachable(store.url, "the scores")
    labels = classes if truth is None else truth.labels
    # On a cluster a task may have run before, on a worker that was lost.
    look = begun.resumed or not (isinstance(samples.handle, np.ndarray) or active_client() is None)
    job = ScoreJob(network, classes, store.url, np.searchsorted(labels, classes), len(labels), look)
    try:
        with progress_bar("scoring", shown=verbose, unit="samples", n_units=samples.n_samples) as progress:
            summary = score_graph.score(job, samples.handle, plan, None if truth is None else truth.codes, progress)
        accuracy = _accuracy(summary)
        lease.confirm()
        store.finish(
            accuracy=accuracy,
            labels=None if truth is None else labels.tolist(),
            confusion=None if summary.confusion is None else summary.confusion.tolist(),
        )
    except BaseException as error:
        with suppress(FxdaskError, OSError):  # why the work failed matters more
            bad = isinstance(error, InvalidInputError) and is_still_there(samples.handle)
            if lease.is_mine() and (not begun.resumable or bad or not store.n_done()):
                remove_group(store.url)
        raise
    lease.confirm()
    # Something may have been put there meanwhile.
    _refuse_to_replace(final, overwrite=overwrite, beside=store.url)
    move_into_place(store.url, final)
    if not begun.resumed:
        # Chunks may still have been there: from tasks of this call whose worker was lost.
        summary = replace(summary, n_resumed=0)
    return _result(final, summary, time.perf_counter() - started, network, truth, accuracy)


def _result(
    store: str,
    summary: ScoreSummary,
    seconds: float,
    network: FittedNetwork,
    truth: _Truth | None,
    accuracy: float | None,
) -> BatchScores:
    n_densities = sum(len(network.used(k)) for k in range(network.n_classes))
    n_scored = max(1, summary.n_samples - summary.n_resumed)
    return BatchScores(
        store,
        summary.n_samples,
        seconds,
        summary.n_resumed,
        summary.n_exact / n_scored,
        summary.n_summed / (n_scored * n_densities),
        accuracy,
        summary.confusion,
        None if truth is None else truth.labels,
        {process: work.blocks for process, work in summary.processes.items()},
        {process: work.bytes_read for process, work in summary.processes.items()},
        {process: work.peak_bytes for process, work in summary.processes.items()},
    )


def _accuracy(summary: ScoreSummary) -> float | None:
    if summary.confusion is None or not summary.n_samples:
        return None
    return float(np.trace(summary.confusion) / summary.n_samples)


def _checked_truth(y: NDArray, n_samples: int, classes: NDArray) -> _Truth:
    """True labels that can be compared with the model's classes."""
    checked_length(y, n_samples)
    if not len(y):
        return _Truth(classes, np.empty(0, np.uint8))
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
    return _Truth(labels, np.searchsorted(labels, present).astype(np.min_scalar_type(len(labels)))[codes])


def _planned(samples: Samples, network: FittedNetwork, memory_limit: Any) -> ScorePlan:
    """Ranges of whole chunks that fit into the memory of whoever will score them."""
    handle, whole = samples.handle, 0
    if isinstance(handle, DaskArray):
        chunk, copies = _uniform_rows(handle), 2
        whole = int(np.prod([max(lengths, default=0) for lengths in handle.chunks])) * samples.dtype.itemsize
    elif isinstance(handle, np.ndarray):
        chunk, copies = 0, 0
    else:
        chunk = min(rows_per_chunk(handle), samples.n_samples)
        copies = 2 if chunk else 1
    widened = network.preparation.normalize is not None or not np.can_cast(samples.dtype, np.float32)
    test_set = TestSet(samples.n_samples, samples.n_inputs, samples.dtype.itemsize, chunk, copies, whole, widened)
    here = isinstance(handle, np.ndarray) or active_client() is None
    resources = measured_resources(memory_limit, here=here)
    return plan_scores(test_set, len(network.nodes), network.n_used, network.n_classes, resources)


def _uniform_rows(array: DaskArray) -> int:
    """Rows of a Dask array's chunks, where these could be chunks of a Zarr array as they are; else 0."""
    rows = array.chunks[0]
    first = rows[0] if rows else 0
    uniform = first > 0 and all(length == first for length in rows[:-1]) and rows[-1] <= first
    return first if uniform and first * array.shape[1] * array.dtype.itemsize <= LARGEST_DASK_CHUNK else 0


def _begin(
    final: str, model: str | None, network: FittedNetwork, classes: NDArray, samples: Samples, plan: ScorePlan
) -> _Begun:
    """The store that an equal call left unfinished, or a new one."""
    # A Dask array's name may stay while the files behind it change.
    source = None if isinstance(samples.handle, DaskArray) else fingerprint(samples.handle)
    facts = {
        "network": network.digest(),
        "classes": classes.tolist(),
        "samples": source,
        "n_samples": samples.n_samples,
    }
    job = hashlib.sha256(json.dumps(facts).encode()).hexdigest() if source else uuid4().hex
    url = working_url(final, job[:16])
    left = _left_by_an_equal_call(url, job, plan)
    if left is not None:
        return left
    check_room(url, samples.n_samples * (8 * len(classes) + classes.dtype.itemsize))
    header_facts = {"job": job, "classes": classes.tolist(), "model": model}
    try:
        store = ScoreStore.create(url, samples.n_samples, plan.rows_per_task, classes, header_facts)
    except BaseException:
        remove_group(url)
        raise
    return _Begun(store, plan, resumable=source is not None, resumed=False)


def _left_by_an_equal_call(url: str, job: str, plan: ScorePlan) -> _Begun | None:
    """What was begun at this address by the same job, if it is fit to go on with; damaged, it is as good as nothing."""
    try:
        header = peek_header(url)
        # Finished but not in its place: what is missing is only the last step.
        if header is None or header["kind"] != "scores" or header.get("job") != job:
            return None
        begun = plan.with_rows(header.get("rows_per_chunk"))
        if begun is None:
            return None
        store = ScoreStore.open(url, "r+", finished=False)
        log.info("going on with %s, %d of %d chunks are done", url, store.n_done(), begun.n_tasks)
        return _Begun(store, begun, resumable=True, resumed=True)
    except (StoreFormatError, StoreExistsError) as error:
        log.info("beginning anew: %s", error)
        return None


def _refuse_to_replace(url: str, *, overwrite: bool, beside: str | None = None) -> None:
    """Refuse what was not asked to be replaced; ``beside`` is where scores are that have no place to go."""
    if beside == url:
        return  # worked on in place
    try:
        _refuse_what_is_there(url, overwrite=overwrite)
    except StoreExistsError as error:
        if beside is None:
            raise
        raise StoreExistsError(f"{error}; it came while this was scored, and the scores are in {beside}") from None


def _refuse_what_is_there(url: str, *, overwrite: bool) -> None:
    header = peek_header(url)
    if header is None:
        return
    if header["kind"] != "scores":
        raise StoreExistsError(f"{url} holds a {header['kind']}, which scores never replace; choose another path")
    # Unfinished scores are nobody's result: the call that began them was stopped.
    if header["finished"] and not overwrite:
        raise StoreExistsError(
            f"{url} holds scores already; choose another path, or pass overwrite=True to replace them"
        )
    refuse_foreign_files(url, (spec.name for spec in SCORE_ARRAYS))
