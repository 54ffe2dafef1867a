from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import grouped, labelled_columns

from fxdask.kernels import moments as module
from fxdask.kernels.moments import Moments, class_moments, merge_moments, moment_statistics
from fxdask.kernels.statistics import class_statistics


def check_exact(found, values, codes):
    for k in range(len(found.counts)):
        for column in range(len(values)):
            own = [Fraction(float(v)) for v in values[column][codes == k] if not np.isnan(v)]
            assert found.counts[k, column] == len(own)
            assert Fraction(found.sums[k, column], 2**149) == sum(own)
            assert Fraction(found.squares[k, column], 2**298) == sum(v * v for v in own)
            assert found.lowest[k, column] == min(own, default=np.inf)
            assert found.highest[k, column] == max(own, default=-np.inf)


@given(drawn=labelled_columns(), segment=st.sampled_from([64, 2**15]), missing=st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=30)
def test_moments_are_exact(drawn, segment, missing):
    values, codes = drawn
    values[:, np.random.default_rng(1).random(len(codes)) < missing] = np.nan
    check_exact(class_moments(grouped(values, codes, int(codes.max()) + 1, per_tile=7)), values, codes)


def test_values_of_very_different_sizes_are_summed_with_integers():
    rng = np.random.default_rng(0)
    values = (rng.standard_normal((3, 500)) * 10.0 ** rng.integers(-44, 38, (3, 500))).astype(np.float32)
    codes = np.arange(500) % 2
    check_exact(class_moments(grouped(values, codes, 2)), values, codes)


def test_many_values_take_several_segments_and_pieces(monkeypatch):
    monkeypatch.setattr(module, "MOST_VALUES", 2**15)
    values = np.random.default_rng(0).standard_normal((1, 70_001)).astype(np.float32)
    codes = np.zeros(70_001, int)
    found = class_moments(grouped(values, codes, 1))
    whole = (values.astype(np.float64) * 2.0**60).astype(object)  # integers, as the smallest value is not that small
    assert all(float(v).is_integer() for v in whole[0])
    assert found.sums[0, 0] == sum(map(int, whole[0])) << 89
    assert found.squares[0, 0] == sum(int(v) ** 2 for v in whole[0]) << 178


@given(drawn=labelled_columns(), chunk=st.integers(1, 40), per_tile=st.integers(1, 9), order=st.randoms())
@settings(max_examples=25)
def test_moments_do_not_depend_on_chunks_tiles_and_order(drawn, chunk, per_tile, order):
    values, codes = drawn
    n_classes = int(codes.max()) + 1
    starts = list(range(0, len(codes), chunk))
    order.shuffle(starts)
    parts = [
        class_moments(grouped(values[:, s : s + chunk], codes[s : s + chunk], n_classes, per_tile)) for s in starts
    ]
    same(merge_moments(parts), class_moments(grouped(values, codes, n_classes)))


def same(one, other):
    assert np.array_equal(one.counts, other.counts)
    assert np.array_equal(one.sums, other.sums)
    assert np.array_equal(one.squares, other.squares)
    assert one.lowest.tobytes() == other.lowest.tobytes()
    assert one.highest.tobytes() == other.highest.tobytes()


def test_moments_of_columns_are_joined():
    values = np.random.default_rng(0).standard_normal((5, 60)).astype(np.float32)
    codes = np.arange(60) % 3
    parts = [class_moments(grouped(values[some], codes, 3)) for some in (slice(0, 2), slice(2, 5))]
    same(Moments.joined(parts), class_moments(grouped(values, codes, 3)))


@given(drawn=labelled_columns(), tolerance=st.sampled_from([0.0, 1e-6, 0.5]))
@settings(max_examples=25)
def test_mean_and_deviation_have_the_bits_that_sorted_values_give(drawn, tolerance):
    values, codes = drawn
    own = grouped(values, codes, int(codes.max()) + 1)
    tolerances = np.full((len(own.runs), len(values)), tolerance)
    found = moment_statistics(class_moments(own), tolerances)
    expected = class_statistics(own, tolerances, "mean", "std")
    assert found.location.tobytes() == (expected.location + 0.0).tobytes()
    assert found.spread.tobytes() == expected.spread.tobytes()
    assert np.array_equal(found.source, expected.source)


def test_a_class_without_values_has_no_moments():
    values = np.array([[1.0, 2.0, np.nan, np.nan]], np.float32)
    found = class_moments(grouped(values, np.array([0, 0, 1, 1]), 3))
    assert found.counts.tolist() == [[2], [0], [0]]
    assert found.sums[1:].tolist() == [[0], [0]]
    assert moment_statistics(found, np.zeros((3, 1))).spread[:, 0].tolist() == [pytest.approx(0.5), 0, 0]
