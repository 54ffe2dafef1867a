"""Joint selection: the nodes that leave the smallest overlap of the classes together, chosen one after another.

For Gaussian classes with means mu_k and covariances C_k on a set S of nodes,

    D^{k|j} = (mu_k - mu_j)' (C_k + C_j)^-1 (mu_k - mu_j) + ln det((C_k + C_j) / 2) - ln det C_k - 2 ln(P_j / P_k)

which is the extended Fisher criterion if S is one node, and the overlap of the set is

    Q(S) = sum_k P_k sum_{j != k} exp(-D^{k|j} / 2).

A further node changes each D by terms of its variances and of its difference of means that the chosen
nodes do not explain. The Cholesky factors of all C_k and of all C_k + C_j have these as their next
pivots, so one column of every factor is kept for all candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

__all__ = ["JointlySelected", "Pool", "factor_bytes", "select_jointly"]

SMALLEST_RESIDUAL = 0.05
FEWEST_SAMPLES_FOR_VETO = 10


@dataclass(frozen=True, kw_only=True)
class Pool:
    """The candidates: the parameters of every class at every one of them."""

    location: NDArray[np.float64]
    """(class, candidate)"""
    spread: NDArray[np.float64]
    """(class, candidate), above 0"""
    correlation: NDArray[np.float64]
    """(class, candidate, candidate)"""
    counts: NDArray[np.int64]
    """(class,) training samples"""
    priors: NDArray[np.float64]
    """(class,)"""


@dataclass(frozen=True)
class JointlySelected:
    """Candidates in the order in which they were chosen, and the overlap after each of them."""

    candidates: NDArray[np.intp]
    overlaps: NDArray[np.float64]


def factor_bytes(n_classes: int, n_candidates: int, n_nodes: int) -> int:
    """Memory of the factors of all classes and of all pairs of classes."""
    return 8 * n_candidates * n_nodes * n_classes * (n_classes + 1) // 2


class _Factors:
    """Cholesky factors of several covariance matrices of all candidates, one column for each chosen candidate."""

    def __init__(self, variance: NDArray[np.float64], n_nodes: int) -> None:
        self.residual = variance
        """(matrix, candidate) variance that the chosen nodes do not explain"""
        self._columns = np.empty((len(variance), n_nodes, variance.shape[1]))
        self._n_columns = 0

    def column(self, chosen: int, covariance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Chosen candidate, (matrix, candidate) its covariances -> (matrix, candidate) its column; residuals follow."""
        known = self._columns[:, : self._n_columns]
        column = self._columns[:, self._n_columns]
        np.subtract(covariance, np.matmul(known[:, None, :, chosen], known)[:, 0], out=column)
        column /= np.sqrt(self.residual[:, chosen, None])
        self.residual -= column**2
        self._n_columns += 1
        return column


def select_jointly(pool: Pool, n_nodes: int, order: NDArray[np.intp] | None = None) -> JointlySelected:
    """Candidates -> those that leave the smallest overlap, at most ``n_nodes``; ties go to the lower index.

    If the (candidate,) ``order`` is given, candidates are taken in this order instead.

    A candidate is passed over if, within a class of at least 10 samples, the chosen nodes leave less
    than 5% of its variance unexplained. So fewer nodes than requested may be chosen.
    """
    n_classes, n_candidates = pool.location.shape
    # Dividing a node by a number changes no overlap; this keeps squares of very large and small values in range.
    scale = pool.spread.max(axis=0)
    spread, location = pool.spread / scale, pool.location / scale
    first, second = np.array(list(combinations(range(n_classes), 2))).T
    n_nodes = min(n_nodes, n_candidates)
    classes = _Factors(spread**2, n_nodes)
    pairs = _Factors(spread[first] ** 2 + spread[second] ** 2, n_nodes)
    difference = location[first] - location[second]
    floor = np.where(pool.counts >= FEWEST_SAMPLES_FOR_VETO, SMALLEST_RESIDUAL, 0)[:, None] * spread**2
    log_ratio = np.log(pool.priors[second] / pool.priors[first])
    # Twice the exponents of both directions of each pair; exp(-D / 2) of (k | j) has the prior of k as its weight.
    divergence = np.stack([-2 * log_ratio, 2 * log_ratio])
    log_weight = np.log(np.stack([pool.priors[first], pool.priors[second]]))
    open_ = np.ones(n_candidates, bool)
    chosen, overlaps = [], []
    for _ in range(n_nodes):
        usable = open_ & (classes.residual > floor).all(axis=0) & (pairs.residual > 0).all(axis=0)
        if not usable.any():
            break
        of_candidate = _divergences(divergence, difference, classes.residual, pairs.residual, usable, (first, second))
        log_overlap = np.full(n_candidates, np.inf)
        log_overlap[usable] = _log_sum(log_weight[:, :, None] - 0.5 * of_candidate)
        best = int(np.argmin(log_overlap) if order is None else order[usable[order]][0])
        chosen.append(best)
        overlaps.append(np.exp(log_overlap[best]))
        divergence = of_candidate[:, :, int(usable[:best].sum())]
        open_[best] = False
        covariance = pool.correlation[:, best] * spread * spread[:, best, None]
        step = difference[:, best] / np.sqrt(pairs.residual[:, best])
        classes.column(best, covariance)
        difference -= step[:, None] * pairs.column(best, covariance[first] + covariance[second])
    return JointlySelected(np.array(chosen, np.intp), np.array(overlaps))


def _divergences(
    divergence: NDArray[np.float64],
    difference: NDArray[np.float64],
    of_class: NDArray[np.float64],
    of_pair: NDArray[np.float64],
    usable: NDArray[np.bool_],
    classes: tuple[NDArray[np.intp], NDArray[np.intp]],
) -> NDArray[np.float64]:
    """(direction, pair) D of the chosen nodes, residuals -> (direction, pair, usable candidate) D with each of them."""
    variance = of_pair[:, usable]
    gain = difference[:, usable] ** 2 / variance + np.log(variance / 2)
    log_own = np.log(of_class[:, usable])
    return divergence[:, :, None] + np.stack([gain - log_own[k] for k in classes])


def _log_sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """(direction, pair, candidate) logarithms -> (candidate,) log of their sum, also where all terms underflow to 0."""
    terms = terms.reshape(-1, terms.shape[2])
    top = terms.max(axis=0)
    terms -= top
    return top + np.log(np.exp(terms, out=terms).sum(axis=0))
