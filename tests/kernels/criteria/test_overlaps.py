from itertools import pairwise

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import by_class, column_part, labelled_columns, measure
from scipy.integrate import quad
from scipy.stats import norm

from fxdask.kernels.criteria.density_overlap import DENSITY_OVERLAP, unshared_area
from fxdask.kernels.criteria.volume_of_overlap import VOLUME_OF_OVERLAP


@given(labelled_columns())
@settings(max_examples=40)
def test_the_volume_of_overlap_equals_the_oracle(drawn):
    values, codes = drawn
    scores = VOLUME_OF_OVERLAP.score(measure(values, codes))
    for column, row in enumerate(values):
        classes = by_class(row, codes)
        for k, own in enumerate(classes):
            others = [oracles.volume_of_overlap(own, other) for j, other in enumerate(classes) if j != k]
            assert scores[k, column] == min(others)


def test_a_class_without_values_has_no_overlap_with_others():
    """The first two classes are apart; a third without values must not hide that."""
    values = np.array([[0, 1, 5, 6, np.nan, np.nan], [0, 1, np.nan, np.nan, np.nan, np.nan]], np.float32)
    scores = VOLUME_OF_OVERLAP.score(measure(values, np.array([0, 0, 1, 1, 2, 2])))
    assert scores.tolist() == [[1, 0], [1, 0], [0, 0]]


def test_the_volume_of_overlap_by_hand():
    """0..4 and 3..10 share 1 of 10; a class within the other shares its own range; constants apart share nothing."""
    values = np.array([[0, 4, 3, 10], [0, 10, 4, 6], [1, 1, 2, 2], [1, 1, 1, 1]], np.float32)
    scores = VOLUME_OF_OVERLAP.score(measure(values, np.array([0, 0, 1, 1])))
    assert scores.tolist() == [[0.9, 0.8, 1, 0]] * 2


@given(sizes=st.tuples(st.integers(2, 60), st.integers(2, 60)), scale=st.floats(-1.5, 1.5), seed=st.integers(0, 999))
@settings(max_examples=15)
def test_the_unshared_area_equals_a_fine_sum(sizes, scale, seed):
    rng = np.random.default_rng(seed)
    first = np.sort(rng.standard_normal(sizes[0])).astype(np.float32)
    second = np.sort(rng.standard_normal(sizes[1]) * np.exp(scale) + rng.standard_normal()).astype(np.float32)
    widths = np.array([1.06 * len(v) ** -0.2 * float(v.std()) for v in (first, second)])
    widths = np.maximum(widths, 0.01)
    found = unshared_area([first, second], widths)
    assert found[0, 1] == found[1, 0]
    assert found[0, 1] == pytest.approx(
        oracles.unshared_area(first.astype(float), second.astype(float), *widths), abs=5e-4
    )


@pytest.mark.parametrize(("centre", "spread"), [(0.5, 1.0), (0.0, 3.0), (2.0, 0.5)])
def test_the_unshared_area_agrees_with_adaptive_integration(centre, spread):
    rng = np.random.default_rng(2)
    first = np.sort(rng.standard_normal(30)).astype(np.float32)
    second = np.sort(rng.normal(centre, spread, 30)).astype(np.float32)
    widths = np.array([0.4, 0.4 * spread])

    def smaller(x):
        return min(norm.pdf(x, v, w).mean() for v, w in zip((first, second), widths, strict=True))

    pieces = np.linspace(min(first[0], second[0]) - 8, max(first[-1], second[-1]) + 8, 25)
    integral = sum(quad(smaller, a, b, limit=60, epsabs=1e-7)[0] for a, b in pairwise(pieces))
    assert unshared_area([first, second], widths)[0, 1] == pytest.approx(1 - integral, abs=2e-4)


def test_far_outliers_and_a_narrow_class_are_resolved():
    """The outlier is 10^7 bandwidths away, and one class is a thousand times as narrow as the other."""
    rng = np.random.default_rng(0)
    wide = np.sort(np.append(rng.standard_normal(40), 1e6)).astype(np.float32)
    narrow = np.sort(0.5 + 0.001 * rng.standard_normal(40)).astype(np.float32)
    found = unshared_area([wide, narrow], np.array([0.3, 0.0003]))[0, 1]
    near = oracles.unshared_area(wide[:-1].astype(float), narrow.astype(float), 0.3, 0.0003, 100_001)
    assert found == pytest.approx(near, abs=1e-3)


@given(labelled_columns(max_classes=3, max_columns=3), st.integers(1, 9))
@settings(max_examples=15)
def test_density_overlaps_are_defined_and_do_not_depend_on_the_layout(drawn, per_tile):
    values, codes = drawn
    measured = measure(values, codes, tolerance=1e-6)
    scores = DENSITY_OVERLAP.score(measured)
    assert ((scores >= 0) & (scores <= 1)).all()
    again = measure(values, codes, tolerance=1e-6, per_tile=per_tile)
    parts = [DENSITY_OVERLAP.score(column_part(again, slice(c, c + 1))) for c in range(len(values))]
    assert np.hstack(parts).tobytes() == scores.tobytes()


def test_the_density_overlap_of_a_class_is_that_with_the_nearest_other_class():
    rng = np.random.default_rng(0)
    codes = np.repeat([0, 1, 2], 100)
    column = rng.standard_normal(300) + np.array([0.0, 1.0, 20.0])[codes]
    scores = DENSITY_OVERLAP.score(measure(column[None].astype(np.float32), codes))[:, 0]
    assert scores[0] == scores[1] < 0.6
    assert scores[2] == pytest.approx(1, abs=1e-4)


def test_constant_classes_and_missing_values_have_defined_density_overlaps():
    codes = np.repeat([0, 1], 10)
    some = np.where(np.arange(20) % 3 == 0, np.nan, np.arange(20) / 7)
    values = np.array([np.full(20, 2.0), codes * 3.0, np.where(codes, np.nan, 1.0), some], np.float32)
    scores = DENSITY_OVERLAP.score(measure(values, codes, tolerance=1e-6))
    assert scores[:, 0].tolist() == [0, 0]
    assert scores[:, 1] == pytest.approx(1, abs=1e-4)
    assert scores[:, 2].tolist() == [0, 0]
    assert 0.5 < scores[0, 3] <= 1
