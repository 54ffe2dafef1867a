"""Correlations of squared weights with divergences, and the importances of features."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.importance import (
    ScoreScale,
    StepSums,
    merge_importance_sums,
    shares_of_features,
    weight_correlations,
)


def correlations(weights, divergences, edges=()):
    """The correlations, from sums over the ranges of nodes between the edges."""
    scale, starts, stops = ScoreScale.of(divergences), [0, *edges], [*edges, len(weights)]
    ranges = zip(starts, stops, strict=True)
    parts = [StepSums.of(weights[a:b], divergences[:, a:b]).at(scale) for a, b in ranges]
    return weight_correlations(merge_importance_sums(parts))


@given(
    seed=st.integers(0, 10_000),
    n_nodes=st.integers(1, 60),
    n_features=st.integers(1, 6),
    n_classes=st.integers(2, 4),
    missing=st.sampled_from([0, 0.1, 0.5, 0.97]),
    size=st.sampled_from([1e-200, 1, 1e12, 1e200]),
    edges=st.lists(st.integers(0, 60), max_size=3),
)
def test_correlations_match_the_oracle(seed, n_nodes, n_features, n_classes, missing, size, edges):
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((n_nodes, n_features)).astype(np.float32)
    divergences = (rng.standard_normal((n_classes, n_nodes)) + 3 * weights[:, 0] ** 2 + 1e6) * size
    divergences[rng.random(divergences.shape) < missing] = rng.choice([-np.inf, np.inf, np.nan])
    inside = sorted(edge for edge in edges if edge <= n_nodes)
    found = correlations(weights, divergences, inside)
    # The oracle gets numbers whose squares float64 represents; their correlations are the same.
    want = oracles.feature_correlations(weights, divergences / size)
    np.testing.assert_allclose(found, want, atol=1e-8)
    np.testing.assert_allclose(shares_of_features(found), oracles.feature_importances(want), atol=1e-6)


@pytest.mark.parametrize("outlier", [0, 1e9, -1e9])
def test_many_nodes_lose_no_digits(outlier):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((5_000, 3)).astype(np.float32)
    divergences = 1e9 + 1e-3 * rng.standard_normal((2, 5_000)) + 1e-3 * weights[:, 1] ** 2
    divergences[0, 7] += outlier
    want = oracles.feature_correlations(weights, divergences)
    np.testing.assert_allclose(correlations(weights, divergences), want, atol=1e-12)


def test_many_features_are_summed_a_few_at_a_time():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((20, 5_000)).astype(np.float32)
    divergences = rng.standard_normal((2, 20))
    found = correlations(weights, divergences)
    for feature in (0, 2_047, 2_048, 4_999):
        want = oracles.feature_correlations(weights[:, [feature]], divergences)
        np.testing.assert_allclose(found[:, [feature]], want, atol=1e-12)


@pytest.mark.parametrize("value", [0.1, 1.0, 3.7])
def test_without_variation_the_correlation_is_zero(value):
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((1_000, 2)).astype(np.float32)
    weights[:, 0] = value
    divergences = rng.standard_normal((2, 1_000))
    divergences[1] = value
    found = correlations(weights, divergences, [100, 400])
    assert found[0, 0] == found[1, 0] == found[1, 1] == 0
    assert found[0, 1] != 0


def test_two_nodes_are_too_few():
    rng = np.random.default_rng(0)
    weights = rng.standard_normal((9, 4)).astype(np.float32)
    divergences = rng.standard_normal((3, 9))
    divergences[0, 2:] = np.inf
    divergences[1, 3:] = -np.inf
    divergences[2] = np.inf
    found = correlations(weights, divergences)
    assert (found[0] == 0).all()
    assert (found[1] != 0).all()
    assert (found[2] == 0).all()


def test_negative_correlations_do_not_count():
    shares = shares_of_features(np.array([[0.3, -0.9, 0.0], [0.4, 0.0, 0.5]]))
    np.testing.assert_allclose(shares, [0.5, 0, 0.5])


def test_without_any_positive_correlation_all_features_are_equal():
    assert shares_of_features(np.array([[-0.5, 0, 0, -1], [0, 0, 0, 0]])).tolist() == [0.25] * 4
