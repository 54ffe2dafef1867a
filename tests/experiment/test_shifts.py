"""Random differences of locations, and pairs that are shifted by them."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import kstest

from fxdask.experiment.shifts import mean_differences, shifted_pair
from fxdask.kernels.statistics import ClassStatistics


@given(seed=st.integers(0, 10**6), a=st.integers(0, 8), n_nodes=st.integers(1, 300), more=st.integers(0, 300))
def test_a_draw_depends_on_seed_pair_and_node_alone(seed, a, n_nodes, more):
    few, many = (mean_differences(seed, (a, a + 1), count) for count in (n_nodes, n_nodes + more))
    assert np.array_equal(few, many[:n_nodes])
    assert not np.array_equal(few, mean_differences(seed + 1, (a, a + 1), n_nodes))
    assert not np.array_equal(few, mean_differences(seed, (a, a + 2), n_nodes))


def test_draws_are_normal_and_independent():
    values = np.concatenate([mean_differences(seed, (0, 1), 500) for seed in range(100)])
    assert kstest(values, "norm").pvalue > 0.001
    assert abs(np.corrcoef(mean_differences(0, (0, 1), 5000), mean_differences(0, (0, 2), 5000))[0, 1]) < 0.06


def test_the_second_class_is_shifted_to_the_given_difference():
    rng = np.random.default_rng(0)
    statistics = ClassStatistics(rng.normal(size=(4, 6)), rng.uniform(size=(4, 6)), np.arange(24).reshape(4, 6))
    wanted = rng.normal(size=6)
    own, shift = shifted_pair(statistics, (1, 3), wanted)
    np.testing.assert_allclose(own.location[1] - own.location[0], wanted)
    np.testing.assert_allclose(statistics.location[3] + shift - statistics.location[1], wanted)
    assert np.array_equal(own.spread, statistics.spread[[1, 3]])
    assert np.array_equal(own.source, statistics.source[[1, 3]])


def test_without_a_difference_nothing_is_shifted():
    rng = np.random.default_rng(0)
    statistics = ClassStatistics(rng.normal(size=(4, 6)), rng.uniform(size=(4, 6)), np.arange(24).reshape(4, 6))
    own, shift = shifted_pair(statistics, (2, 0), None)
    assert np.array_equal(own.location, statistics.location[[2, 0]])
    assert not shift.any()
