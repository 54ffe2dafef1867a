"""Normal scores of ranks and their shrunk correlations, against loops."""

from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.copula import SCORES_PER_UNIT, ScoreSums, factor, rank_scores, score_sums, shrunk_correlation


def drawn(rng, n_nodes, n_samples, kind):
    """(node, sample) correlated values; "ties" has few distinct ones, "constant" one node without any spread."""
    common = rng.standard_normal(n_samples)
    values = (rng.standard_normal((n_nodes, n_samples)) + common).astype(np.float32)
    if kind == "ties":
        values = np.round(values)
    if kind == "constant":
        values[0] = 3
    return values


@pytest.mark.parametrize("kind", ["distinct", "ties", "constant"])
@given(n_nodes=st.integers(1, 5), n_samples=st.integers(2, 30), seed=st.integers(0, 9999))
def test_scores_and_correlations_equal_the_oracle(kind, n_nodes, n_samples, seed):
    values = drawn(np.random.default_rng(seed), n_nodes, n_samples, kind)
    scores = rank_scores(values)
    assert (scores / SCORES_PER_UNIT).tolist() == [oracles.rank_scores(row) for row in values]
    ascending = values.copy()
    assert np.array_equal(rank_scores(ascending, sort=True), scores)
    assert np.array_equal(ascending, np.sort(values, axis=1))
    correlation, shrinkage = shrunk_correlation(score_sums(scores), n_samples)
    want, want_shrinkage = oracles.shrunk_correlations(values)
    assert shrinkage == pytest.approx(want_shrinkage, rel=1e-10)
    np.testing.assert_allclose(correlation, want, rtol=1e-10, atol=1e-13)
    inner, log_det = factor(correlation)
    np.testing.assert_allclose(inner, np.linalg.inv(want) - np.eye(n_nodes), rtol=1e-7, atol=1e-7)
    assert log_det == pytest.approx(np.linalg.slogdet(want)[1], rel=1e-9, abs=1e-9)


@given(cuts=st.lists(st.integers(0, 20_000), max_size=6), seed=st.integers(0, 99))
def test_sums_over_any_ranges_of_samples_are_the_same_to_the_last_bit(cuts, seed):
    scores = rank_scores(drawn(np.random.default_rng(seed), 4, 20_000, "distinct"))
    whole = score_sums(scores)
    edges = [0, *sorted(cuts), 20_000]
    parts = [score_sums(scores[:, low:high]) for low, high in pairwise(edges)]
    together = parts[-1]
    for part in parts[:-1]:
        together = part + together
    assert isinstance(together, ScoreSums)
    assert np.array_equal(together.totals, whole.totals)
    assert np.array_equal(together.products, whole.products)


@pytest.mark.parametrize("n_samples", [3, 8, 200])
def test_shrinkage_averages_one_for_independent_nodes(n_samples):
    """Before it is cut off at 1: the mean of r^2 is what independence gives, 1 / (v - 1)."""
    rng = np.random.default_rng(n_samples)
    found = []
    for _ in range(40):
        sums = score_sums(rank_scores(rng.standard_normal((30, n_samples)).astype(np.float32)))
        correlation, shrinkage = shrunk_correlation(sums, n_samples)
        assert np.linalg.eigvalsh(correlation)[0] > 0
        found.append(shrinkage)
    assert 0.9 < np.mean(found) <= 1


def test_strongly_correlated_nodes_are_hardly_shrunk():
    values = drawn(np.random.default_rng(0), 6, 5_000, "distinct")
    assert shrunk_correlation(score_sums(rank_scores(values)), 5_000)[1] == 0.001


def test_two_samples_or_one_node_have_no_correlations():
    values = np.array([[1, 2], [3, 4]], np.float32)
    for some, n_samples in ((values, 2), (values[:1], 2)):
        correlation, shrinkage = shrunk_correlation(score_sums(rank_scores(some)), n_samples)
        assert shrinkage == 1
        assert np.array_equal(correlation, np.eye(len(some)))
