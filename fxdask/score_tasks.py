"""One worker's work on one range of samples to be labelled: read, look up, write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.evidence import Work, merge_work, peak_bytes, this_process
from fxdask.kernels.decision import FittedNetwork, Scored, merge_scored
from fxdask.reading import as_declared
from fxdask.store.samples import Source, read_pieces
from fxdask.store.scores import ScoreStore
from fxdask.threads import one_blas_thread

__all__ = [
    "ScoreJob",
    "ScoreSummary",
    "log_score_block",
    "log_score_rows",
    "merge_score_summaries",
    "score_rows",
    "tabulate",
]


@dataclass(frozen=True)
class ScoreJob:
    """Everything a task needs besides its samples: it enters a graph once."""

    network: FittedNetwork
    classes: NDArray
    store: str
    known: NDArray[np.intp]
    """(class,) place of each class among all labels that are known, the model's and the true ones."""
    n_known: int
    may_be_begun: bool = True
    """Whether chunks may be there already: from a call that was stopped, or a worker that was lost."""

    @cached_property
    def opened_store(self) -> ScoreStore:
        """The store to write into, opened once in every process."""
        return ScoreStore.open(self.store, "r+", finished=False)

    def confusion(self, truth: NDArray[np.integer], scores: NDArray[np.float64]) -> NDArray[np.int64]:
        """(sample,) true labels by their places, (sample, class) scores -> (true, given) counts."""
        given = self.known[scores.argmax(axis=1)]
        pairs = np.bincount(truth.astype(np.intp) * self.n_known + given, minlength=self.n_known**2)
        return pairs.reshape(self.n_known, self.n_known)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to workers: nothing that a process keeps for itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class ScoreSummary:
    """What comes back from one range or from several: small, whatever the number of samples.

    The slow ways are counted of the samples that were not there already.
    """

    n_samples: int
    n_exact: int
    n_summed: int
    n_resumed: int
    processes: dict[str, Work]
    confusion: NDArray[np.int64] | None
    """(true label, given label) counts, where the true labels are known."""


def merge_score_summaries(parts: Iterable[ScoreSummary]) -> ScoreSummary:
    """Summaries of disjoint ranges, in any order -> the summary of all of them."""
    parts = list(parts)
    counted = [part.confusion for part in parts if part.confusion is not None]
    return ScoreSummary(
        sum(part.n_samples for part in parts),
        sum(part.n_exact for part in parts),
        sum(part.n_summed for part in parts),
        sum(part.n_resumed for part in parts),
        merge_work(part.processes for part in parts),
        np.sum(counted, axis=0) if counted else None,
    )


@one_blas_thread()
def tabulate(network: FittedNetwork, k: int, u: int) -> float:
    """One class at one node -> its density tabulated, there in the network; returns the bound on its error."""
    return network.table(k, u).error


@one_blas_thread()
def log_score_rows(network: FittedNetwork, samples: Source, start: int, stop: int | None) -> Scored:
    """Range of raw samples -> their scores."""
    return _scored(network, samples, start, stop)[0]


def _scored(network: FittedNetwork, samples: Source, start: int, stop: int | None) -> tuple[Scored, int]:
    """Range of raw samples, or with no ``stop`` the range itself -> its scores, and the bytes it has."""
    if stop is None:
        pieces = [np.asarray(samples)]
    else:
        pieces = read_pieces(samples, start, stop, partial(network.scratch, "raw"))
    n_bytes, parts, place = sum(piece.nbytes for piece in pieces), [], start
    for piece in pieces:
        parts.append(network.log_scores(piece, place))
        place += len(piece)
    return merge_scored(parts, network.n_classes), n_bytes


def log_score_block(
    network: FittedNetwork, rows: NDArray, declared: str, block_info: Any = None
) -> NDArray[np.float64]:
    """One chunk of a lazy array -> (sample, class) ln y; Dask tells where in the array the chunk stands."""
    start, stop = block_info[None]["array-location"][0]
    rows = as_declared(rows, (stop - start, network.n_inputs), declared)
    return log_score_rows(network, rows, start, None).scores


@one_blas_thread()
def score_rows(
    job: ScoreJob, samples: Source, truth: NDArray[np.integer] | None, index: int, start: int, stop: int | None
) -> ScoreSummary:
    """Range of raw samples -> their chunk of labels and scores in the store.

    A chunk that is there is not scored again, so running a task twice does no harm.
    """
    store = job.opened_store
    scores = store.read_done(index, job.classes) if job.may_be_begun else None
    if scores is not None:
        summary = ScoreSummary(len(scores), 0, 0, len(scores), {}, None)
    else:
        scored, n_bytes = _scored(job.network, samples, start, stop)
        # What the caller has in memory anyway was not read.
        bytes_read = 0 if isinstance(samples, np.ndarray) and stop is not None else n_bytes
        scores = scored.scores
        store.write(index, job.classes[scores.argmax(axis=1)], scores)
        work = {this_process(): Work(1, bytes_read, 1, 0, peak_bytes())}
        summary = ScoreSummary(len(scores), scored.n_exact, scored.n_summed, 0, work, None)
    return summary if truth is None else replace(summary, confusion=job.confusion(truth, scores))
