import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fxdask.kernels.sums import ExactSums

any_float32 = st.floats(width=32, allow_nan=False, allow_infinity=False).map(np.float32)


def summed(terms, bounds, cuts):
    sums = ExactSums(bounds, terms.shape[1])
    for part in np.split(terms, cuts, axis=1):
        (sums.add_float32 if terms.dtype == np.float32 else sums.add)(part)
    return sums


@given(
    terms=arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 40)), elements=any_float32),
    slack=st.integers(0, 20),
    data=st.data(),
)
def test_every_order_and_split_gives_the_rounded_exact_sum(terms, slack, data):
    """Terms are any float32 values: zeros of both signs, denormals, the largest with the smallest."""
    bounds = np.abs(terms).max(axis=1).astype(float) * 2.0**slack
    cuts = sorted(data.draw(st.lists(st.integers(0, terms.shape[1]), max_size=3)))
    order = data.draw(st.permutations(range(terms.shape[1])))
    sums = summed(terms[:, order], bounds, cuts)
    assert sums.totals().tolist() == [math.fsum(map(float, row)) for row in terms]
    assert sums.fractions() == [sum(map(Fraction, map(float, row)), Fraction()) for row in terms]


@given(terms=arrays(np.float32, st.tuples(st.integers(1, 3), st.integers(1, 20)), elements=any_float32))
def test_squares_are_summed_exactly(terms):
    squares = np.square(terms, dtype=np.float64)
    sums = summed(squares, squares.max(axis=1), [])
    assert sums.fractions() == [sum((Fraction(float(v)) ** 2 for v in row), Fraction()) for row in terms]


@pytest.mark.parametrize("count", [10, 1_000, 1_000_000])
def test_many_values_of_every_magnitude_are_summed_exactly(count):
    rng = np.random.default_rng(count)
    terms = (rng.standard_normal((2, count)) * 10.0 ** rng.integers(-12, 12, (2, count))).astype(np.float32)
    sums = summed(terms, np.abs(terms).max(axis=1), [count // 3])
    assert sums.totals().tolist() == [math.fsum(row.tolist()) for row in terms]


def test_an_empty_sum_is_zero():
    assert ExactSums(np.ones(2), 5).totals().tolist() == [0, 0]
    assert ExactSums(np.ones(2), 5).fractions() == [0, 0]


@given(seed=st.integers(0, 999), n_terms=st.integers(1, 60), spread=st.sampled_from([1, 10, 30]))
def test_sorted_terms_have_the_same_sum(seed, n_terms, spread):
    rng = np.random.default_rng(seed)
    exponents = rng.integers(-spread, spread, (3, n_terms))
    terms = np.sort(np.ldexp(rng.standard_normal((3, n_terms)), exponents).astype(np.float32), axis=1)
    sums = ExactSums(np.abs(terms).max(axis=1), n_terms)
    sums.add_sorted(terms)
    assert sums.totals().tolist() == [math.fsum(row.tolist()) for row in terms]
