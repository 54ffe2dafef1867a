"""Tables of sums over values give the densities of tables of the values themselves, whatever is not kept."""

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.density.cells import LARGEST_ERROR
from fxdask.kernels.density.exact import RunningDensity, log_density
from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.summed import MOST_OUTERMOST, ValueSums, as_arrays, from_arrays
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.scratch import Scratch


def summed(values, bandwidth, n_pieces=3):
    sums = ValueSums(bandwidth, float(np.median(values)))
    for piece in np.array_split(values, n_pieces):
        sums.absorb(piece)
    return sums.density()


def log_densities(points, values, bandwidth):
    return np.array([oracles.log_density(float(point), values.astype(float), bandwidth) for point in points])


def looked_up(density, points):
    (table,) = DensityTable.many([density])
    return Lookup([table])(points[None], Scratch()).logs[0], table.error


def samples(seed, n_samples, kind):
    rng = np.random.default_rng(seed)
    if kind == "two groups":
        return (rng.standard_normal(n_samples) + 400 * rng.integers(0, 2, n_samples)).astype(np.float32)
    if kind == "heavy tails":
        return rng.standard_cauchy(n_samples).astype(np.float32)
    return rng.standard_normal(n_samples).astype(np.float32)


@given(
    st.integers(0, 2**32),
    st.one_of(st.integers(1, 300), st.just(3 * MOST_OUTERMOST)),
    st.sampled_from(["normal", "two groups", "heavy tails"]),
    st.sampled_from([0.02, 0.3, 5.0]),
    st.integers(1, 4),
)
def test_a_density_of_sums_is_that_of_its_values_or_unknown(seed, n_samples, kind, bandwidth, n_pieces):
    values = samples(seed, n_samples, kind)
    points = np.concatenate([values[:20], values[:20] + np.float32(3 * bandwidth), values[:5] * np.float32(1.5)])
    got, error = looked_up(summed(values, bandwidth, n_pieces), points)
    assert error <= LARGEST_ERROR
    expected = log_densities(points, values, bandwidth)
    known = ~np.isnan(got)
    assert np.abs(got - expected)[known] == pytest.approx(0, abs=2 * LARGEST_ERROR + 1e-12 * np.abs(expected).max())
    assert known.all() or kind == "two groups" or n_samples > MOST_OUTERMOST


def test_far_points_have_tails_and_gaps_are_unknown():
    values = samples(0, 5 * MOST_OUTERMOST, "two groups")
    density = summed(values, 0.05)
    points = np.array([values.min() - 40, values.max() + 4e5, 200.0], np.float32)
    got, _ = looked_up(density, points)
    expected = log_densities(points[:2], values, 0.05)
    assert got[:2] == pytest.approx(expected, abs=1e-6, rel=1e-12)
    assert np.isnan(got[2])


@given(st.integers(1, 5), st.booleans())
def test_so_many_equal_values_at_an_end_have_no_tail(n_pieces, too_many):
    values = np.concatenate([np.zeros(MOST_OUTERMOST - 1 + too_many), np.linspace(100, 5e4, 5_000)]).astype(np.float32)
    np.random.default_rng(n_pieces).shuffle(values)
    density = summed(values, 1.0, n_pieces)
    points = np.array([-50.0, 6e4, 30_003.0], np.float32)
    got, _ = looked_up(density, points)
    assert np.isnan(got).tolist() == [too_many, False, False]
    assert got[1:] == pytest.approx(log_densities(points[1:], values, 1.0), abs=1e-6, rel=1e-12)


def test_sums_are_the_same_after_they_were_written_and_read():
    densities = {
        (k, u): summed(samples(3 * k + u, 500, kind), 0.2)
        for (k, u), kind in zip([(0, 0), (1, 0), (1, 1)], ["normal", "two groups", "heavy tails"], strict=True)
    }
    again = from_arrays(as_arrays(densities), np.full((2, 2), 0.2))
    assert list(again) == list(densities)
    points = np.linspace(-5, 5, 50, dtype=np.float32)
    for key, density in densities.items():
        assert np.array_equal(*(looked_up(one, points)[0] for one in (density, again[key])), equal_nan=True)
    arrays = as_arrays(densities)
    for name in ("densities", "sums", "outermost"):
        with pytest.raises(ValueError, match="table"):
            from_arrays({**arrays, name: arrays[name][:-1]}, np.full((2, 2), 0.2))


@given(st.integers(0, 2**32), st.integers(1, 200), st.integers(1, 5))
def test_kernels_of_pieces_add_up_to_the_exact_density(seed, n_samples, n_pieces):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(n_samples).astype(np.float32)
    points = np.array([0.0, 1.0, 30.0, -4e4], np.float32)
    running = RunningDensity(points, 0.3)
    for piece in np.array_split(values, n_pieces):
        running.absorb(np.sort(piece))
    assert running.log_density() == pytest.approx(log_density(points, np.sort(values), 0.3), rel=1e-13, abs=1e-12)
