"""The correlation ratio of a column and the classes: exact moments -> (1, column) scores and p-values."""

from __future__ import annotations

from math import lcm, sqrt

import numpy as np
from scipy.special import fdtrc

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required
from fxdask.kernels.moments import Moments

__all__ = ["PEARSON", "pearson", "pearson_p_values"]


def pearson(measured: Measurements) -> Scores:
    """Measurements -> (1, column) sqrt(SSB / SST); of two classes it is the absolute point-biserial correlation.

    A column without variation scores 0.
    """
    moments = required(measured.moments, Need.MOMENTS)
    scores = np.zeros((1, moments.counts.shape[1]))
    for column in range(scores.shape[1]):
        between, total = _sums_of_squares(moments, column)
        if total:
            # Python rounds a quotient of two integers once, however long they are.
            scores[0, column] = sqrt(between / total)
    return scores


def pearson_p_values(measured: Measurements, scores: Scores) -> Scores:
    """Measurements and their scores -> (1, column) p-values of the F test (one-way analysis of variance).

    A column without variation has 1; so has one with no more values than classes.
    """
    moments = required(measured.moments, Need.MOMENTS)
    p_values = np.ones_like(scores)
    for column in range(scores.shape[1]):
        counts = moments.counts[:, column]
        between, total = _sums_of_squares(moments, column)
        freedom_between = int(np.count_nonzero(counts)) - 1
        freedom_within = int(counts.sum()) - freedom_between - 1
        if not (between and freedom_between > 0 and freedom_within > 0):
            continue
        within = total - between
        ratio = (between * freedom_within) / (within * freedom_between) if within else np.inf
        p_values[0, column] = fdtrc(freedom_between, freedom_within, ratio) if within else 0.0
    return p_values


def _sums_of_squares(moments: Moments, column: int) -> tuple[int, int]:
    """Exact SSB and SST of a column, both multiplied by the same whole number."""
    counts = [int(n) for n in moments.counts[:, column]]
    sums = moments.sums[:, column].tolist()
    n, total = sum(counts), sum(sums)
    common = lcm(*(count for count in counts if count)) if n else 1
    of_classes = sum(common // count * part * part for count, part in zip(counts, sums, strict=True) if count)
    between = n * of_classes - common * total * total
    return between, common * (n * sum(moments.squares[:, column].tolist()) - total * total)


PEARSON = Criterion(
    name="pearson",
    needs=frozenset({Need.MOMENTS}),
    score=pearson,
    summary="correlation with the classes; separates them by their means, measured without robustness",
    per_class=False,
    p_values=pearson_p_values,
)
