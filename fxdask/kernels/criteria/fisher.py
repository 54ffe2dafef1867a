"""Fisher's criterion and the extended one: (class, column) location and spread -> (class, column) scores."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.sizes import row_ranges

__all__ = ["EXTENDED_FISHER", "FISHER", "extended_fisher", "fisher"]

VALUES_AT_A_TIME = 3 * 2**12  # 96 KiB: they stay in the CPU cache, and malloc reuses memory instead of mapping it anew


def extended_fisher(measured: Measurements) -> Scores:
    """Measurements -> (class, column) D, the minimum over the other classes.

    ``D^{k|j} = F_kj - T^{k|j}``; larger is better. D > 0 where, on average over the samples of the
    class, its own density is larger than that of the other class.
    """

    def divergences(location: Scores, square: Scores, k: int, others: slice) -> Scores:
        variance = square[k] + square[others]
        result = _fisher_ratio(location, variance, k, others)
        result -= _threshold(square, variance, measured.priors, k, others)
        return result

    return _minimum_over_other_classes(divergences, measured)


def fisher(measured: Measurements) -> Scores:
    """Measurements -> (class, column) F, the minimum over the other classes."""

    def ratios(location: Scores, square: Scores, k: int, others: slice) -> Scores:
        return _fisher_ratio(location, square[k] + square[others], k, others)

    return _minimum_over_other_classes(ratios, measured)


def _fisher_ratio(location: Scores, variance: Scores, k: int, others: slice) -> Scores:
    """(class, column) location, (other class, column) variance of both classes -> (other class, column) F.

    ``F = (mu_k - mu_j)^2 / (sigma_k^2 + sigma_j^2)``
    """
    ratio = location[k] - location[others]
    ratio *= ratio
    ratio /= variance
    return ratio


def _threshold(square: Scores, variance: Scores, priors: Scores, k: int, others: slice) -> Scores:
    """(class, column) sigma^2, (other class, column) variance of both classes -> (other class, column) T.

    ``T = 2 ln( sqrt(2 sigma_k^2 / (sigma_k^2 + sigma_j^2)) P_j / P_k )``
    """
    share = 2 * square[k] / variance
    log_share = np.log(share, out=share)
    log_share += 2 * np.log(priors[others] / priors[k])[:, None]
    return log_share


@np.errstate(divide="ignore", invalid="ignore")
def _minimum_over_other_classes(
    scores: Callable[[Scores, Scores, int, slice], Scores], measured: Measurements
) -> Scores:
    """Scores of a class against others -> (class, column) minimum, from few others at a time."""
    statistics = required(measured.statistics, Need.LOCATION_AND_SPREAD)
    location, square = statistics.location, statistics.spread**2
    n_classes, n_columns = location.shape
    lowest = np.full((n_classes, n_columns), np.inf)
    constant = square == 0
    both_constant = (constant & (np.count_nonzero(constant, axis=0) > 1)).any(axis=1).tolist()
    for first, last in row_ranges(n_classes, max(1, VALUES_AT_A_TIME // max(1, n_columns))):
        others = slice(first, last)
        for k in range(n_classes):
            if first == k == last - 1:
                continue
            of_pairs = scores(location, square, k, others)
            if both_constant[k]:
                _compare_constants(of_pairs, measured, square, k, others)
            if first <= k < last:
                of_pairs[k - first] = np.inf
            np.minimum(lowest[k], np.minimum.reduce(of_pairs, axis=0), out=lowest[k])
    return lowest


def _compare_constants(of_pairs: Scores, measured: Measurements, square: Scores, k: int, others: slice) -> None:
    """Set the (other class, column) score of classes that are both constant: inf if they differ, else -inf."""
    location, tolerance = required(measured.statistics, Need.LOCATION_AND_SPREAD).location, measured.tolerance
    apart = np.abs(location[k] - location[others]) > np.maximum(tolerance[k], tolerance[others])
    np.copyto(of_pairs, np.where(apart, np.inf, -np.inf), where=(square[k] == 0) & (square[others] == 0))


EXTENDED_FISHER = Criterion(
    name="extended_fisher",
    needs=frozenset({Need.LOCATION_AND_SPREAD}),
    score=extended_fisher,
    summary="separates classes by their means and by their variances",
)
FISHER = Criterion(
    name="fisher",
    needs=frozenset({Need.LOCATION_AND_SPREAD}),
    score=fisher,
    summary="separates classes by their means alone",
)
