"""Classes of few samples: their spreads are not taken for narrow because the samples lie together by chance."""

import numpy as np
import pytest
from sklearn.datasets import load_digits, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreExistsError


def few_of_each(load, per_class, seed):
    """Samples of every class to train with, and at most 200 others to test with."""
    X, y = load(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(y))
    rank = np.array([np.count_nonzero(y[order[:i]] == y[order[i]]) for i in range(len(y))])
    train, test = order[rank < per_class], order[rank >= per_class][:200]
    return X[train], y[train], X[test], y[test]


@pytest.mark.parametrize("per_class", [2, pytest.param(3, marks=pytest.mark.full), 5])
def test_accuracy_is_near_that_of_shrunk_linear_discriminants(per_class):
    ours, others, unshrunk = [], [], []
    for load in (load_wine, load_digits):
        for seed in range(2):
            X, y, X_test, y_test = few_of_each(load, per_class, seed)
            linear = LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto").fit(X, y)
            others.append(linear.score(X_test, y_test))
            for shrink, found in ((True, ours), (False, unshrunk)):
                clf = FisherNetworkClassifier(500, shrink_spread=shrink, random_state=seed)
                found.append(clf.fit(X, y).score(X_test, y_test))
    assert np.mean(ours) > np.mean(others) - 0.05
    assert np.mean(ours) > np.mean(unshrunk) + 0.05


@pytest.mark.parametrize("selection", ["top", "joint"])
def test_large_classes_give_the_same_bits(selection, two_blobs):
    X, y = two_blobs
    shrunk, plain = (
        FisherNetworkClassifier(200, 3, selection=selection, shrink_spread=shrink).fit(X, y) for shrink in (True, False)
    )
    assert np.array_equal(shrunk.divergences_, plain.divergences_)
    assert np.array_equal(shrunk.decision_function(X), plain.decision_function(X))


def test_a_store_without_the_setting_is_another_job(two_blobs, tmp_path):
    X, y = two_blobs
    store = tmp_path / "model.zarr"
    FisherNetworkClassifier(100, 3, store=store, shrink_spread=False).fit(X, y)
    assert fxdask.load(store).shrink_spread is False
    with pytest.raises(StoreExistsError, match="shrink_spread=False instead of True"):
        FisherNetworkClassifier(100, 3, store=store).fit(X, y)
