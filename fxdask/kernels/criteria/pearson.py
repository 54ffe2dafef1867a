"""The correlation ratio of a column and the classes: exact moments -> (1, column) scores and p-values."""

from __future__ import annotations

from math import lcm, sqrt

import numpy as np
from numpy.typing import NDArray
from scipy.special import fdtrc

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.kernels.moments import Exact, Moments

__all__ = ["PEARSON", "pearson", "pearson_p_values"]


def pearson(measured: Measurements) -> Scores:
    """Measurements -> (1, column) sqrt(SSB / SST); of two classes it is the absolute point-biserial correlation.

    A column without variation scores 0.
    """
    between, total = _sums_of_squares(required(measured.moments, Need.MOMENTS))
    # Python rounds a quotient of two integers once, however long they are.
    pairs = zip(between.tolist(), total.tolist(), strict=True)
    return np.array([[sqrt(part / whole) if whole else 0.0 for part, whole in pairs]])


def pearson_p_values(measured: Measurements, scores: Scores) -> Scores:
    """Measurements and their scores -> (1, column) p-values of the F test (one-way analysis of variance).

    A column without variation has 1; so has one with no more values than classes.
    """
    moments = required(measured.moments, Need.MOMENTS)
    freedom_between = np.count_nonzero(moments.counts, axis=0) - 1
    freedom_within = moments.counts.sum(axis=0) - freedom_between - 1
    between, total = _sums_of_squares(moments)
    varies = (between > 0) & (freedom_between > 0) & (freedom_within > 0)
    ratios = np.zeros(len(varies))
    for column in np.flatnonzero(varies).tolist():
        of_classes, rest = between[column], total[column] - between[column]
        of_classes, rest = of_classes * int(freedom_within[column]), rest * int(freedom_between[column])
        ratios[column] = of_classes / rest if rest else np.inf
    p_values = fdtrc(np.maximum(1, freedom_between), np.maximum(1, freedom_within), ratios)
    return np.where(varies, np.where(np.isinf(ratios), 0.0, p_values), 1.0)[None]


def _sums_of_squares(moments: Moments) -> tuple[Exact, Exact]:
    """(column,) exact SSB and SST of every column, both multiplied by the same whole number."""
    sums, n = moments.sums, moments.counts.sum(axis=0).astype(object)
    common, factors = _common_multiples(moments.counts)
    total = sums.sum(axis=0)
    between = n * (factors * sums * sums).sum(axis=0) - common * total * total
    return between, common * (n * moments.squares.sum(axis=0) - total * total)


def _common_multiples(counts: NDArray[np.int64]) -> tuple[Exact, Exact]:
    """(class, column) counts -> (column,) their least common multiple, (class, column) this over each count, or 0."""
    distinct, of_column = np.unique(counts, axis=1, return_inverse=True)
    common = np.empty(distinct.shape[1], object)
    factors = np.zeros(distinct.shape, object)
    for at, column in enumerate(distinct.T.tolist()):
        common[at] = lcm(*(count for count in column if count))
        factors[:, at] = [common[at] // count if count else 0 for count in column]
    return common[of_column.ravel()], factors[:, of_column.ravel()]


PEARSON = Criterion(
    name="pearson",
    needs=frozenset({Need.MOMENTS}),
    score=pearson,
    summary="correlation with the classes; separates them by their means, measured without robustness",
    per_class=False,
    p_values=pearson_p_values,
)
