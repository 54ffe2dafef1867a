import math

import numpy as np
import oracles
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.integrate import quad

from fxdask.kernels.criteria import fisher
from fxdask.kernels.criteria.base import Measurements
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.statistics import ClassStatistics

FISHERS = ("extended_fisher", "fisher")
locations = st.floats(-50, 50)
spreads = st.one_of(st.just(0.0), st.floats(0.01, 20))
priors = st.floats(0.05, 0.95)


def score(criterion, location, spread, prior, tolerance):
    statistics = ClassStatistics(np.array(location), np.array(spread), np.zeros_like(spread, dtype=np.uint8))
    measured = Measurements(statistics=statistics, priors=np.array(prior), tolerance=np.array(tolerance))
    return CRITERIA[criterion].score(measured)


@given(
    n_classes=st.integers(2, 4),
    n_nodes=st.integers(1, 6),
    criterion=st.sampled_from(FISHERS),
    data=st.data(),
)
def test_scores_equal_the_oracle(n_classes, n_nodes, criterion, data):
    def drawn_table(of):
        row = st.lists(of, min_size=n_nodes, max_size=n_nodes)
        return np.array(data.draw(st.lists(row, min_size=n_classes, max_size=n_classes)))

    location, spread = drawn_table(locations), drawn_table(spreads)
    prior = np.array(data.draw(st.lists(priors, min_size=n_classes, max_size=n_classes)))
    prior /= prior.sum()
    tolerance = np.full((n_classes, n_nodes), 1e-6)
    got = score(criterion, location, spread, prior, tolerance)
    want = oracles.divergences(location, spread, prior, tolerance, criterion)
    assert np.array_equal(np.isinf(got), np.isinf(want))
    np.testing.assert_allclose(got, want, rtol=1e-13, atol=1e-13)


@given(
    shape=st.tuples(st.integers(2, 9), st.integers(1, 40)),
    zeros=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    locations_from=st.sampled_from([np.array([-1.0, 0.0, 1e-7, 1.0]), None]),
    at_a_time=st.integers(1, 200),
    seed=st.integers(0, 999),
)
def test_scores_equal_those_of_one_pair_after_another_bit_by_bit(shape, zeros, locations_from, at_a_time, seed):
    rng = np.random.default_rng(seed)
    spread = rng.choice([1e-40, 0.3, 1.0, 1e30], shape) * rng.choice([1.0, rng.uniform(0.5, 2)], shape)
    spread[rng.random(shape) < zeros] = 0
    location = rng.standard_normal(shape) if locations_from is None else rng.choice(locations_from, shape)
    prior = rng.dirichlet(np.ones(shape[0]))
    tolerance = rng.choice([0.0, 1e-6, 0.5], shape)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fisher, "VALUES_AT_A_TIME", at_a_time)
        for criterion in FISHERS:
            got = score(criterion, location, spread, prior, tolerance)
            assert got.tobytes() == oracles.pairwise_scores(location, spread, prior, tolerance, criterion).tobytes()


def normal(x, location, spread):
    """The density of a normal distribution; that of SciPy takes a hundred times as long for one point."""
    return math.exp(-(((x - location) / spread) ** 2) / 2) / (spread * math.sqrt(2 * math.pi))


@given(mu_0=st.floats(-3, 3), mu_1=st.floats(-3, 3), s_0=st.floats(0.2, 3), s_1=st.floats(0.2, 3), p_0=priors)
def test_the_sign_agrees_with_numerical_integration_of_assumption_2(mu_0, mu_1, s_0, s_1, p_0):
    """P_k E_k[p(x|C_k)] > P_j E_k[p(x|C_j)], with the expectations integrated numerically."""
    mu, s, p = (mu_0, mu_1), (s_0, s_1), (p_0, 1 - p_0)
    divergence = score("extended_fisher", [[mu_0], [mu_1]], [[s_0], [s_1]], p, [[0.0], [0.0]])[:, 0]
    for k in (0, 1):

        def expectation(j, k=k):
            product = lambda x: normal(x, mu[k], s[k]) * normal(x, mu[j], s[j])  # noqa: E731
            return quad(product, mu[k] - 12 * s[k], mu[k] + 12 * s[k], points=[mu[k]], limit=200)[0]

        own, other = p[k] * expectation(k), p[1 - k] * expectation(1 - k)
        assume(abs(own - other) > 1e-6 * own)
        assert (divergence[k] > 0) == (own > other)


def test_the_extended_criterion_separates_by_variance_where_the_means_are_equal():
    measured = ([[1.0], [1.0]], [[0.5], [3.0]], [0.5, 0.5], [[0.0], [0.0]])
    divergence = score("extended_fisher", *measured)[:, 0]
    assert score("fisher", *measured).tolist() == [[0], [0]]
    assert divergence[0] == pytest.approx(-math.log(2 * 0.25 / 9.25))
    assert divergence[0] > 0 > divergence[1]


def test_scores_with_constant_classes_are_defined():
    location = [[0.0, 0.0, 0.0, 0.0], [0.0, 5.0, 1.0, 1e-9]]
    spread = [[0.0, 0.0, 0.0, 0.0], [0.0, 0.0, 2.0, 0.0]]
    got = score("extended_fisher", location, spread, [0.5, 0.5], [[1e-6] * 4] * 2)
    assert got[:, 0].tolist() == [-math.inf, -math.inf]  # the same constant: never selected
    assert got[:, 1].tolist() == [math.inf, math.inf]  # different constants: perfect separation
    assert got[0, 2] == math.inf  # sigma_0 = 0 < sigma_1
    assert got[1, 2] == pytest.approx(1 / 4 - math.log(2))  # by the formula
    assert got[:, 3].tolist() == [-math.inf, -math.inf]  # the same constant up to rounding


def test_a_class_with_a_small_prior_has_a_larger_threshold():
    """Where the locations are equal, F is 0 and D is -T."""
    equal = np.ones((2, 1))
    rare, common = (-score("extended_fisher", equal, equal, [p, 1 - p], 0 * equal)[0, 0] for p in (0.1, 0.9))
    assert rare == pytest.approx(2 * math.log(9))
    assert common == pytest.approx(-2 * math.log(9))
