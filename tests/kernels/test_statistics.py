from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.statistics import (
    LOCATIONS,
    SPREAD_SOURCES,
    SPREADS,
    class_statistics,
    node_tolerance,
    shrunk_spread,
)

LOCATION_NAMES, SPREAD_NAMES = sorted(LOCATIONS), sorted(SPREADS)

# Sums of multiples of 1/8 are exact, so results must be equal to the last bit, also with ties.
eighths = st.integers(-80, 80).map(lambda i: np.float32(i / 8))
# Finite numbers whose squares do not overflow.
floats = st.floats(-(2.0**40), 2.0**40, width=32).map(np.float32)


def node_values(elements, most_samples=60):
    """Strategy: class sizes, and (node, sample) values ordered by class."""
    sizes = st.lists(st.integers(2, most_samples // 3), min_size=2, max_size=3)
    return sizes.flatmap(
        lambda counts: st.tuples(
            st.just(counts),
            st.integers(1, 4).flatmap(lambda m: arrays(np.float32, (m, sum(counts)), elements=elements)),
        )
    )


def slices(counts):
    edges = np.concatenate([[0], np.cumsum(counts)])
    return [slice(int(a), int(b)) for a, b in pairwise(edges)]


def projected(values, columns):
    """(node, sample) values ordered by class -> column values with one run per class."""
    return ColumnValues(values, [[some] for some in columns])


def expected(values, counts, location, spread, tolerance):
    columns = slices(counts)
    where = np.array([[oracles.LOCATION[location](row[some]) for row in values] for some in columns])
    found = [
        [oracles.spread(row[some], spread, tolerance[k, i]) for i, row in enumerate(values)]
        for k, some in enumerate(columns)
    ]
    wide = np.array([[sigma for sigma, _ in row] for row in found])
    source = np.array([[SPREAD_SOURCES.index(name) for _, name in row] for row in found])
    return where, wide, source


@given(
    drawn=node_values(eighths),
    location=st.sampled_from(LOCATION_NAMES),
    spread=st.sampled_from(["mad", "iqr"]),
)
def test_numbers_with_exact_sums_equal_the_oracle(drawn, location, spread):
    counts, values = drawn
    tolerance = np.full((len(counts), len(values)), 1e-9)
    got = class_statistics(projected(values, slices(counts)), tolerance, location, spread)
    where, wide, source = expected(values, counts, location, spread, tolerance)
    assert np.array_equal(got.location, where)
    assert np.array_equal(got.source, source)
    ordered = source != SPREAD_SOURCES.index("std")
    assert np.array_equal(got.spread[ordered], wide[ordered])
    np.testing.assert_allclose(got.spread, wide, rtol=1e-14)


@given(drawn=node_values(floats), location=st.sampled_from(LOCATION_NAMES), spread=st.sampled_from(SPREAD_NAMES))
def test_any_numbers_equal_the_oracle(drawn, location, spread):
    counts, values = drawn
    scale = float(np.abs(values).max())
    tolerance = np.full((len(counts), len(values)), 1e-6 * scale)
    got = class_statistics(projected(values, slices(counts)), tolerance, location, spread)
    where, wide, _ = expected(values, counts, location, spread, tolerance)
    assert np.array_equal(got.location, where), "sums are exact, so no tolerance is needed"
    np.testing.assert_allclose(got.spread, wide, rtol=1e-9, atol=1e-14 * scale)


@pytest.mark.parametrize("count", [2, 3, 4, 5, 7, 8, 2047, 2048, 2049, 6001])
def test_statistics_agree_with_numpy_and_scipy(count):
    values = np.random.default_rng(count).standard_normal((7, count)).astype(np.float32)
    tolerance = np.zeros((1, 7))
    whole = [slice(0, count)]
    trimmed = class_statistics(projected(values, whole), tolerance, "interquartile_mean", "mad")
    np.testing.assert_allclose(trimmed.location[0], stats.trim_mean(values.astype(float), 0.25, axis=1), rtol=1e-11)
    np.testing.assert_allclose(trimmed.spread[0], stats.median_abs_deviation(values, axis=1) / 0.6745, rtol=1e-6)
    middle = class_statistics(projected(values, whole), tolerance, "median", "iqr")
    assert np.array_equal(middle.location[0], np.median(values.astype(float), axis=1))
    np.testing.assert_allclose(middle.spread[0], stats.iqr(values.astype(float), axis=1) / 1.349, rtol=1e-12)
    plain = class_statistics(projected(values, whole), tolerance, "mean", "std")
    np.testing.assert_allclose(plain.location[0], values.mean(axis=1, dtype=float), rtol=1e-11, atol=1e-15)
    np.testing.assert_allclose(plain.spread[0], values.std(axis=1, dtype=float), rtol=1e-12)


@given(rows=st.integers(1, 9), count=st.integers(2, 5_000), seed=st.integers(0, 99))
def test_a_node_does_not_depend_on_other_nodes(rows, count, seed):
    """A node has the same bits in a block of any size."""
    values = np.random.default_rng(seed).standard_normal((rows, count)).astype(np.float32)
    together = class_statistics(projected(values, [slice(0, count)]), np.zeros((1, rows)))
    for i in range(rows):
        alone = class_statistics(projected(values[i : i + 1], [slice(0, count)]), np.zeros((1, 1)))
        assert alone.location[0, 0] == together.location[0, i]
        assert alone.spread[0, 0] == together.spread[0, i]


def test_each_fallback_is_used_and_reported():
    tolerance = np.full((1, 4), 1e-6)
    values = np.array(
        [
            [0, 1, 2, 3, 4, 5, 6, 7],  # the MAD is not zero
            [0, 0, 0, 0, 0, 5, 6, 7],  # more than half are equal, but the quartiles differ
            [0, 0, 0, 0, 0, 0, 0, 7],  # the quartiles are equal too
            [3, 3, 3, 3, 3, 3, 3, 3],
        ],
        np.float32,
    )
    got = class_statistics(projected(values, [slice(0, 8)]), tolerance)
    assert [SPREAD_SOURCES[code] for code in got.source[0]] == ["mad", "iqr", "std", "zero"]
    assert got.spread[0, 1] == oracles.iqr(values[1])
    assert got.spread[0, 2] == pytest.approx(oracles.std(values[2]), rel=1e-15)
    assert got.spread[0, 3] == 0


def test_rounding_noise_is_treated_as_constant():
    w = np.random.default_rng(0).standard_normal((3, 50)).astype(np.float32)
    tolerance = node_tolerance(np.linalg.norm(w.astype(np.float64), axis=1), np.array([2.0, 0.5]))
    assert tolerance == pytest.approx(
        np.array([[oracles.node_tolerance(row, scale) for row in w] for scale in (2, 0.5)])
    )
    noise = (1 + np.arange(8) * 1e-7).astype(np.float32)[None].repeat(3, axis=0)
    got = class_statistics(projected(noise, [slice(0, 8)]), tolerance)
    assert (got.spread == 0).all()
    assert (got.source == SPREAD_SOURCES.index("zero")).all()


def test_signed_zeros_and_denormals_are_ordinary_values():
    values = np.array([[-0.0, 0.0, 1e-45, -1e-45, 3e-45, 0.0]], np.float32)
    got = class_statistics(projected(values, [slice(0, 6)]), np.zeros((1, 1)), "median", "iqr")
    assert got.location[0, 0] == oracles.median(values[0]) == 0
    assert got.spread[0, 0] == oracles.iqr(values[0]) > 0


@given(
    st.lists(st.integers(2, 80), min_size=2, max_size=4).flatmap(
        lambda counts: st.tuples(
            st.just(counts), arrays(np.float64, (len(counts), 3), elements=st.floats(0, 1e6).map(lambda x: x * 1e-3))
        )
    )
)
def test_shrunk_spreads_equal_the_oracle(drawn):
    counts, spread = drawn
    expected = np.array([oracles.shrunk_spreads(column, counts) for column in spread.T]).T
    np.testing.assert_allclose(shrunk_spread(spread, counts), expected, rtol=1e-12, atol=0)


def test_shrinking_leaves_large_classes_and_zeros_alone():
    spread = np.random.default_rng(0).uniform(0.01, 10, (3, 50))
    spread[1, :5] = 0
    shrunk = shrunk_spread(spread, [200, 3, 1000])
    assert np.array_equal(shrunk[[0, 2]], spread[[0, 2]])
    assert (shrunk[1, :5] == 0).all()
    np.testing.assert_allclose(shrunk[1, 5:] ** 2, 0.5 * spread[1, 5:] ** 2 + 0.5 * (spread[:, 5:] ** 2).mean(axis=0))
