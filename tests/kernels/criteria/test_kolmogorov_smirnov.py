import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernels.criteria.columns import by_class, labelled_columns, measure
from scipy.stats import ks_2samp, kstwo

from fxdask.kernels.criteria.kolmogorov_smirnov import KOLMOGOROV_SMIRNOV
from fxdask.kernels.criteria.two_sample_test import two_sample_p_values


def rest(classes, k):
    return [value for j, own in enumerate(classes) if j != k for value in own]


@given(labelled_columns(), st.sampled_from([0.0, 0.3]))
@settings(max_examples=25)
def test_scores_equal_the_oracle_and_scipy_bit_by_bit(drawn, missing):
    values, codes = drawn
    values[0, np.random.default_rng(0).random(len(codes)) < missing] = np.nan
    measured = measure(values, codes)
    scores = KOLMOGOROV_SMIRNOV.score(measured)
    p_values = KOLMOGOROV_SMIRNOV.p_values(measured, scores)
    for column, row in enumerate(values):
        classes = by_class(row, codes)
        for k, own in enumerate(classes):
            others = rest(classes, k)
            if not (own and others):
                assert (scores[k, column], p_values[k, column]) == (0, 1)
                continue
            expected = ks_2samp(own, others)
            assert scores[k, column] == expected.statistic
            assert scores[k, column] == pytest.approx(oracles.distribution_distance(own, others))
            assert p_values[k, column] == pytest.approx(expected.pvalue, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (300, 300), (8, 20), (301, 100), (997, 400), (10_000, 9_000)])
def test_exact_p_values_equal_those_of_scipy(n, m):
    rng = np.random.default_rng(n)
    first, second = rng.standard_normal(n), rng.standard_normal(m) + 1.5 / np.sqrt(min(n, m))
    expected = ks_2samp(first, second)
    found = two_sample_p_values(np.array([expected.statistic]), np.array([n]), np.array([m]))
    np.testing.assert_allclose(found, [expected.pvalue], rtol=1e-9)


@pytest.mark.parametrize("shift", [0.0, 0.03, 0.5])
def test_large_samples_agree_with_scipy(shift):
    """SciPy subtracts two rounded shares there; the quotient here is rounded once."""
    rng = np.random.default_rng(1)
    codes = (rng.random(30_000) < 0.4).astype(int)
    column = (rng.standard_normal(30_000) + shift * codes).astype(np.float32)
    measured = measure(column[None], codes)
    scores = KOLMOGOROV_SMIRNOV.score(measured)
    expected = ks_2samp(column[codes == 0], column[codes == 1])
    np.testing.assert_allclose(scores[:, 0], expected.statistic, rtol=0, atol=2.3e-16)
    np.testing.assert_allclose(KOLMOGOROV_SMIRNOV.p_values(measured, scores)[:, 0], expected.pvalue, rtol=1e-9)


def test_missing_values_are_left_out_of_many_classes():
    rng = np.random.default_rng(0)
    codes = rng.permutation(np.arange(90) % 3)
    column = np.where(rng.random(90) < 0.4, np.nan, rng.standard_normal(90) - codes).astype(np.float32)
    scores = KOLMOGOROV_SMIRNOV.score(measure(column[None], codes))[:, 0]
    classes = by_class(column, codes)
    assert scores.tolist() == [ks_2samp(own, rest(classes, k)).statistic for k, own in enumerate(classes)]


def test_two_classes_have_the_same_score_and_separated_ones_have_1():
    codes = np.arange(20) % 2
    scores = KOLMOGOROV_SMIRNOV.score(measure(np.array([codes, np.ones(20)], np.float32), codes))
    assert scores.tolist() == [[1, 0], [1, 0]]


@pytest.mark.parametrize("n", [10_001, 100_000])
@pytest.mark.parametrize("square", [2.3, 17.0, 100.0, 350.0])
def test_tails_of_large_samples_equal_those_of_scipy(n, square):
    distance = np.sqrt(square / n)
    found = two_sample_p_values(np.array([distance]), np.array([2 * n]), np.array([2 * n]))
    np.testing.assert_allclose(found, kstwo.sf([distance], n), rtol=1e-9)
