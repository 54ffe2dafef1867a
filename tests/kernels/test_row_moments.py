"""Moments of rows as they are stored, compared with exact fractions and with moments of columns."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.criteria.columns import grouped, labelled_columns
from kernels.test_moments import check_exact, same

from fxdask.kernels import row_moments
from fxdask.kernels.moments import class_moments
from fxdask.kernels.row_moments import moments_of_rows


@given(drawn=labelled_columns(), segment=st.sampled_from([7, 2**15]), missing=st.sampled_from([0.0, 0.3, 1.0]))
def test_moments_are_exact(drawn, segment, missing):
    values, codes = drawn
    values[:, np.random.default_rng(1).random(len(codes)) < missing] = np.nan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_moments, "SEGMENT", segment)
        check_exact(moments_of_rows(values.T, codes, int(codes.max()) + 1), values, codes)


@pytest.mark.parametrize("n_features", [1, 63, 64, 65, 200])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "f2", "i2", "u1", "?"])
def test_any_number_and_type_of_features_gives_the_moments_of_columns(n_features, dtype):
    rng = np.random.default_rng(n_features)
    rows, codes = (20 * rng.standard_normal((300, n_features))).astype(dtype), rng.integers(0, 3, 300)
    columns = rows.T.astype(np.float32)
    same(moments_of_rows(rows, codes, 4), class_moments(grouped(columns, codes, 4)))
    same(moments_of_rows(np.asfortranarray(rows), codes, 4), class_moments(grouped(columns, codes, 4)))


def test_values_of_very_different_size_are_summed_exactly():
    values = np.array([[1e30, 1e-30, -1e30, 3e-44, 7.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0, -0.0]], np.float32)
    codes = np.array([0, 0, 0, 1, 1, 1])
    check_exact(moments_of_rows(values.T, codes, 2), values, codes)


def test_an_infinite_value_is_seen_in_the_range():
    rows = np.ones((5, 3), np.float32)
    rows[2, 1] = -np.inf
    found = moments_of_rows(rows, np.array([0, 1, 1, 0, 0]), 2)
    assert np.isneginf(found.lowest[1, 1])
    assert np.isfinite(np.delete(found.lowest, 1, axis=1)).all()


@pytest.mark.parametrize("smallest", [-23, -24, -25, -40])
@pytest.mark.parametrize("largest", [127, 1, -60, -100, -125])
def test_all_digits_of_values_near_the_limits_of_a_tile_count(smallest, largest):
    """Full tiles of values with all 24 digits, of sizes that just may be added without grids, and beyond."""
    rng = np.random.default_rng(0)
    digits = rng.integers(2**23, 2**24, (100, 70)) | 1
    exponents = rng.choice([0, 0, smallest // 2, smallest], (100, 70)) + largest - 24
    values = (np.ldexp(digits.astype(np.float64), exponents) * rng.choice([-1, 1, 1], (100, 70))).astype(np.float32)
    values[:40, :3] = np.float32(np.ldexp(2**24 - 1, largest - 24))
    codes = rng.integers(0, 2, 100)
    check_exact(moments_of_rows(values, codes, 2), values.T.copy(), codes)
