"""Fisher's criterion and the extended one: location and spread -> one score per class and column."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores

__all__ = ["EXTENDED_FISHER", "FISHER", "extended_fisher", "fisher", "fisher_ratio", "threshold"]


def fisher_ratio(location: Scores, spread: Scores, k: int, j: int, tolerance: Scores) -> Scores:
    """(class, column) location and spread, two classes -> (column,) F; -inf where both are the same constant.

    ``F = (mu_k - mu_j)^2 / (sigma_k^2 + sigma_j^2)``
    """
    difference = location[k] - location[j]
    variance = spread[k] ** 2 + spread[j] ** 2
    apart = np.where(np.abs(difference) > tolerance, np.inf, -np.inf)
    return np.divide(difference**2, variance, out=apart, where=variance > 0)


def threshold(spread: Scores, priors: Scores, k: int, j: int) -> Scores:
    """(class, column) spread, (class,) priors -> (column,) T of class k against class j; -inf where sigma_k is 0.

    ``T = 2 ln( sqrt(2 sigma_k^2 / (sigma_k^2 + sigma_j^2)) P_j / P_k )``
    """
    variance = spread[k] ** 2 + spread[j] ** 2
    share = np.divide(2 * spread[k] ** 2, variance, out=np.zeros_like(variance), where=variance > 0)
    log_share = np.log(share, out=np.full_like(share, -np.inf), where=share > 0)
    return log_share + 2 * np.log(priors[j] / priors[k])


def extended_fisher(measured: Measurements) -> Scores:
    """Measurements -> (class, column) D, the smallest over the other classes.

    ``D^{k|j} = F_kj - T^{k|j}``; larger is better, and D > 0 where the class's own density is,
    on average over the class, the larger one.
    """
    statistics = measured.statistics

    def divergence(k: int, j: int) -> Scores:
        ratio = fisher_ratio(statistics.location, statistics.spread, k, j, measured.tolerance)
        # Where both are the same constant, F and T are both -inf: D stays -inf instead of becoming NaN.
        never = np.full_like(ratio, -np.inf)
        subtracted = threshold(statistics.spread, measured.priors, k, j)
        return np.subtract(ratio, subtracted, out=never, where=ratio > -np.inf)

    return _smallest_over_pairs(divergence, *statistics.location.shape)


def fisher(measured: Measurements) -> Scores:
    """Measurements -> (class, column) F, the smallest over the other classes."""
    statistics = measured.statistics

    def ratio(k: int, j: int) -> Scores:
        return fisher_ratio(statistics.location, statistics.spread, k, j, measured.tolerance)

    return _smallest_over_pairs(ratio, *statistics.location.shape)


def _smallest_over_pairs(score: Callable[[int, int], Scores], n_classes: int, n_columns: int) -> Scores:
    scores = np.full((n_classes, n_columns), np.inf)
    for k in range(n_classes):
        for j in range(n_classes):
            if j != k:
                np.minimum(scores[k], score(k, j), out=scores[k])
    return scores


EXTENDED_FISHER = Criterion(
    "extended_fisher",
    frozenset({Need.LOCATION_AND_SPREAD}),
    extended_fisher,
    "tells classes apart by their means and by their variances",
)
FISHER = Criterion(
    "fisher",
    frozenset({Need.LOCATION_AND_SPREAD}),
    fisher,
    "tells classes apart by their means alone",
)
