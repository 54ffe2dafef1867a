"""Mixtures of kernels and a wide normal: tables against sums, sums against the oracle, errors against their bounds."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.density.test_table import KINDS, ROUNDING, drawn, points_around
from scipy.integrate import quad

from fxdask.kernels.density.cells import LARGEST_ERROR
from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.mixed import mixed_log_density, normal_scores
from fxdask.kernels.density.score_table import LARGEST_SCORE_ERROR, score_limit
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.density.wide_normal import WideNormal
from fxdask.kernels.scratch import Scratch


def mixture(kind, n, seed=0, scale=1.0):
    values, bandwidth = drawn(kind, n, seed, scale)
    spread = float(np.subtract(*np.percentile(values, [75, 25])) / 1.349)
    return values, bandwidth, WideNormal.of_class(float(np.median(values)), spread, bandwidth)


def look_up(tables, points):
    found = Lookup(tables)(points, Scratch())
    return found.logs, found.scores, found.n_summed


@pytest.mark.parametrize("kind", KINDS)
@given(n=st.integers(1, 40) | st.just(300), seed=st.integers(0, 10**6))
def test_sums_equal_the_oracle(kind, n, seed):
    values, bandwidth, wide = mixture(kind, n, seed)
    points = points_around(values, bandwidth, seed, n=4)
    logs, scores = mixed_log_density(points, values, bandwidth, wide), normal_scores(points, values, bandwidth, wide)
    for point, log, score in zip(points, logs, scores, strict=True):
        arguments = (point, values, bandwidth, wide.location, wide.scale / 3)
        assert log == pytest.approx(oracles.mixed_log_density(*arguments), rel=1e-12, abs=1e-9)
        assert score == pytest.approx(oracles.mixed_normal_score(*arguments), abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@given(
    n=st.integers(1, 40) | st.just(300) | st.just(3_000),
    seed=st.integers(0, 10**6),
    scale=st.sampled_from([1e-20, 1.0, 1e20]),
)
def test_tables_equal_the_sums_within_their_bounds(kind, n, seed, scale):
    values, bandwidth, wide = mixture(kind, n, seed, scale)
    table = DensityTable(values, bandwidth, wide)
    points = points_around(values, bandwidth, seed)
    (logs,), (scores,), _ = look_up([table], points[None])
    exact = mixed_log_density(points, values, bandwidth, wide)
    assert table.error <= LARGEST_ERROR
    assert table.score_error <= LARGEST_SCORE_ERROR
    assert (np.abs(logs - exact) <= table.error + ROUNDING * np.abs(exact)).all()
    assert (np.abs(scores - normal_scores(points, values, bandwidth, wide)) <= table.score_error + 1e-12).all()
    assert (np.abs(scores) <= score_limit(n)).all()


def test_most_points_among_the_samples_have_a_cell():
    rng = np.random.default_rng(0)
    values, bandwidth, wide = mixture("normal", 6_000)
    points = rng.choice(values, 4_000)[None]
    assert look_up([DensityTable(values, bandwidth, wide)], points)[2] < 40


def test_several_tables_are_looked_up_together():
    rng = np.random.default_rng(1)
    tables = [DensityTable(*mixture(kind, 50, seed)) for seed, kind in enumerate(KINDS)]
    points = np.stack([rng.permutation(points_around(table.ascending, table.bandwidth)) for table in tables])
    logs, scores, n_summed = look_up(tables, points)
    apart = [look_up([table], row[None]) for table, row in zip(tables, points, strict=True)]
    assert np.array_equal(logs, np.concatenate([one[0] for one in apart]))
    assert np.array_equal(scores, np.concatenate([one[1] for one in apart]))
    assert n_summed == sum(one[2] for one in apart)


@given(location=st.floats(-5, 5), scale=st.floats(1.01, 20), centre=st.floats(-8, 8))
def test_the_kernel_sums_of_a_wide_normal_are_its_integrals(location, scale, centre):
    wide = WideNormal(location, scale)
    deviation = np.sqrt(scale**2 - 1)
    # The product of both normal densities is a narrower one.
    middle, reach = centre + (location - centre) / scale**2, 12 * deviation / scale

    def integrand(t, power):
        d = t - centre
        return d**power * np.exp(-(d**2) / 2 - ((t - location) / deviation) ** 2 / 2) / deviation / np.sqrt(2 * np.pi)

    found = wide.kernel_sums(np.array([centre]), 4)[0]
    for power in range(5):
        want = quad(integrand, middle - reach, middle + reach, args=(power,), epsabs=1e-13, limit=200)[0]
        assert found[power] == pytest.approx(want, rel=1e-7, abs=1e-11)


def test_kernels_wider_than_three_spreads_have_a_normal_as_wide_as_they_are():
    assert WideNormal.of_class(1.0, 2.0, 0.5) == WideNormal(1.0, 6.0)
    assert WideNormal.of_class(1.0, 0.0, 0.5) == WideNormal(1.0, 0.5)
