import math

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.density import bandwidth
from fxdask.kernels.density.bandwidth import bandwidths, scott, sheather_jones, silverman


def test_silverman_and_scott_equal_their_formulas():
    values = np.zeros(1_000)
    assert silverman(values, 2.0) == pytest.approx(oracles.silverman(values, 2.0))
    assert scott(values, 2.0) == pytest.approx(2 * 1_000**-0.2)


def test_sheather_jones_finds_the_width_of_one_of_two_modes():
    rng = np.random.default_rng(4)
    modes = np.concatenate([rng.normal(-30, 1, 2_000), rng.normal(30, 1, 2_000)])
    found = sheather_jones(modes, float(modes.std()))
    assert found == pytest.approx(silverman(modes[:2_000], 1.0), rel=0.25)
    assert found < silverman(modes, float(modes.std())) / 10


@pytest.mark.parametrize("count", [40, 200, 5_000])
def test_sheather_jones_on_normal_data_is_near_silverman_at_any_scale(count):
    values = np.random.default_rng(5).standard_normal(count)
    found = sheather_jones(values, 1.0)
    assert found == pytest.approx(silverman(values, 1.0), rel=0.35)
    assert sheather_jones(1e6 * values + 3e7, 1e6) == pytest.approx(1e6 * found, rel=1e-3)


@pytest.mark.parametrize("values", [[2.0, 2.0, 2.0], [0.0, 0.0, 0.0, 1.0]])
def test_sheather_jones_without_a_root_is_silverman(values, monkeypatch):
    monkeypatch.setattr(bandwidth, "_plug_in", lambda *_: math.inf)
    assert sheather_jones(np.array(values), 0.7) == silverman(np.array(values), 0.7)


def test_sheather_jones_of_constant_values_is_silverman():
    assert sheather_jones(np.full(9, 4.0), 0.0) == 0


@given(values=st.lists(st.floats(-100, 100), min_size=2, max_size=40))
def test_sheather_jones_is_always_positive_and_finite(values):
    found = sheather_jones(np.array(values, np.float32), 1.0)
    assert 0 < found < math.inf


def test_a_rule_gives_at_least_the_tolerance_and_a_number_is_unchanged():
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
