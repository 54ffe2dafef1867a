"""The task that measures some candidates of a selection without redundancy, as features of the data."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.copula import rank_scores
from fxdask.kernels.features import as_features
from fxdask.kernels.redundancy import standard_scores
from fxdask.kernels.sorted_columns import sort_columns, sorted_statistics
from fxdask.kernels.statistics import shrunk_spread
from fxdask.store.columns import ColumnSource
from fxdask.tasks.rank import RankJob, ordered_features

__all__ = ["Candidates", "joined_candidates", "measure_features"]

SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Candidates:
    """Scores of some features at all samples, and what a joint selection needs besides."""

    scores: NDArray[np.int16]
    """(feature, sample), samples ordered by class"""
    location: NDArray[np.float64]
    """(class, feature)"""
    spread: NDArray[np.float64]
    """(class, feature), above 0"""


def joined_candidates(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of several tasks in their order."""
    return Candidates(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.location for part in parts], axis=1),
        np.concatenate([part.spread for part in parts], axis=1),
    )


def measure_features(job: RankJob, columns: ColumnSource, features: Sequence[int], how: str) -> Candidates:
    """Some features -> standard scores for "mrmr", or normal scores of the ranks within each class for "joint"."""
    measure = _for_mrmr if how == "mrmr" else _for_joint
    return joined_candidates([measure(job, columns, feature) for feature in features])


def _for_mrmr(job: RankJob, columns: ColumnSource, feature: int) -> Candidates:
    gathered, order = ordered_features(job, columns, feature)
    nothing = np.zeros((job.n_classes, 1))
    return Candidates(standard_scores(as_features(gathered, order).columns.values), nothing, nothing)


def _for_joint(job: RankJob, columns: ColumnSource, feature: int) -> Candidates:
    gathered, order = ordered_features(job, columns, feature)
    found = as_features(gathered, order)
    values = found.columns.values
    scores = np.concatenate([rank_scores(values[:, own]) for own in order.slices], axis=1)
    statistics = sorted_statistics(
        sort_columns(found.columns, np.array([feature])), found.tolerance, job.location, job.spread
    )
    spread = shrunk_spread(statistics.spread, job.class_counts) if job.shrink_spread else statistics.spread
    # A class that is constant has a narrow spread, not none, because covariances must have an inverse.
    floor = np.maximum(found.tolerance, max(SMALLEST_SPREAD, 2.0**-23 * float(np.abs(values).max())))
    return Candidates(scores, statistics.location, np.maximum(spread, floor))
