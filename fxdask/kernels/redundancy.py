"""mRMR: features that tell much about the class and little about each other, chosen one after another.

C. Ding and H. Peng, "Minimum Redundancy Feature Selection from Microarray Gene Expression Data", 2005: the
difference of relevance and mean absolute correlation with the features that were chosen before.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.copula import SCORES_PER_UNIT, ScoreSums
from fxdask.kernels.moments import UNIT, Moments, class_moments
from fxdask.kernels.projection import ColumnValues

__all__ = ["Standard", "correlations_of", "scaled_relevance", "select_mrmr", "standard_scores", "standards_of"]

LARGEST_SCORE = 2**15 - 1


@dataclass(frozen=True)
class Standard:
    """Mean and standard deviation of a feature."""

    mean: float
    deviation: float

    def scores(self, values: NDArray[np.float32]) -> NDArray[np.int16]:
        """(sample,) values, NaN where one is missing -> (sample,) deviations from the mean.

        In standard deviations, rounded to 1/1024 of one and cut at 32, so that sums of products are exact in
        any order. A missing value counts as the mean, and so does every value of a constant feature.
        """
        if not self.deviation > 0:
            return np.zeros(len(values), np.int16)
        rounded = np.rint(SCORES_PER_UNIT * (values.astype(np.float64) - self.mean) / self.deviation)
        rounded[np.isnan(rounded)] = 0
        return np.clip(rounded, -LARGEST_SCORE, LARGEST_SCORE).astype(np.int16)


def standards_of(moments: Moments) -> list[Standard]:
    """Moments of all samples -> (feature,) mean and deviation, from exact sums; 0 where there is no value."""
    found = []
    for n, total, square in zip(
        *(of_class.sum(axis=0).tolist() for of_class in (moments.counts, moments.sums, moments.squares)), strict=True
    ):
        # Python rounds a quotient of two integers once, however long they are.
        mean = total / (n << UNIT) if n else 0.0
        found.append(Standard(mean, sqrt((n * square - total**2) / (n**2 << 2 * UNIT)) if n else 0.0))
    return found


def standard_scores(values: NDArray[np.float32]) -> NDArray[np.int16]:
    """(feature, sample) values, NaN where one is missing -> (feature, sample) standard scores."""
    standards = standards_of(class_moments(ColumnValues(values, [[slice(0, values.shape[1])]])))
    return np.stack([standard.scores(row) for standard, row in zip(standards, values, strict=True)])


def correlations_of(sums: ScoreSums, n_samples: int) -> NDArray[np.float64]:
    """Sums of standard scores and of their products -> (feature, feature) correlations; 0 with a constant feature."""
    covariance = sums.products - np.outer(sums.totals, sums.totals) / n_samples
    variance = covariance.diagonal()
    scale = np.sqrt(np.divide(1.0, variance, out=np.zeros_like(variance), where=variance > 0))
    return np.clip(covariance * scale * scale[:, None], -1, 1)


def scaled_relevance(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(feature,) scores -> (feature,) scores divided by the largest finite one; 1 if infinite, at least 0."""
    finite = scores[np.isfinite(scores)]
    largest = finite.max(initial=0.0)
    with np.errstate(invalid="ignore"):
        relevance = np.maximum(0.0, scores / largest if largest > 0 else np.zeros_like(scores))
    return np.where(np.isposinf(scores), 1.0, np.where(np.isneginf(scores), 0.0, relevance))


def select_mrmr(relevance: NDArray[np.float64], correlation: NDArray[np.float64], n_features: int) -> NDArray[np.int64]:
    """(feature,) relevance, (feature, feature) correlations -> (rank,) chosen features; ties go to the lower index."""
    n_features, absolute = min(n_features, len(relevance)), np.abs(correlation)
    redundancy, is_open = np.zeros(len(relevance)), np.ones(len(relevance), bool)
    chosen: list[int] = []
    for n_chosen in range(n_features):
        value = relevance - redundancy / max(1, n_chosen)
        best = int(np.argmax(np.where(is_open, value, -np.inf)))
        chosen.append(best)
        is_open[best] = False
        redundancy += absolute[best]
    return np.array(chosen, np.int64)
