"""``rank_features`` on real data sets against SciPy, scikit-learn and a ReliefF of plain loops."""

import warnings
from functools import cache

import numpy as np
import oracles
import pytest
from scipy import stats
from sklearn import datasets
from sklearn.feature_selection import f_classif, mutual_info_classif
from skrebate import ReliefF

import fxdask
from fxdask.kernels.criteria.relief import spread_anchors

SETS = ("iris", "wine", "breast_cancer", "digits")
CRITERIA = ("pearson", "kolmogorov_smirnov", "mutual_information", "relief")
N_ANCHORS = 20
ROUNDING = 2e-8
"""Of a correlation, because columns of float64 are rounded to float32, around their medians."""


@cache
def ranked(name):
    """Samples, labels and their ranking; digits have constant columns and many equal values."""
    X, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    if name == "digits":
        X, y = X[:600], y[:600]
    return X, y, fxdask.rank_features(X, y, CRITERIA, n_anchors=N_ANCHORS)


@pytest.mark.parametrize("name", SETS)
def test_pearson_equals_the_f_test(name):
    X, y, found = ranked(name)
    with warnings.catch_warnings(action="ignore"):  # of columns that are constant
        ratios, p_values = f_classif(X, y)
    varies, n_classes = np.ptp(X, axis=0) > 0, len(np.unique(y))
    between = ratios * (n_classes - 1)
    expected = np.sqrt(between / (between + len(y) - n_classes))
    np.testing.assert_allclose(found.score("pearson")[varies], expected[varies], rtol=0, atol=ROUNDING)
    # Tiny p-values magnify the rounding of their scores.
    np.testing.assert_allclose(found.p_value("pearson")[varies], p_values[varies], rtol=1e-4)
    assert (found.score("pearson")[~varies] == 0).all()
    assert (found.p_value("pearson")[~varies] == 1).all()
    for rule in ("bh", "by"):
        adjusted = stats.false_discovery_control(found.p_value("pearson"), method=rule)
        np.testing.assert_allclose(found.adjusted_p_value("pearson", rule), adjusted, rtol=1e-12)


def test_pearson_of_two_classes_is_a_correlation():
    X, y, found = ranked("breast_cancer")
    expected = [abs(stats.pearsonr(column, y).statistic) for column in X.T]
    np.testing.assert_allclose(found.score("pearson"), expected, rtol=0, atol=ROUNDING)


@pytest.mark.parametrize("name", SETS)
def test_kolmogorov_smirnov_equals_that_of_scipy(name):
    X, y, found = ranked(name)
    for k, label in enumerate(found.classes[:3]):
        for feature in range(0, X.shape[1], 1 + X.shape[1] // 12):
            column = X[:, feature]
            expected = stats.ks_2samp(column[y == label], column[y != label])
            assert found.scores["kolmogorov_smirnov"][k, feature] == pytest.approx(expected.statistic, rel=1e-12)
            assert found.p_values["kolmogorov_smirnov"][k, feature] == pytest.approx(expected.pvalue, rel=1e-9)


@pytest.mark.parametrize("name", SETS)
def test_mutual_information_agrees_with_that_of_scikit_learn(name):
    """Ties are broken at random, so both agree within the noise of equal values."""
    X, y, found = ranked(name)
    expected = mutual_info_classif(X, y, discrete_features=False, random_state=0)
    varies = np.ptp(X, axis=0) > 0
    assert np.abs(found.score("mutual_information") - expected)[varies].max() < 0.12
    assert stats.spearmanr(found.score("mutual_information")[varies], expected[varies]).statistic > 0.95
    assert (found.score("mutual_information")[~varies] == 0).all()


@pytest.mark.parametrize("name", SETS)
def test_relief_equals_that_of_loops(name):
    X, y, found = ranked(name)
    shares = np.bincount(y) / len(y)
    anchors = spread_anchors(y, len(shares), N_ANCHORS).tolist()
    expected = oracles.relief(X, y, anchors, shares.tolist())
    np.testing.assert_allclose(found.score("relief"), expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize(("n_samples", "n_neighbors"), [(120, 10), (201, 5), (90, 1)])
def test_relief_equals_that_of_scikit_rebate(n_samples, n_neighbors):
    """Two classes of continuous columns, where scikit-rebate weighs the misses as ReliefF does."""
    rng = np.random.default_rng(n_samples)
    X, y = rng.standard_normal((n_samples, 6)).astype(np.float32), np.arange(n_samples) % 2
    X[y == 1, 2] += 1
    theirs = ReliefF(n_features_to_select=1, n_neighbors=n_neighbors, n_jobs=1).fit(X.astype(np.float64), y)
    ours = fxdask.rank_features(X, y, ["relief"], n_anchors=None, n_neighbors=n_neighbors)
    np.testing.assert_allclose(ours.score("relief"), theirs.feature_importances_, rtol=0, atol=1e-12)
