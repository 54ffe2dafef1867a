"""How much every feature matters for every class: correlations of squared weights with divergences over all nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.scratch import Scratch
from fxdask.sizes import row_ranges

__all__ = [
    "ImportanceSums",
    "ScoreScale",
    "StepSums",
    "importance_sums",
    "merge_importance_sums",
    "nodes_per_step",
    "shares_of_features",
    "weight_correlations",
]

FEWEST_NODES = 3
FEATURES_AT_A_TIME = 2048  # bounds the float64 copies of the weights
DRAWS_PER_STEP = (1, 2, 3, 6)
"""Divisors of the usual number of draws in a block, so that blocks hold whole steps."""
WEIGHTS_PER_STEP = 2**17


@dataclass(frozen=True, kw_only=True)
class ImportanceSums:
    """Sums over some nodes, each class without the nodes where its score is missing; disjoint nodes may be added.

    ``square`` is a weight's square minus 1, which is the expectation of the square.
    """

    n_nodes: NDArray[np.float64]
    """(class,)"""
    score: NDArray[np.float64]
    """(class,)"""
    score_squared: NDArray[np.float64]
    """(class,)"""
    square: NDArray[np.float64]
    """(class, feature)"""
    square_squared: NDArray[np.float64]
    """(class, feature)"""
    product: NDArray[np.float64]
    """(class, feature) sums of square times score"""

    def __add__(self, other: ImportanceSums) -> ImportanceSums:
        return ImportanceSums(
            n_nodes=self.n_nodes + other.n_nodes,
            score=self.score + other.score,
            score_squared=self.score_squared + other.score_squared,
            square=self.square + other.square,
            square_squared=self.square_squared + other.square_squared,
            product=self.product + other.product,
        )


def merge_importance_sums(parts: Iterable[ImportanceSums]) -> ImportanceSums:
    """Sums of disjoint nodes -> those of all of them, added in the given order."""
    return reduce(add, parts)


@dataclass(frozen=True)
class ScoreScale:
    """(class,) centre and size of divergences, with which scores have median 0 and largest size 1.

    Correlations do not change by a scale. The mean of a class is never further from its median than one
    standard deviation, so sums of squares lose no digits; and with a largest size of 1 they cannot overflow.
    """

    centre: NDArray[np.float64]
    size: NDArray[np.float64]

    @classmethod
    def of(cls, divergences: NDArray[np.float64]) -> ScoreScale:
        """(class, node) divergences -> the scale of those that are finite."""
        centre, size = np.zeros((2, len(divergences)))
        for k, row in enumerate(divergences):
            finite = row[np.isfinite(row)]
            if len(finite):
                centre[k] = np.median(finite)
                size[k] = np.abs(finite - centre[k]).max()
        return cls(centre, size)

    @property
    def divisor(self) -> NDArray[np.float64]:
        """(class,) the size, or 1 where all divergences are equal."""
        return np.where(self.size > 0, self.size, 1.0)

    def scores(self, divergences: NDArray[np.float64]) -> NDArray[np.float64]:
        """(class, node) divergences -> comparable scores; NaN where they are infinite."""
        finite = np.where(np.isfinite(divergences), divergences, np.nan)
        return (finite - self.centre[:, None]) / self.divisor[:, None]


@dataclass(frozen=True)
class StepSums:
    """Sums over a step of nodes, whose scores have a scale of their own, as that of all nodes was not known yet."""

    sums: ImportanceSums
    scale: ScoreScale

    @classmethod
    def of(
        cls, weights: NDArray[np.float32], divergences: NDArray[np.float64], scratch: Scratch | None = None
    ) -> StepSums:
        """(node, feature) weights, (class, node) divergences of a few nodes -> their sums."""
        scale = ScoreScale.of(divergences)
        return cls(importance_sums(weights, scale.scores(divergences), scratch), scale)

    def at(self, scale: ScoreScale) -> ImportanceSums:
        """The same sums, of scores of another scale."""
        sums, factor = self.sums, self.scale.size / scale.divisor
        # A class without nodes in this step has no centre.
        offset = np.where(self.sums.n_nodes > 0, (self.scale.centre - scale.centre) / scale.divisor, 0.0)
        return ImportanceSums(
            n_nodes=sums.n_nodes,
            score=factor * sums.score + offset * sums.n_nodes,
            score_squared=factor**2 * sums.score_squared + 2 * factor * offset * sums.score + offset**2 * sums.n_nodes,
            square=sums.square,
            square_squared=sums.square_squared,
            product=factor[:, None] * sums.product + offset[:, None] * sums.square,
        )


def nodes_per_step(n_features: int, per_draw: int) -> int:
    """Nodes whose sums are made together: whole draws, whose float64 copies fit into the CPU cache."""
    fitting = [draws for draws in DRAWS_PER_STEP if draws * per_draw * n_features <= WEIGHTS_PER_STEP]
    return per_draw * max(fitting, default=1)


def importance_sums(
    weights: NDArray[np.float32], scores: NDArray[np.float64], scratch: Scratch | None = None
) -> ImportanceSums:
    """(node, feature) weights, (class, node) comparable scores -> the sums over these nodes."""
    (n_nodes, n_features), n_classes, scratch = weights.shape, len(scores), scratch or Scratch()
    present = np.isfinite(scores)
    filled = np.where(present, scores, 0.0)
    both = np.concatenate([present.astype(np.float64), filled])
    sums = np.empty((2 * n_classes, n_features))
    square_squared = np.empty((n_classes, n_features))
    for start, stop in row_ranges(n_features, FEATURES_AT_A_TIME):
        squares = scratch("squared weights", (n_nodes, stop - start), np.float64)
        np.square(weights[:, start:stop], dtype=np.float64, out=squares)
        squares -= 1
        sums[:, start:stop] = both @ squares
        squares *= squares
        square_squared[:, start:stop] = both[:n_classes] @ squares
    return ImportanceSums(
        n_nodes=present.sum(axis=1, dtype=np.float64),
        score=filled.sum(axis=1),
        score_squared=np.square(filled).sum(axis=1),
        square=sums[:n_classes],
        square_squared=square_squared,
        product=sums[n_classes:],
    )


def weight_correlations(sums: ImportanceSums) -> NDArray[np.float64]:
    """Sums over all nodes -> (class, feature) correlations of squared weights with scores.

    They are 0 for a class with fewer than 3 nodes, and where weights or scores do not vary.
    """
    n_nodes, score = sums.n_nodes[:, None], sums.score[:, None]
    covariance = n_nodes * sums.product - sums.square * score
    of_squares = n_nodes * sums.square_squared - np.square(sums.square)
    of_scores = n_nodes * sums.score_squared[:, None] - np.square(score)
    # Equal weights leave a variance of rounding errors alone, which is no variance.
    rounding = np.finfo(np.float64).eps * np.square(n_nodes) * sums.square_squared
    usable = (n_nodes >= FEWEST_NODES) & (of_squares > rounding) & (of_scores > 0)
    deviations = np.sqrt(np.where(usable, of_squares, 1)) * np.sqrt(np.where(usable, of_scores, 1))
    return np.where(usable, covariance / deviations, 0.0).clip(-1, 1)


def shares_of_features(correlations: NDArray[np.float64]) -> NDArray[np.float64]:
    """(class, feature) correlations -> (feature,) importances, whose sum is 1.

    A correlation's square is the share of the score's variance that the feature explains. A negative
    correlation means that the feature hides the class, so it does not count.
    """
    shares = np.square(np.maximum(correlations, 0)).sum(axis=0)
    total = shares.sum()
    return shares / total if total > 0 else np.full(len(shares), 1 / len(shares))
