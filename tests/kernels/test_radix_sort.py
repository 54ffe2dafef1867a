"""Rows of float32 sorted by their digits, against NumPy's sort."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.kernels.radix_sort import SHORTEST_ROW, sort_rows
from fxdask.kernels.scratch import Scratch

SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan, 1e-45, -1e-45, 3.4e38, -3.4e38], np.float32)
# Any bits are a float32, NaN of all kinds among them.
ROWS = st.tuples(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 3 * SHORTEST_ROW), st.booleans())


def random_rows(seed, n_rows, n_values, any_bits):
    rng = np.random.default_rng(seed)
    values = rng.standard_normal((n_rows, n_values)).astype(np.float32)
    if any_bits:
        values = rng.integers(0, 2**32, (n_rows, n_values), np.uint32).view(np.float32)
    values[:, : len(SPECIAL)] = SPECIAL[: values[:, : len(SPECIAL)].shape[1]]
    return values


@given(rows=ROWS)
def test_rows_are_sorted_as_numpy_sorts_them(rows):
    values = random_rows(*rows)
    expected = np.sort(values, axis=1)
    sort_rows(values)
    np.testing.assert_array_equal(values, expected)


@given(rows=ROWS, start=st.integers(0, SHORTEST_ROW), length=st.integers(0, 2 * SHORTEST_ROW))
def test_a_run_is_sorted_and_the_rest_is_left(rows, start, length):
    values = random_rows(*rows)
    run, expected = slice(start, start + length), values.copy()
    expected[:, run] = np.sort(values[:, run], axis=1)
    sort_rows(values, run, Scratch())
    np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("n_values", [SHORTEST_ROW - 1, SHORTEST_ROW])
def test_equal_values_stay_equal(n_values):
    values = np.full((2, n_values), -2.5, np.float32)
    values[1, ::2] = 7
    sort_rows(values)
    assert (values[0] == -2.5).all()
    assert np.count_nonzero(values[1] == 7) == (n_values + 1) // 2
    assert (np.diff(values[1]) >= 0).all()
