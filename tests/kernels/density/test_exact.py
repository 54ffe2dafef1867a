import math

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from fxdask.kernels.density import bandwidth, exact
from fxdask.kernels.density.bandwidth import bandwidths, scott, sheather_jones, silverman
from fxdask.kernels.density.exact import log_density

finite = st.floats(-100, 100)


@given(
    values=st.lists(finite, min_size=2, max_size=30),
    points=st.lists(st.floats(-1e6, 1e6), max_size=5),
    bandwidth=st.floats(1e-3, 1e3),
)
def test_equal_to_the_oracle_near_and_far(values, points, bandwidth):
    got = log_density(np.array(points), np.sort(values), bandwidth)
    want = [oracles.log_density(point, values, bandwidth) for point in points]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [2, 50, 3_000])
@pytest.mark.parametrize("factor", [0.05, 0.3, 2.0])
def test_agrees_with_scipy_at_the_same_bandwidth(count, factor):
    rng = np.random.default_rng(count)
    values, points = rng.standard_normal(count), rng.uniform(-4, 4, 200)
    reference = gaussian_kde(values, bw_method=factor)
    bandwidth = math.sqrt(reference.covariance[0, 0])
    np.testing.assert_allclose(
        log_density(points, np.sort(values), bandwidth), reference.logpdf(points), rtol=1e-10, atol=1e-12
    )


def test_integrates_to_one():
    values = np.sort(np.random.default_rng(1).standard_normal(100))
    grid = np.linspace(-12, 12, 20_001)
    assert np.trapezoid(np.exp(log_density(grid, values, 0.4)), grid) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_scales_with_its_values(scale):
    values, points = np.sort(np.random.default_rng(2).standard_normal(64)), np.linspace(-60, 60, 31)
    scaled = log_density(points * scale, values * scale, 0.2 * scale)
    np.testing.assert_allclose(scaled, log_density(points, values, 0.2) - math.log(scale), rtol=1e-9)


def test_steps_over_points_and_samples_change_nothing(monkeypatch):
    rng = np.random.default_rng(3)
    values, points = np.sort(rng.standard_normal(500)), rng.standard_normal(70)
    whole = log_density(points, values, 0.1)
    monkeypatch.setattr(exact, "KERNELS_PER_STEP", 64)
    np.testing.assert_allclose(log_density(points, values, 0.1), whole, rtol=1e-13)


def test_no_points():
    assert log_density(np.empty(0), np.array([0.0, 1.0]), 1.0).shape == (0,)


def test_rules_of_thumb():
    values = np.zeros(1_000)
    assert silverman(values, 2.0) == pytest.approx(oracles.silverman(values, 2.0))
    assert scott(values, 2.0) == pytest.approx(2 * 1_000**-0.2)


def test_sheather_jones_finds_the_width_of_one_mode_among_two():
    rng = np.random.default_rng(4)
    modes = np.concatenate([rng.normal(-30, 1, 2_000), rng.normal(30, 1, 2_000)])
    found = sheather_jones(modes, float(modes.std()))
    assert found == pytest.approx(silverman(modes[:2_000], 1.0), rel=0.25)
    assert found < silverman(modes, float(modes.std())) / 10


@pytest.mark.parametrize("count", [40, 200, 5_000])
def test_sheather_jones_is_near_silverman_on_normal_data_and_follows_the_scale(count):
    values = np.random.default_rng(5).standard_normal(count)
    found = sheather_jones(values, 1.0)
    assert found == pytest.approx(silverman(values, 1.0), rel=0.35)
    assert sheather_jones(1e6 * values + 3e7, 1e6) == pytest.approx(1e6 * found, rel=1e-3)


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
def test_sheather_jones_falls_back_to_silverman(values, monkeypatch):
    monkeypatch.setattr(bandwidth, "_plug_in", lambda *_: math.inf)
    assert sheather_jones(np.array(values), 0.7) == silverman(np.array(values), 0.7)


def test_sheather_jones_of_constant_values_is_silverman():
    assert sheather_jones(np.full(9, 4.0), 0.0) == 0


@given(values=st.lists(finite, min_size=2, max_size=40))
def test_sheather_jones_is_always_a_width(values):
    found = sheather_jones(np.array(values, np.float32), 1.0)
    assert 0 < found < math.inf


def test_a_rule_is_floored_at_the_tolerance_and_a_number_is_taken_as_it_is():
    values = np.ones((2, 10), np.float32)
    spread, tolerance = np.array([0.0, 3.0]), np.array([1e-4, 1e-4])
    found, n_fallbacks = bandwidths(values, spread, tolerance, "silverman")
    assert n_fallbacks == 0
    assert found[0] == 1e-4
    assert found[1] == pytest.approx(oracles.silverman(values[1], 3.0))
    assert bandwidths(values, spread, tolerance, 1e-6)[0].tolist() == [1e-6, 1e-6]


def test_fallbacks_to_silverman_are_counted():
    rng = np.random.default_rng(6)
    values = np.stack([rng.standard_normal(100), np.full(100, 2.0)]).astype(np.float32)
    found, n_fallbacks = bandwidths(values, np.array([1.0, 0.0]), np.array([1e-6, 1e-6]), "sheather_jones")
    assert n_fallbacks == 1
    assert found[1] == 1e-6
