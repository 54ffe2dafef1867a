import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.copula import score_sums
from fxdask.kernels.moments import class_moments, merge_moments
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.redundancy import correlations_of, scaled_relevance, select_mrmr, standard_scores, standards_of


@given(seed=st.integers(0, 9999), n_features=st.integers(1, 6), n_samples=st.integers(3, 40))
def test_features_equal_those_of_loops(seed, n_features, n_samples):
    rng = np.random.default_rng(seed)
    base = rng.standard_normal((n_features, n_samples))
    values = (base + 2 * base[rng.integers(0, n_features, n_features)]).astype(np.float32)
    relevance = rng.random(n_features)
    correlation = correlations_of(score_sums(standard_scores(values)), n_samples)
    np.testing.assert_allclose(correlation, np.atleast_2d(np.corrcoef(values.astype(float))), atol=2e-3)
    assert select_mrmr(relevance, correlation, 4).tolist() == oracles.mrmr(relevance, values.tolist(), 4)


def test_missing_and_constant_values_have_no_correlation():
    values = np.array([[1, 2, np.nan, 4], [3, 3, 3, 3], [np.nan] * 4, [1, 2, 0, 4]], np.float32)
    scores = standard_scores(values)
    assert scores[0, 2] == 0
    assert not scores[1:3].any()
    correlation = correlations_of(score_sums(scores), 4)
    assert np.array_equal(correlation[1], np.zeros(4))
    assert correlation[0, 3] > 0.7


def test_relevance_is_scaled_by_the_largest_finite_score():
    assert scaled_relevance(np.array([2.0, 4.0, -1.0, np.inf, -np.inf])).tolist() == [0.5, 1, 0, 1, 0]
    assert scaled_relevance(np.array([-1.0, -np.inf])).tolist() == [0, 0]


@given(seed=st.integers(0, 9999), n_samples=st.integers(2, 40), share=st.sampled_from([0.0, 0.3]))
def test_scores_do_not_depend_on_how_samples_are_split(seed, n_samples, share):
    rng = np.random.default_rng(seed)
    values = (rng.standard_normal((3, n_samples)) * 10.0 ** rng.integers(-20, 20, (3, 1))).astype(np.float32)
    values[rng.random(values.shape) < share] = np.nan
    cut = int(rng.integers(1, n_samples))
    parts = [values[:, :cut], values[:, cut:]]
    moments = [class_moments(ColumnValues(part, [[slice(0, part.shape[1])]])) for part in parts]
    standards = standards_of(merge_moments(moments))
    scores = [[one.scores(row) for one, row in zip(standards, part, strict=True)] for part in parts]
    assert np.array_equal(np.concatenate(scores, axis=1), standard_scores(values))


def test_sums_do_not_depend_on_how_samples_are_split():
    scores = standard_scores(np.random.default_rng(0).standard_normal((5, 1000)).astype(np.float32))
    whole, parts = score_sums(scores), score_sums(scores[:, :300]) + score_sums(scores[:, 300:])
    assert np.array_equal(whole.products, parts.products)
    assert correlations_of(whole, 1000).diagonal() == pytest.approx(1)
