"""Counts that describe how well class scores fit true labels; they can be added in any order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "N_BINS",
    "EvaluationCounts",
    "RoundedCounts",
    "count_scores",
    "merge_evaluations",
    "no_counts",
    "rounded_counts",
]

N_BINS = 20
"""Bins of equal width for the probability of the predicted class."""

# Sums of whole multiples of this unit are exact in any order, so no split of the samples changes them.
UNIT = 2.0**-30
# Float64 represents sums of whole numbers up to 2**53.
LARGEST_IN_ONE_SUM = 2.0**40
SIGNIFICANT_BITS = 14
NO_CLASS = -1


@dataclass(frozen=True)
class RoundedCounts:
    """(value,) ascending values of 14 significant bits, and how often each occurred."""

    values: NDArray[np.float64]
    counts: NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class EvaluationCounts:
    """Counts over samples with true labels; their size hardly depends on the number of samples."""

    confusion: NDArray[np.int64]
    """(label, class) samples by their true label and predicted class."""
    in_bin: NDArray[np.int64]
    """(bin,) samples by the probability of the predicted class."""
    correct_in_bin: NDArray[np.int64]
    """(bin,) those of them that were labelled correctly."""
    probability_in_bin: NDArray[np.int64]
    """(bin,) sum of these probabilities in multiples of 2^-30."""
    loss: int
    """Sum of -ln p of the true class in multiples of 2^-30, over the samples whose label is a class."""
    scores_correct: RoundedCounts
    """ln of the sum of all classes' scores, of the samples that were labelled correctly."""
    scores_wrong: RoundedCounts
    """The same for all other samples."""

    @property
    def mean_probability(self) -> NDArray[np.float64]:
        """(bin,) mean probability of the predicted class; NaN for an empty bin."""
        sums = self.probability_in_bin * UNIT
        return np.divide(sums, self.in_bin, out=np.full(len(sums), np.nan), where=self.in_bin > 0)

    @property
    def total_loss(self) -> float:
        """Sum of -ln p of the true class."""
        return self.loss * UNIT


def count_scores(
    scores: NDArray[np.float64],
    truth: NDArray[np.integer],
    label_codes: NDArray[np.intp],
    n_labels: int,
    temperature: float = 1.0,
) -> EvaluationCounts:
    """(sample, class) ln y, (sample,) codes of true labels, (class,) code of each class among the labels -> counts.

    Probabilities and losses are those of the softmax of ln y divided by the temperature.
    At most 2^23 samples at a time, so that the sums are exact.
    """
    n_classes = scores.shape[1]
    class_of_label = np.full(n_labels, NO_CLASS)
    class_of_label[label_codes] = np.arange(n_classes)
    predicted = scores.argmax(axis=1)
    total = np.logaddexp.reduce(scores, axis=1)
    correct = label_codes[predicted] == truth
    pairs = truth.astype(np.intp) * n_classes + predicted
    best = np.take_along_axis(scores, predicted[:, None], axis=1)
    scaled = (scores - best) / temperature
    log_sum = np.logaddexp.reduce(scaled, axis=1)
    probability = np.exp(-log_sum)
    bins = np.minimum((probability * N_BINS).astype(np.intp), N_BINS - 1)
    return EvaluationCounts(
        confusion=np.bincount(pairs, minlength=n_labels * n_classes).reshape(n_labels, n_classes),
        in_bin=np.bincount(bins, minlength=N_BINS),
        correct_in_bin=np.bincount(bins[correct], minlength=N_BINS),
        probability_in_bin=np.bincount(bins, np.rint(probability / UNIT), minlength=N_BINS).astype(np.int64),
        loss=_loss(log_sum[:, None] - scaled, class_of_label[truth]),
        scores_correct=rounded_counts(total[correct]),
        scores_wrong=rounded_counts(total[~correct]),
    )


def _loss(losses: NDArray[np.float64], true_class: NDArray[np.intp]) -> int:
    """(sample, class) -ln p, (sample,) true class or NO_CLASS -> sum over the true classes in multiples of UNIT."""
    known = np.flatnonzero(true_class != NO_CLASS)
    units = np.rint(losses[known, true_class[known]] / UNIT)
    # A sample far from all classes can have a loss of any size, so large ones are added as Python's whole numbers.
    large = units > LARGEST_IN_ONE_SUM
    return int(units[~large].astype(np.int64).sum()) + sum(map(int, units[large].tolist()))


def no_counts(n_labels: int, n_classes: int) -> EvaluationCounts:
    """The counts of no samples."""
    return count_scores(np.empty((0, n_classes)), np.empty(0, np.intp), np.arange(n_classes), n_labels)


def rounded_counts(values: NDArray[np.float64]) -> RoundedCounts:
    """(sample,) values -> how often each occurs, after rounding to 14 significant bits.

    Rounding bounds the number of different values, however far the outliers are. What a value is
    rounded to depends on itself alone, so counts of parts can be merged in any order.
    """
    mantissa, exponent = np.frexp(values)
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, SIGNIFICANT_BITS)), exponent - SIGNIFICANT_BITS)
    return RoundedCounts(*np.unique(rounded, return_counts=True))


def merge_evaluations(parts: Iterable[EvaluationCounts]) -> EvaluationCounts:
    """Counts of disjoint sets of samples, at least one, in any order -> counts of all samples."""
    parts = list(parts)
    return EvaluationCounts(
        confusion=_added([part.confusion for part in parts]),
        in_bin=_added([part.in_bin for part in parts]),
        correct_in_bin=_added([part.correct_in_bin for part in parts]),
        probability_in_bin=_added([part.probability_in_bin for part in parts]),
        loss=sum(part.loss for part in parts),
        scores_correct=_merged([part.scores_correct for part in parts]),
        scores_wrong=_merged([part.scores_wrong for part in parts]),
    )


def _added(parts: list[NDArray[np.int64]]) -> NDArray[np.int64]:
    total = parts[0].copy()
    for part in parts[1:]:
        total += part
    return total


def _merged(parts: list[RoundedCounts]) -> RoundedCounts:
    values, index = np.unique(np.concatenate([part.values for part in parts]), return_inverse=True)
    counts = np.zeros(len(values), np.int64)
    np.add.at(counts, index, np.concatenate([part.counts for part in parts]))
    return RoundedCounts(values, counts)
