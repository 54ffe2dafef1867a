"""The task of one row range of test samples: read, score, count."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.evaluation import EvaluationCounts, count_scores, merge_evaluations, no_counts
from fxdask.kernels.scorer import Scorer
from fxdask.store.sources import Source, read_pieces
from fxdask.tasks.reading import counted_pieces
from fxdask.tasks.telemetry import TaskCounters
from fxdask.tasks.threads import one_blas_thread

__all__ = ["EvaluationJob", "evaluate_rows"]


@dataclass(frozen=True, eq=False)
class EvaluationJob:
    """All that a task needs besides its samples; a graph holds it once for all tasks."""

    scorer: Scorer
    label_codes: NDArray[np.intp]
    """(class,) index of each class among all labels: those of the model and the true ones."""
    n_labels: int
    temperature: float


@one_blas_thread()
def evaluate_rows(
    job: EvaluationJob, samples: Source, truth: NDArray[np.integer], start: int, stop: int | None
) -> EvaluationCounts:
    """Range of raw samples, their (sample,) label codes -> counts; if ``stop`` is None, ``samples`` are the range.

    Scores are counted step by step, so that only those of one step are in memory.
    """
    scorer = job.scorer
    pieces: Iterable[NDArray]
    if stop is None:
        rows = np.asarray(samples)
        pieces, stop = [rows], start + len(rows)
    else:
        pieces = read_pieces(samples, start, stop, partial(scorer.scratch, "raw"))
    total, done = no_counts(job.n_labels, scorer.n_classes), 0
    for scored in scorer.score_steps(counted_pieces(pieces, start, stop, TaskCounters()), stop - start, start):
        scores = scored.scores
        counts = count_scores(scores, truth[done : done + len(scores)], job.label_codes, job.n_labels, job.temperature)
        total = merge_evaluations([total, counts])
        done += len(scores)
    return total
