"""One worker's work on one range of samples to be labelled: read, look up, write."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.evidence import Work, merge_work, peak_bytes, this_process
from fxdask.kernels.decision import FittedNetwork, Scored
from fxdask.reading import read_range
from fxdask.store.samples import Source
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

    @cached_property
    def opened_store(self) -> ScoreStore:
        """The store to write into, opened once in every process."""
        return ScoreStore.open(self.store, "r+", finished=False)

    def __getstate__(self) -> dict[str, Any]:
        """What travels to workers: nothing that a process keeps for itself."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class ScoreSummary:
    """What comes back from one range or from several: small, whatever the number of samples."""

    n_samples: int
    n_exact: int
    n_summed: int
    n_chunks_resumed: int
    n_samples_resumed: int
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
        sum(part.n_chunks_resumed for part in parts),
        sum(part.n_samples_resumed for part in parts),
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
    return network.log_scores(read_range(samples, start, stop), start)


def log_score_block(network: FittedNetwork, rows: NDArray, block_info: Any = None) -> NDArray[np.float64]:
    """One chunk of a lazy array -> (sample, class) ln y; Dask tells where in the array the chunk stands."""
    start = block_info[None]["array-location"][0][0] if block_info else 0
    return log_score_rows(network, rows, start, None).scores


@one_blas_thread()
def score_rows(
    job: ScoreJob, samples: Source, truth: NDArray[np.integer] | None, index: int, start: int, stop: int | None
) -> ScoreSummary:
    """Range of raw samples -> their chunk of labels and scores in the store, then its mark.

    A marked chunk is not scored again, so running a task twice does no harm.
    """
    store = job.opened_store
    facts = store.facts_of(index)
    if facts is not None:
        n_exact, n_summed = facts
        scores, work, resumed = store.read_scores(index), {}, 1
    else:
        rows = read_range(samples, start, stop)
        scored = job.network.log_scores(rows, start)
        scores, n_exact, n_summed, resumed = scored.scores, scored.n_exact, scored.n_summed, 0
        bytes_read = 0 if isinstance(samples, np.ndarray) and stop is not None else rows.nbytes
        del rows
        store.write(index, job.classes[scores.argmax(axis=1)], scores, (n_exact, n_summed))
        work = {this_process(): Work(1, bytes_read, 1, 0, peak_bytes())}
    confusion = None
    if truth is not None:
        given = job.known[scores.argmax(axis=1)]
        pairs = np.bincount(truth.astype(np.intp) * job.n_known + given, minlength=job.n_known**2)
        confusion = pairs.reshape(job.n_known, job.n_known)
    return ScoreSummary(len(scores), n_exact, n_summed, resumed, resumed * len(scores), work, confusion)
