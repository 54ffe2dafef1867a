"""The temperature against a search over all temperatures, and the scores of samples that are left out."""

from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.test_scorer import network

from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.density.cells import LARGEST_ERROR
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.temperature import LARGEST_LOG, MOST_HELD_OUT, held_out_columns, temperature_of

GRID = np.exp(np.linspace(-LARGEST_LOG, LARGEST_LOG, 121))


def drawn_scores(seed, n_samples, n_classes, size):
    """Scores of samples whose true class is mostly the best one."""
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, n_classes, n_samples)
    scores = size * rng.standard_normal((n_samples, n_classes))
    scores[np.arange(n_samples), codes] += 2 * size
    return scores, codes


@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 9999),
    n_samples=st.integers(1, 20),
    n_classes=st.integers(2, 5),
    size=st.sampled_from([1e-3, 1.0, 300.0, 1e12]),
)
def test_no_other_temperature_has_a_smaller_loss(seed, n_samples, n_classes, size):
    scores, codes = drawn_scores(seed, n_samples, n_classes, size)
    found = temperature_of(scores, codes)
    losses = [oracles.temperature_loss(scores.tolist(), codes.tolist(), t) for t in GRID]
    assert GRID[0] <= found <= GRID[-1]
    assert oracles.temperature_loss(scores.tolist(), codes.tolist(), found) <= min(losses) * (1 + 1e-6) + 1e-9


@pytest.mark.parametrize("difference", [-1e30, -1e6, 1e3, 1e6, 1e30])
def test_one_outlier_hardly_changes_the_temperature(difference):
    """Its score differs by more than those of all other samples together, to either side."""
    scores, codes = drawn_scores(1, 200, 3, 10.0)
    without = temperature_of(scores, codes)
    scores[7, codes[7]] += difference
    assert temperature_of(scores, codes) == pytest.approx(without, rel=0.15)


def test_equal_scores_have_a_temperature():
    found = temperature_of(np.zeros((4, 3)), np.array([0, 1, 2, 0]))
    assert 0 < found < np.inf


def test_a_shift_of_all_scores_of_a_sample_changes_nothing():
    scores, codes = drawn_scores(2, 50, 3, 4.0)
    shifted = scores + 1e4 * np.arange(50)[:, None]
    assert temperature_of(shifted, codes) == pytest.approx(temperature_of(scores, codes), rel=1e-4)


@given(counts=st.lists(st.sampled_from([2, 3, 50, 4_000, 30_000]), min_size=2, max_size=8))
def test_samples_of_all_classes_are_left_out_by_their_shares(counts):
    edges = np.cumsum([0, *counts]).tolist()
    slices = [slice(low, high) for low, high in pairwise(edges)]
    columns, codes = held_out_columns(slices)
    assert len(np.unique(columns)) == len(columns)
    for k, of_class in enumerate(slices):
        own = columns[codes == k]
        assert (own >= of_class.start).all()
        assert (own < of_class.stop).all()
        share = MOST_HELD_OUT * counts[k] / edges[-1]
        assert len(own) == min(counts[k], max(2, round(share)))


def some_samples(counts):
    """Classes of all samples, and a few samples of all classes."""
    codes = np.repeat(np.arange(len(counts)), counts)
    return codes, np.arange(len(codes))[:: max(1, len(codes) // 7)]


def error_of_rest(values, sample, bandwidth):
    """Bound on the error of a log density without one kernel, if that of the whole is known up to the tables' error."""
    of_kernel = -np.log(np.sqrt(2 * np.pi) * bandwidth * (len(values) - 1))
    rest = oracles.held_out_log_density(values, sample, bandwidth)
    return 2 * LARGEST_ERROR * (1 + np.exp(of_kernel - rest))


@pytest.mark.parametrize("combine", ["sum", "scaled", "log"])
@given(seed=st.integers(0, 999), n_nodes=st.integers(1, 4), counts=st.lists(st.integers(2, 25), min_size=2, max_size=3))
def test_scores_of_left_out_samples_equal_those_from_all_other_samples(combine, seed, n_nodes, counts):
    net = network(np.random.default_rng(seed), len(counts), n_nodes, counts, combine)
    codes, columns = some_samples(counts)
    found = Scorer(net).held_out_scores(net.projections[:, columns], codes[columns])
    usual = Scorer(net, "exact").class_scores(net.projections[:, columns]).scores
    for row, t, want in zip(found, columns.tolist(), usual, strict=True):
        k = codes[t]
        used = net.used_nodes()[k]
        values, sample = net.projections[used, net.class_slices[k]], t - net.class_slices[k].start
        widths = net.bandwidth[k, used]
        want[k] = net.log_priors[k] + oracles.held_out_score(values, sample, widths, net.spread[k, used], combine)
        allowed = np.full(len(counts), n_nodes * LARGEST_ERROR)
        allowed[k] = sum(error_of_rest(row, sample, width) for row, width in zip(values, widths, strict=True))
        assert (np.abs(row - want) <= allowed + 1e-9).all()


@given(seed=st.integers(0, 999), n_nodes=st.integers(1, 5), counts=st.lists(st.integers(2, 25), min_size=2, max_size=3))
def test_joint_scores_of_left_out_samples_equal_the_oracle(seed, n_nodes, counts):
    net = network(np.random.default_rng(seed), len(counts), n_nodes, counts, "joint")
    codes, columns = some_samples(counts)
    found = Scorer(net).held_out_scores(net.projections[:, columns], codes[columns])
    correlations = [np.linalg.inv(inner + np.eye(n_nodes)) for inner in net.learned["precision"]]
    widths = (net.bandwidth, net.location, net.spread)
    usual = oracles.joint_log_scores(
        net.projections[:, columns], net.projections, codes, correlations, *widths, np.exp(net.log_priors)
    )
    for row, t, want in zip(found, columns.tolist(), usual, strict=True):
        k = codes[t]
        of_class = net.class_slices[k]
        want[k] = net.log_priors[k] + oracles.held_out_joint_score(
            net.projections[:, of_class],
            t - of_class.start,
            correlations[k],
            net.learned["shrinkage"][k],
            *(of_classes[k] for of_classes in widths),
        )
        np.testing.assert_allclose(row, want, rtol=1e-6, atol=1e-3)


def test_a_sample_of_one_kernel_leaves_a_millionth():
    """Nothing is left of a density whose samples lie a thousand bandwidths apart, so its logarithm is bounded."""
    net = network(np.random.default_rng(0), 2, 1, [2, 2], "sum")
    net.projections[0, :2] = [0, 1000]
    net.bandwidth[:] = 1
    found = Scorer(net).held_out_scores(net.projections[:, :1], np.array([0]))
    assert found[0, 0] == pytest.approx(np.log(1e-6 / np.sqrt(2 * np.pi)) + net.log_priors[0], abs=1e-6)


@pytest.mark.parametrize("combine", COMBINATIONS)
def test_left_out_scores_are_the_same_for_tables_and_exact_sums(combine):
    rng = np.random.default_rng(3)
    net = network(rng, 3, 4, [30, 20, 5], combine)
    codes = np.repeat([0, 1, 2], [30, 20, 5])
    by_density = [Scorer(net, density).held_out_scores(net.projections, codes) for density in ("table", "exact")]
    assert np.array_equal(*by_density)
