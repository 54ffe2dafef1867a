"""Joint selection against loops over determinants."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.joint_selection import Pool, select_jointly


def drawn_pool(seed, n_classes, n_candidates, scale=1.0):
    rng = np.random.default_rng(seed)
    mixing = rng.standard_normal((n_classes, n_candidates, n_candidates))
    covariance = mixing @ mixing.transpose(0, 2, 1) + 0.1 * np.eye(n_candidates)
    spread = np.sqrt(np.einsum("kii->ki", covariance))
    priors = rng.uniform(0.2, 1, n_classes)
    return Pool(
        location=scale * rng.standard_normal((n_classes, n_candidates)),
        spread=scale * rng.uniform(0.3, 2, (n_classes, n_candidates)),
        correlation=covariance / spread[:, :, None] / spread[:, None, :],
        counts=rng.choice([2, 9, 10, 500], n_classes),
        priors=priors / priors.sum(),
    )


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@given(n_classes=st.integers(2, 4), n_candidates=st.integers(1, 6), seed=st.integers(0, 9999))
def test_nodes_and_overlaps_equal_the_oracle(scale, n_classes, n_candidates, seed):
    pool = drawn_pool(seed, n_classes, n_candidates, scale)
    found = select_jointly(pool, n_candidates)
    of_unit = drawn_pool(seed, n_classes, n_candidates)
    chosen, overlaps = oracles.joint_selection(
        of_unit.location, of_unit.spread, pool.correlation, pool.counts, pool.priors, n_candidates
    )
    assert found.candidates.tolist() == chosen
    np.testing.assert_allclose(found.overlaps, overlaps, rtol=1e-9)


@given(seed=st.integers(0, 9999))
def test_the_divergence_of_one_node_is_the_extended_fisher_criterion(seed):
    pool = drawn_pool(seed, 2, 1)
    for k, j in ((0, 1), (1, 0)):
        (mu_k,), (mu_j,) = pool.location[[k, j]]
        (sigma_k,), (sigma_j,) = pool.spread[[k, j]]
        p_k, p_j = pool.priors[[k, j]]
        want = oracles.pair_divergence(mu_k, mu_j, sigma_k, sigma_j, p_k, p_j, 0.0)
        got = oracles.joint_divergence([mu_k], [mu_j], [[sigma_k**2]], [[sigma_j**2]], p_k, p_j)
        assert got == pytest.approx(want, rel=1e-12, abs=1e-12)


def test_of_equal_candidates_the_first_is_chosen():
    pool = drawn_pool(3, 3, 4)
    twice = np.tile(np.arange(4), 2)
    repeated = Pool(
        location=pool.location[:, twice],
        spread=pool.spread[:, twice],
        correlation=pool.correlation[:, twice][:, :, twice],
        counts=np.full(3, 100),
        priors=pool.priors,
    )
    found = select_jointly(repeated, 8)
    assert sorted(found.candidates.tolist()) == [0, 1, 2, 3]
    assert found.candidates.tolist() == select_jointly(pool, 4).candidates.tolist()


def test_a_node_that_others_explain_is_passed_over_only_in_classes_of_ten_samples():
    pool = drawn_pool(1, 2, 3)
    correlation = np.broadcast_to(np.array([[1, 0.99, 0], [0.99, 1, 0], [0, 0, 1.0]]), (2, 3, 3))
    for counts, n_chosen in (([10, 3], 2), ([9, 9], 3)):
        facts = {name: getattr(pool, name) for name in ("location", "spread", "priors")}
        found = select_jointly(Pool(correlation=correlation, counts=np.array(counts), **facts), 3)
        assert len(found.candidates) == n_chosen


@given(n_classes=st.integers(2, 4), seed=st.integers(0, 9999), far=st.sampled_from([30.0, 100.0, 1e4]))
def test_nodes_are_ranked_although_their_overlaps_underflow(n_classes, seed, far):
    """Classes many spreads apart: exp(-D / 2) is 0 for every candidate, but their order is known."""
    pool = drawn_pool(seed, n_classes, 5)
    apart = Pool(
        location=far * (np.arange(n_classes)[:, None] + 0.1 * pool.location),
        spread=0.01 * pool.spread,
        correlation=pool.correlation,
        counts=pool.counts,
        priors=pool.priors,
    )
    found = select_jointly(apart, 5)
    chosen, overlaps = oracles.joint_selection(
        apart.location, apart.spread, apart.correlation, apart.counts, apart.priors, 5
    )
    assert found.candidates.tolist() == chosen
    assert found.overlaps.tolist() == overlaps == [0.0] * len(chosen)
