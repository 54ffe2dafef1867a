"""The temperature of the probabilities: of whole fits, in stores, and what outliers do to it."""

import warnings

import dask.array as da
import numpy as np
import pytest
import zarr
from sklearn.datasets import load_digits, load_wine
from sklearn.metrics import log_loss
from small import rewrite_manifest

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreFormatError
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.temperature import temperature_of


@pytest.fixture(scope="module")
def digits():
    X, y = load_digits(n_class=6, return_X_y=True)
    return X[::2], y[::2], X[1::2], y[1::2]


@pytest.fixture(scope="module", params=COMBINATIONS)
def fitted(request, digits):
    return FisherNetworkClassifier(300, 5, combine=request.param).fit(*digits[:2])


def test_probabilities_are_softmaxes_of_scores_divided_by_the_temperature(fitted, digits):
    scaled = fitted.decision_function(digits[2]) / fitted.temperature_
    want = scaled - np.logaddexp.reduce(scaled, axis=1)[:, None]
    np.testing.assert_allclose(fitted.predict_log_proba(digits[2]), want, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fitted.predict_proba(digits[2]), np.exp(want), rtol=1e-9, atol=1e-12)


def test_the_temperature_changes_no_label(fitted, digits):
    best = fitted.predict_proba(digits[2]).argmax(axis=1)
    assert np.array_equal(fitted.classes_[best], fitted.predict(digits[2]))


def test_the_temperature_makes_test_samples_more_likely(fitted, digits):
    probabilities = fitted.predict_proba(digits[2])
    untouched = np.exp(fitted.decision_function(digits[2]) - fitted.score_samples(digits[2])[:, None])
    assert log_loss(digits[3], probabilities) < 0.8 * log_loss(digits[3], np.clip(untouched, 1e-15, 1))


def test_the_temperature_follows_from_scores_of_left_out_samples(fitted, digits):
    """All training samples are left out in turn, because there are fewer than 4,096."""
    X, y, *_ = digits
    net = fitted.network_
    order = np.argsort(y, kind="stable")
    values = net.weights @ net.preprocessing(X[order]).T
    scores = Scorer(net).held_out_scores(values, y[order])
    assert fitted.temperature_ == pytest.approx(temperature_of(scores, y[order]), rel=1e-3)


def test_the_temperature_does_not_depend_on_the_density(digits):
    X, y = digits[0][:200], digits[1][:200]
    table, exact = (FisherNetworkClassifier(100, 3, density=d).fit(X, y) for d in ("table", "exact"))
    assert table.temperature_ == exact.temperature_
    assert np.array_equal(table.predict(digits[2]), exact.predict(digits[2]))


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("outlier", [1e3, 1e9, -1e15])
def test_one_outlier_does_not_make_all_classes_equally_likely(combine, outlier):
    X, y = load_wine(return_X_y=True)
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    clf = FisherNetworkClassifier(300, 5, combine=combine)
    without = log_loss(y[1::2], clf.fit(X[::2], y[::2]).predict_proba(X[1::2]))
    X[10, 3] = outlier
    found = log_loss(y[1::2], clf.fit(X[::2], y[::2]).predict_proba(X[1::2]))
    assert found < without + 0.1
    assert found < 0.5 * np.log(3)


# Stores


def test_the_temperature_is_stored(fitted, digits, tmp_path):
    X, y = da.from_array(digits[0], chunks=(300, 64)), digits[1]
    stored = FisherNetworkClassifier(300, 5, combine=fitted.combine, store=tmp_path / "model.zarr").fit(X, y)
    loaded = fxdask.load(tmp_path / "model.zarr")
    assert loaded.temperature_ == stored.temperature_ == fitted.temperature_
    assert np.array_equal(loaded.predict_proba(digits[2]), fitted.predict_proba(digits[2]))


def edited(path, without=(), **changes):
    group = zarr.open_group(path)
    header = {name: value for name, value in group.attrs["fxdask"].items() if name not in without}
    group.attrs["fxdask"] = {**header, **changes}
    rewrite_manifest(path)


@pytest.mark.parametrize("number", [6, 7])
def test_stores_of_earlier_formats_have_a_temperature_of_one(number, two_blobs, tmp_path):
    X, y = two_blobs
    path = tmp_path / "model.zarr"
    clf = FisherNetworkClassifier(100, 3, combine="sum", normalize=None, store=path).fit(X, y)
    assert clf.temperature_ != 1
    edited(path, without=["temperature"], format=number)
    older = fxdask.load(path)
    assert older.temperature_ == 1
    assert np.array_equal(older.predict(X), clf.predict(X))
    scores = older.decision_function(X)
    np.testing.assert_allclose(older.predict_proba(X)[:, 1], 1 / (1 + np.exp(-scores)), rtol=1e-9)


@pytest.mark.parametrize("temperature", [0, -1, float("nan"), float("inf"), "warm", None])
def test_temperatures_that_no_fit_writes_are_refused(temperature, two_blobs, tmp_path):
    path = tmp_path / "model.zarr"
    FisherNetworkClassifier(50, 3, store=path).fit(*two_blobs)
    edited(path, temperature=temperature)
    with pytest.raises(StoreFormatError, match="its header is invalid"):
        fxdask.load(path)


def test_a_missing_temperature_is_refused(two_blobs, tmp_path):
    path = tmp_path / "model.zarr"
    FisherNetworkClassifier(50, 3, store=path).fit(*two_blobs)
    edited(path, without=["temperature"])
    with pytest.raises(StoreFormatError, match="its header is invalid"):
        fxdask.load(path)


def test_equal_classes_have_finite_probabilities():
    """Every sample belongs to two classes, so that no temperature makes a label sure."""
    X = np.repeat(np.random.default_rng(0).standard_normal((40, 3)), 2, axis=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = FisherNetworkClassifier(60, 3).fit(X, np.arange(80) % 2)
        probabilities = clf.predict_proba(X)
    assert np.isfinite(probabilities).all()
    assert np.abs(probabilities - 0.5).max() < 0.2
