"""Densities of many rows at few points: the error as a share of each density's peak."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.density import binned
from fxdask.kernels.density.binned import BINNED_ERROR, densities
from fxdask.kernels.density.exact import log_density
from fxdask.kernels.scratch import Scratch

KINDS = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "uniform": lambda rng, shape: rng.uniform(size=shape),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(shape),
    "repeated": lambda rng, shape: rng.integers(0, 4, shape) * 1.0,
    "constant": lambda rng, shape: np.ones(shape),
    "far from zero": lambda rng, shape: 3e3 + rng.standard_normal(shape),
    "farther": lambda rng, shape: -1e5 - rng.standard_normal(shape),
    "outlier": lambda rng, shape: np.where(np.arange(shape[1]) == 0, 1e5, rng.standard_normal(shape)),
}


def share_of_peak(got, points, values, bandwidth):
    """(row,) largest error as a share of the largest density at any sample, which the peak is at least."""
    errors = []
    for found, at, row, width in zip(got, points, values, bandwidth, strict=True):
        peak = np.exp(log_density(row, row, width)).max()
        errors.append(np.abs(found - np.exp(log_density(at, row, width))).max(initial=0) / peak)
    return errors


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@given(
    n_samples=st.integers(1, 60),
    n_rows=st.integers(1, 4),
    n_points=st.integers(1, 9),
    seed=st.integers(0, 10**6),
    width=st.floats(0.01, 3),
)
def test_errors_are_within_the_bound(kind, scale, n_samples, n_rows, n_points, seed, width):
    rng = np.random.default_rng(seed)
    values = np.sort((scale * KINDS[kind](rng, (n_rows, n_samples))).astype(np.float32), axis=1)
    bandwidth = scale * width * rng.uniform(0.5, 2, n_rows)
    points = scale * rng.choice([0.1, 5, 1e3, 1e6], (n_rows, n_points)) * rng.standard_normal((n_rows, n_points))
    points = np.concatenate([points, rng.permuted(values, axis=1)[:, :3]], axis=1).astype(np.float32)
    got = densities(points, values, bandwidth, Scratch())
    assert (got >= 0).all()
    assert max(share_of_peak(got, points, values, bandwidth)) <= BINNED_ERROR


@pytest.mark.parametrize("bandwidth", [1e-40, 1e-33, 1e33, 1e38])
def test_errors_are_within_the_bound_for_extreme_bandwidths(bandwidth):
    values = np.sort(np.random.default_rng(3).standard_normal((2, 9)).astype(np.float32), axis=1)
    points, widths = np.concatenate([values, values + 1], axis=1), np.full(2, bandwidth)
    assert max(share_of_peak(densities(points, values, widths, Scratch()), points, values, widths)) <= BINNED_ERROR


def test_a_row_does_not_depend_on_other_rows():
    rng = np.random.default_rng(4)
    values = np.sort(rng.standard_normal((70, 300)).astype(np.float32) * rng.uniform(1, 9, (70, 1)), axis=1)
    values = values.astype(np.float32)
    points, widths = rng.standard_normal((70, 5)).astype(np.float32), rng.uniform(0.1, 0.3, 70)
    together = densities(points, values, widths, Scratch())
    alone = [densities(points[i : i + 1], values[i : i + 1], widths[i : i + 1], Scratch())[0] for i in range(70)]
    np.testing.assert_array_equal(together, alone)


def test_densities_equal_the_oracle():
    rng = np.random.default_rng(1)
    values, points = np.sort(rng.standard_normal((2, 50)).astype(np.float32), axis=1), np.zeros((2, 1), np.float32)
    got = densities(points, values, np.array([0.3, 0.5]), Scratch())
    want = [np.exp(oracles.log_density(0, row, width)) for row, width in zip(values, (0.3, 0.5), strict=True)]
    np.testing.assert_allclose(got[:, 0], want, rtol=1e-6)


def test_the_error_of_a_coarser_grid_grows_as_derived(monkeypatch):
    """The error grows with the sixth power of the bin width, and wider bins exceed the bound of the usual width."""
    rng = np.random.default_rng(2)
    values = np.sort(rng.standard_normal((4, 3)).astype(np.float32), axis=1)
    bandwidth = np.full(4, 0.7)
    points = np.linspace(-3, 3, 400, dtype=np.float32) * np.ones((4, 1), np.float32)
    worst = {}
    for width in (0.4, 0.6):
        monkeypatch.setattr(binned, "WIDTH", width)
        worst[width] = max(share_of_peak(densities(points, values, bandwidth, Scratch()), points, values, bandwidth))
    assert worst[0.4] <= BINNED_ERROR < worst[0.6]
    assert worst[0.6] < BINNED_ERROR * (0.6 / 0.4) ** 6


@given(n_rows=st.integers(1, 3), n_samples=st.integers(1, 40), seed=st.integers(0, 10**6))
def test_compiled_moments_equal_the_python_loop_and_numpy(n_rows, n_samples, seed):
    rng = np.random.default_rng(seed)
    ascending = np.sort(rng.standard_normal((n_rows, n_samples)).astype(np.float32), axis=1)
    low, per_bin = ascending[:, 0].astype(np.float64), rng.uniform(0.5, 5, n_rows)
    compiled, plain = np.zeros((2, n_rows, binned.ORDER, 100))
    binned._compiled_bin_moments()(ascending, low, per_bin, compiled, np.zeros(n_rows, np.int64))
    binned._bin_moments(ascending, low, per_bin, plain, np.zeros(n_rows, np.int64))
    np.testing.assert_array_equal(compiled, plain)
    position = (ascending - low[:, None]) * per_bin[:, None]
    for row in range(n_rows):
        for power in range(binned.ORDER):
            want = np.zeros(100)
            np.add.at(want, np.rint(position[row]).astype(int), (np.rint(position[row]) - position[row]) ** power)
            np.testing.assert_allclose(plain[row, power], want, atol=1e-12)
