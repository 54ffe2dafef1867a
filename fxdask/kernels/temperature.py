"""The temperature of class probabilities: one number that makes scores as sure as they are right.

Scores of training samples are too good, because each sample is part of its own class's density. So
every sample is scored as if it had been left out of its class, which the sums allow without a refit.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax

__all__ = ["held_out_columns", "picked_slices", "samples_of_class", "temperature_of"]

MOST_HELD_OUT = 4096
CODES_PER_STEP = 2**20
LARGEST_LOG = 12.0
LARGEST_MARGIN = 3.0  # in medians


def held_out_columns(class_slices: Sequence[slice]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Columns of each class -> (sample,) columns of some samples of all classes by their shares, (sample,) classes."""
    total = class_slices[-1].stop
    columns, codes = [], []
    for k, of_class in enumerate(class_slices):
        count = of_class.stop - of_class.start
        n_chosen = min(count, max(2, round(MOST_HELD_OUT * count / total)))
        columns.append(of_class.start + np.arange(n_chosen) * count // n_chosen)
        codes.append(np.full(n_chosen, k))
    return np.concatenate(columns), np.concatenate(codes)


def picked_slices(class_slices: Sequence[slice]) -> list[slice]:
    """Columns of each class -> the columns of each class among the samples of :func:`held_out_columns`."""
    edges = np.searchsorted(held_out_columns(class_slices)[1], np.arange(len(class_slices) + 1)).tolist()
    return [slice(first, last) for first, last in pairwise(edges)]


def samples_of_class(codes: NDArray[np.integer], k: int, ranks: NDArray[np.intp]) -> NDArray[np.intp]:
    """(sample,) class codes, ascending ranks within one class -> indices of these samples; few codes at a time."""
    found, before = [], 0
    for start in range(0, len(codes), CODES_PER_STEP):
        own = np.flatnonzero(codes[start : start + CODES_PER_STEP] == k)
        here = ranks[(ranks >= before) & (ranks < before + len(own))]
        found.append(start + own[here - before])
        before += len(own)
    return np.concatenate(found)


def temperature_of(scores: NDArray[np.float64], codes: NDArray[np.intp]) -> float:
    """(sample, class) scores of samples that were left out, (sample,) their classes -> the temperature T.

    It minimises the log-loss of the softmax of scores / T. As in Platt's scaling, every label is
    taken as a little uncertain: without an error among few samples, T would be 0. One far outlier
    differs in its scores by more than all other samples together, so differences are limited.
    """
    n_samples, n_classes = scores.shape
    scores = _limited(scores, codes)
    doubt = 1 / (n_samples + 2)
    target = np.full(scores.shape, doubt / (n_classes - 1))
    target[np.arange(n_samples), codes] = 1 - doubt

    def loss(log_inverse: float) -> float:
        return -float((target * log_softmax(np.exp(log_inverse) * scores, axis=1)).sum())

    found = minimize_scalar(loss, bounds=(-LARGEST_LOG, LARGEST_LOG), method="bounded", options={"xatol": 1e-6})
    return float(np.exp(-found.x))


def _limited(scores: NDArray[np.float64], codes: NDArray[np.intp]) -> NDArray[np.float64]:
    """(sample, class) scores -> scores minus that of the true class, at most three times their median margin."""
    samples = np.arange(len(scores))
    difference = scores - scores[samples, codes][:, None]
    others = difference.copy()
    others[samples, codes] = -np.inf
    margins = np.abs(others.max(axis=1))
    limit = LARGEST_MARGIN * np.median(margins[margins > 0]) if margins.any() else 0.0
    return np.clip(difference, -limit, limit)
