"""Gaussian copulas: normal scores of ranks, their correlations, and how strongly these are shrunk."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import cho_solve, cholesky
from scipy.special import ndtri

from fxdask.sizes import row_ranges

__all__ = ["SCORES_PER_UNIT", "ScoreSums", "factor", "rank_scores", "score_sums", "shrunk_correlation"]

SCORES_PER_UNIT = 2**10
"""Normal scores are integers in units of 1 / 1024, so that float64 sums of their products are exact in any order."""

SMALLEST_SHRINKAGE = 1e-3
INDEX_BITS = np.uint64(32)
ALL_BITS = np.uint32(2**32 - 1)
SIGN_BIT = np.uint32(2**31)
SAMPLES_AT_A_TIME = 2**13


@lru_cache(maxsize=64)
def _score_of_half_rank(n_samples: int) -> NDArray[np.int16]:
    """(half rank,) Phi^-1((rank - 1/2) / n) in units of 1 / 1024, for the ranks 1, 1.5, 2, ..., n."""
    scores = np.arange(1, 2 * n_samples, dtype=np.float64)
    scores /= 2 * n_samples
    ndtri(scores, out=scores)
    scores *= SCORES_PER_UNIT
    return np.rint(scores, out=scores).astype(np.int16)


def rank_scores(
    values: NDArray[np.float32], *, sort: bool = False, out: NDArray[np.int16] | None = None
) -> NDArray[np.int16]:
    """(node, sample) values of one class -> (node, sample) normal scores of their ranks; equal values share a rank.

    With ``sort``, the values are sorted in place, which takes no further time.
    """
    n_samples = values.shape[1]
    of_half_rank = _score_of_half_rank(n_samples)
    scores = np.empty(values.shape, np.int16) if out is None else out
    keys, ascending = np.empty(n_samples, np.uint64), np.empty(n_samples, np.float32)
    fill_keys, assign_scores = _compiled()
    # One sort of integers, each a value and its index, takes a third of the time of an indirect sort.
    for row, of_row in zip(values, scores, strict=True):
        fill_keys(row.view(np.uint32), keys)
        keys.sort()
        assign_scores(keys, of_half_rank, of_row, ascending.view(np.uint32))
        if sort:
            row[:] = ascending
    return scores


def _fill_keys(bits: NDArray[np.uint32], keys: NDArray[np.uint64]) -> None:
    """(sample,) bits of float32 values -> (sample,) integers in the order of the values, above the samples' indices."""
    for sample in range(len(bits)):
        value = bits[sample]
        if value == SIGN_BIT:  # the zero with a minus sign equals the other one
            value = np.uint32(0)
        value ^= ALL_BITS if value & SIGN_BIT else SIGN_BIT
        keys[sample] = np.uint64(value) << INDEX_BITS | np.uint64(sample)


def _assign_scores(
    keys: NDArray[np.uint64],
    of_half_rank: NDArray[np.int16],
    scores: NDArray[np.int16],
    ascending: NDArray[np.uint32],
) -> None:
    """(rank,) ascending keys -> (sample,) scores of their ranks, (rank,) bits of the ascending values."""
    first = 0
    while first < len(keys):
        value = keys[first] >> INDEX_BITS
        last = first
        while last + 1 < len(keys) and keys[last + 1] >> INDEX_BITS == value:
            last += 1
        bits = np.uint32(value)
        bits ^= SIGN_BIT if bits & SIGN_BIT else ALL_BITS
        for rank in range(first, last + 1):
            scores[keys[rank] & np.uint64(ALL_BITS)] = of_half_rank[first + last]
            ascending[rank] = bits
        first = last + 1


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """:func:`_fill_keys` and :func:`_assign_scores` compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_fill_keys), njit(_assign_scores)


@dataclass(frozen=True)
class ScoreSums:
    """Sums over the samples of one class, exact, so they can be added in any order."""

    totals: NDArray[np.float64]
    """(node,) sums of the scores"""
    products: NDArray[np.float64]
    """(node, node) sums of the products of two nodes' scores"""

    def __add__(self, other: ScoreSums) -> ScoreSums:
        return ScoreSums(self.totals + other.totals, self.products + other.products)


def score_sums(scores: NDArray[np.int16]) -> ScoreSums:
    """(node, sample) scores -> their sums; a bounded number of samples is widened to float64 at a time."""
    n_nodes, n_samples = scores.shape
    totals, products = np.zeros(n_nodes), np.zeros((n_nodes, n_nodes))
    for start, stop in row_ranges(n_samples, SAMPLES_AT_A_TIME):
        part = scores[:, start:stop].astype(np.float64)
        totals += part.sum(axis=1)
        products += part @ part.T
    return ScoreSums(totals, products)


def shrunk_correlation(sums: ScoreSums, n_samples: int) -> tuple[NDArray[np.float64], float]:
    """Sums over all samples of one class -> (node, node) shrunk correlations, and the shrinkage lambda.

    ``(1 - lambda) R + lambda I`` with ``lambda = sum(1 - r^2) / ((v - 2) sum r^2)`` over the entries off the
    diagonal, between 0.001 and 1. A node that is constant within the class has r = 0.
    """
    covariance = sums.products - np.outer(sums.totals, sums.totals) / n_samples
    variance = covariance.diagonal()
    scale = np.sqrt(np.divide(1.0, variance, out=np.zeros_like(variance), where=variance > 0))
    correlation = np.clip(covariance * scale * scale[:, None], -1, 1)
    np.fill_diagonal(correlation, 0)
    squares, n_pairs = float(np.square(correlation).sum()), correlation.size - len(correlation)
    shrinkage = 1.0
    if n_samples > 2 and squares > 0:
        shrinkage = min(1.0, max(SMALLEST_SHRINKAGE, (n_pairs - squares) / ((n_samples - 2) * squares)))
    correlation *= 1 - shrinkage
    np.fill_diagonal(correlation, 1)
    return correlation, shrinkage


def factor(correlation: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """(node, node) correlations R -> (node, node) ``R^-1 - I``, and ``ln det R``."""
    lower = cholesky(correlation, lower=True, check_finite=False)
    inverse = cho_solve((lower, True), np.eye(len(correlation)), check_finite=False)
    log_det = 2 * float(np.log(lower.diagonal()).sum())
    return (inverse + inverse.T) / 2 - np.eye(len(correlation)), log_det
