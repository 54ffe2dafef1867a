"""Counts of an evaluation: equal to slow loops, and the same for every split of the samples."""

import math
from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.evaluation import (
    N_BINS,
    RoundedCounts,
    count_scores,
    merge_evaluations,
    no_counts,
    rounded_counts,
)


def made_up(seed, n_samples, n_classes, scale=3.0):
    """Log scores, true labels of which one is no class, and the classes among all labels."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_samples, n_classes)) * scale - 200
    truth = rng.integers(0, n_classes + 1, n_samples)
    return scores, truth, np.arange(n_classes)


def assert_equal(first, second):
    for name in ("confusion", "in_bin", "correct_in_bin", "probability_in_bin"):
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    assert first.loss == second.loss
    for name in ("scores_correct", "scores_wrong"):
        one, other = getattr(first, name), getattr(second, name)
        assert np.array_equal(one.values, other.values)
        assert np.array_equal(one.counts, other.counts)


@given(
    seed=st.integers(0, 100),
    n_samples=st.integers(1, 60),
    n_classes=st.integers(2, 5),
    scale=st.sampled_from([0.3, 30]),
)
def test_counts_equal_those_of_loops(seed, n_samples, n_classes, scale):
    scores, truth, codes = made_up(seed, n_samples, n_classes, scale)
    found = count_scores(scores, truth, codes, n_classes + 1)
    expected = oracles.evaluation(scores.tolist(), truth.tolist(), range(n_classes))
    for (label, predicted), count in expected["confusion"].items():
        assert found.confusion[label, predicted] == count
    assert found.confusion.sum() == n_samples
    assert found.in_bin.tolist() == [len(members) for members in expected["bins"]]
    assert found.correct_in_bin.tolist() == [sum(right for _, right in members) for members in expected["bins"]]
    for mean, members in zip(found.mean_probability, expected["bins"], strict=True):
        if members:
            assert mean == pytest.approx(math.fsum(sure for sure, _ in members) / len(members), abs=1e-9)
        else:
            assert math.isnan(mean)
    n_known = int((truth < n_classes).sum())
    if n_known:
        assert found.total_loss / n_known == pytest.approx(expected["log_loss"], abs=1e-8)
    else:
        assert found.loss == 0
    scored = np.sort(expected["score_samples"])
    kept = np.sort(
        np.concatenate([np.repeat(part.values, part.counts) for part in (found.scores_correct, found.scores_wrong)])
    )
    np.testing.assert_allclose(kept, scored, rtol=2**-14)


@given(seed=st.integers(0, 100), cuts=st.lists(st.integers(0, 200), max_size=5), order=st.randoms())
def test_no_split_changes_the_counts(seed, cuts, order):
    scores, truth, codes = made_up(seed, 200, 3)
    scores[::17] *= 1e7
    whole = count_scores(scores, truth, codes, 4)
    edges = [0, *sorted(cuts), 200]
    parts = [count_scores(scores[low:high], truth[low:high], codes, 4) for low, high in pairwise(edges)]
    order.shuffle(parts)
    assert_equal(merge_evaluations(parts), whole)
    assert_equal(merge_evaluations([merge_evaluations(parts[:2]), *parts[2:], no_counts(4, 3)]), whole)


def test_certain_predictions_are_in_the_last_bin():
    found = count_scores(np.array([[0.0, -1e9], [-1e9, 0.0]]), np.array([0, 0]), np.arange(2), 2)
    assert found.in_bin.tolist() == [0] * (N_BINS - 1) + [2]
    assert found.mean_probability[-1] == 1
    assert found.correct_in_bin[-1] == 1


def test_huge_losses_are_added_exactly():
    scores = np.array([[0.0, -1e30], [0.0, -3.0], [0.0, -1e12]])
    found = count_scores(scores, np.array([1, 1, 1]), np.arange(2), 2)
    assert found.total_loss == pytest.approx(1e30)
    without = count_scores(scores[1:2], np.array([1]), np.arange(2), 2)
    assert found.loss - without.loss == int(1e30) * 2**30 + int(1e12) * 2**30


def test_classes_may_be_any_of_the_labels():
    """The model knows the labels 1 and 3 of 0 to 3."""
    found = count_scores(np.array([[5.0, 1.0], [1.0, 5.0], [5.0, 1.0]]), np.array([1, 3, 2]), np.array([1, 3]), 4)
    assert found.confusion.tolist() == [[0, 0], [1, 0], [1, 0], [0, 1]]
    assert found.correct_in_bin.sum() == 2
    assert found.scores_wrong.counts.sum() == 1


@given(st.lists(st.floats(-1e30, 1e30), max_size=50))
def test_values_are_rounded_to_14_bits(values):
    values = np.array(values)
    found = rounded_counts(values)
    assert found.counts.sum() == len(values)
    assert (np.diff(found.values) > 0).all()
    mantissas = np.ldexp(np.frexp(found.values)[0], 14)
    assert np.array_equal(mantissas, np.rint(mantissas))
    np.testing.assert_allclose(np.repeat(found.values, found.counts), np.sort(values), rtol=2**-14)


def test_the_number_of_rounded_values_is_bounded():
    values = np.random.default_rng(0).normal(-300, 20, 200_000)
    found = rounded_counts(values)
    assert isinstance(found, RoundedCounts)
    assert len(found.values) < 20_000
