"""The criteria: locations and spreads -> one score per class and node."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.statistics import ClassStatistics

__all__ = ["CRITERIA", "extended_fisher", "fisher", "fisher_ratio", "threshold"]

Scores = NDArray[np.float64]


def fisher_ratio(location: Scores, spread: Scores, k: int, j: int, tolerance: Scores) -> Scores:
    """(class, node) location and spread, two classes -> (node,) F; -inf where both are the same constant.

    ``F = (mu_k - mu_j)^2 / (sigma_k^2 + sigma_j^2)``
    """
    difference = location[k] - location[j]
    variance = spread[k] ** 2 + spread[j] ** 2
    apart = np.where(np.abs(difference) > tolerance, np.inf, -np.inf)
    return np.divide(difference**2, variance, out=apart, where=variance > 0)


def threshold(spread: Scores, priors: Scores, k: int, j: int) -> Scores:
    """(class, node) spread, (class,) priors -> (node,) T of class k against class j; -inf where sigma_k is 0.

    ``T = 2 ln( sqrt(2 sigma_k^2 / (sigma_k^2 + sigma_j^2)) P_j / P_k )``
    """
    variance = spread[k] ** 2 + spread[j] ** 2
    share = np.divide(2 * spread[k] ** 2, variance, out=np.zeros_like(variance), where=variance > 0)
    log_share = np.log(share, out=np.full_like(share, -np.inf), where=share > 0)
    return log_share + 2 * np.log(priors[j] / priors[k])


def extended_fisher(statistics: ClassStatistics, priors: Scores, tolerance: Scores) -> Scores:
    """Statistics, (class,) priors, (node,) tolerance -> (class, node) D, the smallest over the other classes.

    ``D^{k|j} = F_kj - T^{k|j}``; larger is better, and D > 0 where the class's own density is,
    on average over the class, the larger one.
    """

    def divergence(k: int, j: int) -> Scores:
        ratio = fisher_ratio(statistics.location, statistics.spread, k, j, tolerance)
        # Where both are the same constant, F and T are both -inf: D stays -inf instead of becoming NaN.
        never = np.full_like(ratio, -np.inf)
        return np.subtract(ratio, threshold(statistics.spread, priors, k, j), out=never, where=ratio > -np.inf)

    return _smallest_over_pairs(divergence, *statistics.location.shape)


def fisher(statistics: ClassStatistics, priors: Scores, tolerance: Scores) -> Scores:
    """Statistics, (class,) priors, (node,) tolerance -> (class, node) F, the smallest over the other classes."""

    def ratio(k: int, j: int) -> Scores:
        return fisher_ratio(statistics.location, statistics.spread, k, j, tolerance)

    return _smallest_over_pairs(ratio, *statistics.location.shape)


def _smallest_over_pairs(score: Callable[[int, int], Scores], n_classes: int, n_nodes: int) -> Scores:
    scores = np.full((n_classes, n_nodes), np.inf)
    for k in range(n_classes):
        for j in range(n_classes):
            if j != k:
                np.minimum(scores[k], score(k, j), out=scores[k])
    return scores


CRITERIA: dict[str, Callable[[ClassStatistics, Scores, Scores], Scores]] = {
    "extended_fisher": extended_fisher,
    "fisher": fisher,
}
"""Every criterion by its name: statistics, priors and tolerance to one score per class and node."""
