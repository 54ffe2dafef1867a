"""Class scores of samples -> labels, log probabilities and decisions; workers load them without scikit-learn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["best_classes", "log_probabilities", "score_difference", "unchanged"]


def best_classes(scores: NDArray[np.float64], classes: NDArray) -> NDArray:
    """(sample, class) ln y, (class,) labels -> (sample,) label of the largest score."""
    return classes[scores.argmax(axis=1)]


def log_probabilities(scores: NDArray[np.float64], temperature: float) -> NDArray[np.float64]:
    """(sample, class) ln y -> (sample, class) log of the softmax of ln y / T."""
    scaled = (scores - scores.max(axis=1, keepdims=True)) / temperature
    return scaled - np.logaddexp.reduce(scaled, axis=1, keepdims=True)


def score_difference(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample, 2) ln y -> (sample,) ln y of the second class less that of the first."""
    return scores[:, 1] - scores[:, 0]


def unchanged(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample, class) ln y -> the same."""
    return scores
