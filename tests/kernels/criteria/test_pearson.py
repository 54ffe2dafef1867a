import warnings

import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from kernels.criteria.columns import labelled_columns, measure
from scipy.stats import f as f_distribution
from scipy.stats import pearsonr
from sklearn.feature_selection import f_classif

from fxdask.kernels.criteria.pearson import PEARSON


@given(labelled_columns())
@settings(max_examples=30)
def test_scores_and_p_values_equal_the_oracle(drawn):
    values, codes = drawn
    measured = measure(values, codes)
    scores = PEARSON.score(measured)
    p_values = PEARSON.p_values(measured, scores)
    assert scores.shape == p_values.shape == (1, len(values))
    freedom = (codes.max(), len(codes) - codes.max() - 1)
    for column, row in enumerate(values):
        ratio, f_value = oracles.correlation_ratio(row, codes.tolist())
        assert scores[0, column] == pytest.approx(ratio, rel=1e-9, abs=1e-7)
        if np.isnan(f_value):
            assert p_values[0, column] == 1
        elif f_value < 1e6:
            assert p_values[0, column] == pytest.approx(f_distribution.sf(f_value, *freedom), rel=1e-6, abs=1e-300)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_p_values_equal_those_of_f_classif(n_classes):
    rng = np.random.default_rng(n_classes)
    codes = rng.integers(0, n_classes, 300)
    values = (rng.standard_normal((8, 300)) + np.linspace(0, 1, 8)[:, None] * codes).astype(np.float32)
    measured = measure(values, codes)
    scores = PEARSON.score(measured)
    expected = f_classif(values.T.astype(np.float64), codes)[1]
    np.testing.assert_allclose(PEARSON.p_values(measured, scores)[0], expected, rtol=1e-9)
    if n_classes == 2:
        np.testing.assert_allclose(scores[0], [abs(pearsonr(row.astype(float), codes)[0]) for row in values])


def test_no_digits_cancel_far_from_zero():
    """The column is a million times as far from zero as it is wide, so that squares lose 12 digits."""
    rng = np.random.default_rng(0)
    codes = np.arange(400) % 2
    column = (2**20 + rng.integers(0, 4, 400) / 8 + codes / 8).astype(np.float32)
    expected = oracles.correlation_ratio(column - 2**20, codes.tolist())[0]
    assert PEARSON.score(measure(column[None], codes))[0, 0] == pytest.approx(expected, rel=1e-14)


def test_constant_columns_and_perfect_separators_are_defined():
    codes = np.arange(10) % 2
    measured = measure(np.array([np.full(10, 3.0), codes * 2.0], np.float32), codes)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scores = PEARSON.score(measured)
        p_values = PEARSON.p_values(measured, scores)
    assert scores.tolist() == [[0, 1]]
    assert p_values.tolist() == [[1, 0]]


def test_missing_values_are_left_out():
    rng = np.random.default_rng(0)
    codes = np.arange(60) % 3
    values = rng.standard_normal((2, 60)).astype(np.float32)
    with_missing = values.copy()
    with_missing[0, :20] = np.nan
    scores = PEARSON.score(measure(with_missing, codes))
    assert scores[0, 0] == PEARSON.score(measure(values[:1, 20:], codes[20:]))[0, 0]
    assert scores[0, 1] == PEARSON.score(measure(values[1:], codes))[0, 0]
