"""The task of one row range of samples to score: read, look up, write."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.scorer import Scored, Scorer, log_likelihood, merge_scored
from fxdask.store.parquet import ParquetAddress
from fxdask.store.parquet_rows import read_arrow_rows
from fxdask.store.score_table import ScoreTable
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import Source, read_pieces
from fxdask.tasks.cache import job_cache
from fxdask.tasks.reading import as_declared, counted_pieces
from fxdask.tasks.telemetry import TaskCounters, WorkerStats, merge_worker_stats, this_worker
from fxdask.tasks.threads import one_blas_thread

__all__ = [
    "ScoreJob",
    "ScoreRange",
    "ScoreSummary",
    "log_score_rows",
    "merge_score_summaries",
    "open_scores",
    "result_block",
    "score_rows",
    "tabulate",
    "write_scores",
]


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoreJob:
    """All that a task needs besides its samples; a graph holds it once for all tasks."""

    scorer: Scorer
    classes: NDArray
    store: str
    label_codes: NDArray[np.intp]
    """(class,) index of each class among all labels: those of the model and the true ones."""
    n_labels: int
    likelihood: bool = False
    """Whether the store has the log likelihood of every sample."""
    chunks_may_exist: bool = True
    """Whether the store may hold chunks already, from an interrupted call or a lost worker."""
    as_table: bool = False
    """Whether the results are Parquet files instead of a Zarr group."""
    ids: ParquetAddress | Any = None
    """The columns that are copied into the table: their address, or an Arrow table in memory."""

    def confusion(self, truth: NDArray[np.integer], scores: NDArray[np.float64]) -> NDArray[np.int64]:
        """(sample,) codes of the true labels, (sample, class) scores -> (true, predicted) counts."""
        predicted = self.label_codes[scores.argmax(axis=1)]
        pairs = np.bincount(truth.astype(np.intp) * self.n_labels + predicted, minlength=self.n_labels**2)
        return pairs.reshape(self.n_labels, self.n_labels)


@dataclass(frozen=True)
class ScoreRange:
    """The index of a chunk of the result, and its rows; if ``stop`` is None, the samples are the range."""

    index: int
    start: int
    stop: int | None


@dataclass(frozen=True, kw_only=True)
class ScoreSummary:
    """The result of one or more ranges; its size does not depend on the number of samples.

    ``n_exact`` and ``n_summed`` do not count resumed samples, which an earlier task scored.
    """

    n_samples: int = 0
    n_exact: int = 0
    n_summed: int = 0
    n_resumed: int = 0
    workers: dict[str, WorkerStats]
    confusion: NDArray[np.int64] | None = None
    """(true label, predicted label) counts, if the true labels are known."""


def merge_score_summaries(parts: Iterable[ScoreSummary]) -> ScoreSummary:
    """Summaries of disjoint ranges, in any order -> one summary."""
    parts = list(parts)
    counted = [part.confusion for part in parts if part.confusion is not None]
    return ScoreSummary(
        n_samples=sum(part.n_samples for part in parts),
        n_exact=sum(part.n_exact for part in parts),
        n_summed=sum(part.n_summed for part in parts),
        n_resumed=sum(part.n_resumed for part in parts),
        workers=merge_worker_stats(part.workers for part in parts),
        confusion=np.sum(counted, axis=0) if counted else None,
    )


def open_scores(job: ScoreJob) -> ScoreStore | ScoreTable:
    """The store that the job writes to, opened once in each process."""

    def opened() -> ScoreStore | ScoreTable:
        if job.as_table:
            return ScoreTable.open(job.store, finished=False)
        return ScoreStore.open(job.store, "r+", finished=False)

    return job_cache(job).get("store", opened)


def write_scores(job: ScoreJob, index: int, start: int, scores: NDArray[np.float64]) -> None:
    """Write the results of one range; ``start`` is its first sample."""
    store, labels = open_scores(job), job.classes[scores.argmax(axis=1)]
    likelihood = log_likelihood(scores) if job.likelihood else None
    if isinstance(store, ScoreTable):
        ids = None if job.ids is None else read_arrow_rows(job.ids, start, start + len(scores))
        store.write_chunk(index, labels, scores, likelihood, ids)
    else:
        store.write_chunk(index, labels, scores, likelihood)


@one_blas_thread()
def tabulate(scorer: Scorer, k: int, nodes: list[int]) -> None:
    """One class at some nodes: make its density tables, which the scorer keeps."""
    scorer.tabulate(k, nodes)


@one_blas_thread()
def log_score_rows(scorer: Scorer, samples: Source, start: int, stop: int | None) -> Scored:
    """Range of raw samples -> their scores."""
    return _scored(scorer, samples, start, stop, TaskCounters())


def _scored(scorer: Scorer, samples: Source, start: int, stop: int | None, counters: TaskCounters) -> Scored:
    """Range of raw samples -> its scores; if ``stop`` is None, ``samples`` are the range."""
    pieces: Iterable[NDArray]
    if stop is None:
        rows = np.asarray(samples)
        pieces, stop = [rows], start + len(rows)
    else:
        pieces = read_pieces(samples, start, stop, partial(scorer.scratch, "raw"))
    counted = counted_pieces(pieces, start, stop, counters)
    return merge_scored(scorer.score_steps(counted, stop - start, start), scorer.n_classes)


def result_block(
    scorer: Scorer,
    rows: NDArray,
    declared: str,
    finish: Callable[[NDArray[np.float64]], NDArray],
    block_info: Any = None,
) -> NDArray:
    """(sample, feature) one chunk of a Dask array -> ``finish`` of its (sample, class) ln y; Dask passes block_info."""
    start, stop = block_info[None]["array-location"][0]
    rows = as_declared(rows, (stop - start, scorer.n_features), declared)
    return finish(log_score_rows(scorer, rows, start, None).scores)


def _done_scores(job: ScoreJob, store: ScoreStore | ScoreTable, index: int) -> NDArray[np.float64] | None:
    """(sample, class) scores of a chunk that was written before; None if any array lacks it or does not match."""
    scores = store.read_done(index, job.classes)
    if scores is None or not job.likelihood:
        return scores
    stored = store.read_likelihood(index)
    return scores if stored is not None and np.array_equal(stored, log_likelihood(scores)) else None


@one_blas_thread()
def score_rows(job: ScoreJob, samples: Source, truth: NDArray[np.integer] | None, rows: ScoreRange) -> ScoreSummary:
    """Range of raw samples -> summary; labels, scores and likelihoods are written to their chunk of the store.

    An existing chunk is read instead of computed, so a task may run twice.
    """
    store = open_scores(job)
    scores = _done_scores(job, store, rows.index) if job.chunks_may_exist else None
    if scores is not None:
        summary = ScoreSummary(n_samples=len(scores), n_resumed=len(scores), workers={})
    else:
        counters = TaskCounters(passes=1)
        scored = _scored(job.scorer, samples, rows.start, rows.stop, counters)
        scores = scored.scores
        write_scores(job, rows.index, rows.start, scores)
        if isinstance(samples, np.ndarray) and rows.stop is not None:
            counters.bytes_read = 0  # these samples are in the memory of the caller
        summary = ScoreSummary(
            n_samples=len(scores), n_exact=scored.n_exact, n_summed=scored.n_summed, workers=this_worker(counters)
        )
    return summary if truth is None else replace(summary, confusion=job.confusion(truth, scores))
