"""Fisher's criterion and the extended one: (class, column) location and spread -> (class, column) scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores

__all__ = ["EXTENDED_FISHER", "FISHER", "extended_fisher", "fisher", "fisher_ratio", "threshold"]


def fisher_ratio(location: Scores, spread: Scores, k: int, j: int, tolerance: Scores) -> Scores:
    """(class, column) location and spread, two classes -> (column,) F; -inf where both classes are the same constant.

    ``F = (mu_k - mu_j)^2 / (sigma_k^2 + sigma_j^2)``
    """
    difference = location[k] - location[j]
    variance = spread[k] ** 2 + spread[j] ** 2
    if_constant = np.where(np.abs(difference) > np.maximum(tolerance[k], tolerance[j]), np.inf, -np.inf)
    return np.divide(difference**2, variance, out=if_constant, where=variance > 0)


def threshold(spread: Scores, priors: Scores, k: int, j: int) -> Scores:
    """(class, column) spread, (class,) priors -> (column,) T of class k against class j; -inf where sigma_k is 0.

    ``T = 2 ln( sqrt(2 sigma_k^2 / (sigma_k^2 + sigma_j^2)) P_j / P_k )``
    """
    variance = spread[k] ** 2 + spread[j] ** 2
    share = np.divide(2 * spread[k] ** 2, variance, out=np.zeros_like(variance), where=variance > 0)
    log_share = np.log(share, out=np.full_like(share, -np.inf), where=share > 0)
    return log_share + 2 * np.log(priors[j] / priors[k])


def extended_fisher(measured: Measurements) -> Scores:
    """Measurements -> (class, column) D, the minimum over the other classes.

    ``D^{k|j} = F_kj - T^{k|j}``; larger is better. D > 0 where, on average over the samples of the
    class, its own density is larger than that of the other class.
    """
    statistics = measured.statistics

    def divergence(k: int, j: int) -> Scores:
        ratio = fisher_ratio(statistics.location, statistics.spread, k, j, measured.tolerance)
        # If both classes are the same constant, F and T are both -inf; D must be -inf too, not NaN.
        default = np.full_like(ratio, -np.inf)
        subtracted = threshold(statistics.spread, measured.priors, k, j)
        return np.subtract(ratio, subtracted, out=default, where=ratio > -np.inf)

    return _minimum_over_other_classes(divergence, *statistics.location.shape)


def fisher(measured: Measurements) -> Scores:
    """Measurements -> (class, column) F, the minimum over the other classes."""
    statistics = measured.statistics

    def ratio(k: int, j: int) -> Scores:
        return fisher_ratio(statistics.location, statistics.spread, k, j, measured.tolerance)

    return _minimum_over_other_classes(ratio, *statistics.location.shape)


def _minimum_over_other_classes(score: Callable[[int, int], Scores], n_classes: int, n_columns: int) -> Scores:
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
    "separates classes by their means and by their variances",
)
FISHER = Criterion(
    "fisher",
    frozenset({Need.LOCATION_AND_SPREAD}),
    fisher,
    "separates classes by their means alone",
)
