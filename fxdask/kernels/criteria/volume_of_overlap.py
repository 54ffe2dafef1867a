"""The volume of overlap (Ho and Basu's F2): (class, column) ranges -> (class, column) scores."""

from __future__ import annotations

import numpy as np

from fxdask.kernels.criteria.base import Criterion, Measurements, Need, Scores, required

__all__ = ["VOLUME_OF_OVERLAP", "volume_of_overlap"]


def volume_of_overlap(measured: Measurements) -> Scores:
    """Measurements -> (class, column) share of the range of two classes that they do not share.

    The minimum over the other classes that have values. Two classes that are constant and equal score 0, as does
    a class without values, or without others beside it.
    """
    moments = required(measured.moments, Need.MOMENTS)
    lowest, highest, empty = moments.lowest.astype(np.float64), moments.highest.astype(np.float64), moments.counts == 0
    scores = np.full(lowest.shape, np.inf)
    for k in range(len(scores)):
        for j in range(len(scores)):
            if j == k:
                continue
            both = np.maximum(0, np.minimum(highest[k], highest[j]) - np.maximum(lowest[k], lowest[j]))
            either = np.maximum(highest[k], highest[j]) - np.minimum(lowest[k], lowest[j])
            is_wide = (either > 0) & ~(empty[k] | empty[j])
            pair = np.where(is_wide, 1 - both / np.where(is_wide, either, 1), np.where(empty[k] | empty[j], np.inf, 0))
            np.minimum(scores[k], pair, out=scores[k])
    return np.where(np.isinf(scores), 0.0, scores)


VOLUME_OF_OVERLAP = Criterion(
    name="volume_of_overlap",
    needs=frozenset({Need.MOMENTS}),
    score=volume_of_overlap,
    summary="share of two classes' common range in which only one of them has values; ruled by the outermost values",
)
