import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.features import ClassOrder, as_features, gathered_type, scatter_columns, scatter_rows

CODES = np.array([1, 0, 1, 2, 0, 1])


def test_samples_are_ordered_by_class_and_keep_their_order_within_it():
    order = ClassOrder.of(CODES, 3)
    assert order.positions.tolist() == [2, 0, 3, 5, 1, 4]
    assert order.edges.tolist() == [0, 2, 5, 6]


@pytest.mark.parametrize("dtype", ["u1", "i2", "f2", "<f4", ">f4", "i4", "f8", ">f8", "?"])
def test_rows_and_columns_of_any_type_are_placed_alike(dtype):
    rows = np.random.default_rng(0).integers(0, 2, (6, 4)).astype(dtype)
    order = ClassOrder.of(CODES, 3)
    out = np.empty((2, 4, 6), gathered_type(np.dtype(dtype)))
    scatter_rows(rows, order.positions, out[0])
    scatter_columns(rows.T, order.positions, out[1])
    expected = rows[np.argsort(CODES, kind="stable")].T
    assert np.array_equal(out[0], expected)
    assert np.array_equal(out[1], expected)


def test_types_that_float32_represents_are_gathered_as_float32():
    types = [gathered_type(np.dtype(name)).itemsize for name in ("bool", "u2", "f4", "i4", "u8", "f8")]
    assert types == [4, 4, 4, 8, 8, 8]


def test_float64_values_that_float32_represents_are_not_changed():
    values = np.array([[0.5, np.nan, 2.0**100, 3.0, -2.0, 0.25]])
    found = as_features(values.copy(), ClassOrder.of(CODES, 3))
    assert np.array_equal(found.columns.values, values, equal_nan=True)
    assert not found.tolerance.any()


@given(
    offset=st.sampled_from([0.0, 1e9, -1e6, 1e-12]),
    scale=st.sampled_from([1.0, 1e-280, 1e290]),
    seed=st.integers(0, 99),
)
def test_an_offset_and_a_scale_take_no_digits_away(offset, scale, seed):
    """All differences that float64 can tell apart at this offset are kept up to float32's relative error."""
    drawn = np.random.default_rng(seed).standard_normal(40)
    values = (drawn + offset) * scale
    order = ClassOrder.of(np.arange(40) % 2, 2)
    values[7] = np.nan
    found = as_features(values[None].copy(), order).columns.values[0].astype(np.float64)
    centred = values - np.nanmedian(values)
    factor = np.nanmax(np.abs(found)) / np.nanmax(np.abs(centred))
    np.testing.assert_allclose(found - np.nanmedian(found), centred * factor, atol=3e-7)
    assert np.nanmax(np.abs(found)) <= 1


def test_a_class_that_differs_by_rounding_alone_is_within_the_tolerance():
    values = np.concatenate([np.linspace(0, 1, 20), 1000.1 + 1e-9 * np.arange(10)])[None]
    order = ClassOrder.of(np.repeat([0, 1], [20, 10]), 2)
    found = as_features(values, order)
    own = found.columns.values[0, 20:]
    assert np.ptp(own) <= found.tolerance[1, 0]
    assert found.tolerance[0, 0] < np.ptp(found.columns.values[0, :20])


def test_constant_and_missing_columns():
    found = as_features(np.array([[0.1] * 6, [np.nan] * 6]), ClassOrder.of(CODES, 3))
    assert np.array_equal(found.columns.values, [[0] * 6, [np.nan] * 6], equal_nan=True)
