import math

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import gaussian_kde

from fxdask.kernels.density import exact
from fxdask.kernels.density.exact import log_density


@given(
    values=st.lists(st.floats(-100, 100), min_size=2, max_size=30),
    points=st.lists(st.floats(-1e6, 1e6), max_size=5),
    bandwidth=st.floats(1e-3, 1e3),
)
def test_log_density_near_and_far_equals_the_oracle(values, points, bandwidth):
    got = log_density(np.array(points), np.sort(values), bandwidth)
    want = [oracles.log_density(point, values, bandwidth) for point in points]
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("count", [2, 50, 3_000])
@pytest.mark.parametrize("factor", [0.05, 0.3, 2.0])
def test_log_density_agrees_with_scipy(count, factor):
    rng = np.random.default_rng(count)
    values, points = rng.standard_normal(count), rng.uniform(-4, 4, 200)
    reference = gaussian_kde(values, bw_method=factor)
    bandwidth = math.sqrt(reference.covariance[0, 0])
    np.testing.assert_allclose(
        log_density(points, np.sort(values), bandwidth), reference.logpdf(points), rtol=1e-10, atol=1e-12
    )


def test_the_density_integrates_to_one():
    values = np.sort(np.random.default_rng(1).standard_normal(100))
    grid = np.linspace(-12, 12, 20_001)
    assert np.trapezoid(np.exp(log_density(grid, values, 0.4)), grid) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
def test_the_density_scales_with_its_values(scale):
    values, points = np.sort(np.random.default_rng(2).standard_normal(64)), np.linspace(-60, 60, 31)
    scaled = log_density(points * scale, values * scale, 0.2 * scale)
    np.testing.assert_allclose(scaled, log_density(points, values, 0.2) - math.log(scale), rtol=1e-9)


def test_the_step_size_does_not_change_log_densities(monkeypatch):
    rng = np.random.default_rng(3)
    values, points = np.sort(rng.standard_normal(500)), rng.standard_normal(70)
    whole = log_density(points, values, 0.1)
    monkeypatch.setattr(exact, "KERNELS_PER_STEP", 64)
    np.testing.assert_allclose(log_density(points, values, 0.1), whole, rtol=1e-13)


def test_no_points_give_no_densities():
    assert log_density(np.empty(0), np.array([0.0, 1.0]), 1.0).shape == (0,)
