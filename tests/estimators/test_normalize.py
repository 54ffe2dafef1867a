"""normalize="auto": what it chooses, how a model records it, and every kind of input."""

import dask
import dask.array as da
import numpy as np
import oracles
import pandas as pd
import pytest
import zarr
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from small import chunk_files

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.kernels import projections

CHOICES = {load_iris: None, load_digits: None, load_wine: "feature", load_breast_cancer: "feature"}


def fit(X, y, normalize="auto", **parameters):
    return FisherNetworkClassifier(60, 3, normalize=normalize, **parameters).fit(X, y)


@pytest.mark.parametrize("load", CHOICES)
def test_features_of_different_scales_are_normalized(load):
    X, y = load(return_X_y=True)
    clf = fit(X, y)
    assert clf.normalize_ == CHOICES[load] == oracles.automatic_normalization(X)
    assert clf.normalize == "auto"
    chosen = fit(X, y, clf.normalize_)
    assert np.array_equal(clf.decision_function(X), chosen.decision_function(X))
    assert np.array_equal(clf.divergences_, chosen.divergences_)
    assert clf.temperature_ == chosen.temperature_


@pytest.fixture(scope="module", params=[None, "feature"])
def data(request):
    """Samples for which this is the choice, two of their features being constant."""
    rng = np.random.default_rng(8)
    y = np.arange(300) % 3
    X = rng.standard_normal((300, 6)) * (1 + y[:, None]) + 2 * y[:, None]
    X[:, [1, 4]] = 5.0
    if request.param == "feature":
        X[:, 2] *= 1000
    return X, y, request.param


@pytest.mark.parametrize("form", ["numpy", "float32", "dask", "zarr", "npy", "frame"])
@pytest.mark.parametrize("in_store", [pytest.param(False, marks=pytest.mark.full), True])
def test_every_input_gives_the_same_choice_and_model(data, form, in_store, tmp_path):
    X, y, choice = data
    np.save(tmp_path / "X.npy", X)
    samples = {
        "numpy": X,
        "float32": X.astype(np.float32),
        "dask": da.from_array(X, chunks=(77, 4)),
        "zarr": zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(41, 3)),
        "npy": tmp_path / "X.npy",
        "frame": pd.DataFrame(X, columns=list("abcdef")),
    }[form]
    clf = fit(samples, y, store=tmp_path / "model.zarr" if in_store else None)
    assert clf.normalize_ == choice
    if form != "float32":
        assert np.array_equal(np.asarray(clf.decision_function(samples)), fit(X, y, choice).decision_function(X))


def test_a_store_records_the_choice(data, tmp_path):
    """It is the same job as one that names the normalisation."""
    X, y, choice = data
    store = tmp_path / "model.zarr"
    clf = fit(X, y, store=store)
    assert zarr.open_group(store).attrs["fxdask"]["identity"]["normalize"] == choice
    loaded = fxdask.load(store)
    assert (loaded.normalize, loaded.normalize_) == ("auto", choice)
    assert np.array_equal(loaded.decision_function(X), clf.decision_function(X))
    for named in ("auto", choice):
        assert fit(X, y, named, store=store).fit_info_ == {}, "loaded, not fitted again"
    other = "sample" if choice else "feature"
    with pytest.raises(StoreExistsError, match=f"normalize={choice!r} instead of {other!r}"):
        fit(X, y, other, store=store)
    assert clone(clf).normalize == "auto"


@pytest.mark.parametrize("lazy", [False, True])
def test_an_interrupted_fit_resumes_with_its_choice(data, lazy, tmp_path, monkeypatch):
    X, y, choice = data
    samples = da.from_array(X, chunks=(90, 6)) if lazy else X
    options = {"nodes_per_block": 10, "selection": "joint"}
    fit(samples, y, store=tmp_path / "whole.zarr", **options)
    draw, calls = projections.weight_block, []

    def drawn(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return draw(*arguments)

    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(projections, "weight_block", drawn)
        with pytest.raises(KeyboardInterrupt):
            fit(samples, y, store=tmp_path / "model.zarr", **options)
    resumed = fit(samples, y, store=tmp_path / "model.zarr", **options)
    assert resumed.fit_info_["n_blocks_resumed"] == 3
    assert resumed.normalize_ == choice
    assert chunk_files(tmp_path / "model.zarr") == chunk_files(tmp_path / "whole.zarr")


@pytest.mark.parametrize("outlier", [1e4, -1e12])
def test_one_outlier_does_not_lose_its_feature(outlier):
    """Divided by a deviation that one outlier makes, the only feature that tells the classes apart would vanish."""
    rng = np.random.default_rng(1)
    X, y = rng.standard_normal((400, 6)), np.arange(400) % 2
    X[:, 2] += 4 * y
    X[11, 2] = outlier
    clf = FisherNetworkClassifier(300).fit(X[:200], y[:200])
    assert clf.normalize_ is None
    assert clf.score(X[200:], y[200:]) > 0.9


def test_constant_samples_are_refused_as_before():
    with pytest.raises(InvalidInputError, match="no node separates class"):
        fit(np.full((20, 3), 2.0), np.arange(20) % 2)


def test_values_too_large_for_float32_are_refused_as_before():
    X = np.random.default_rng(0).standard_normal((20, 3)) * 1e200
    for normalize in ("auto", None):
        with pytest.raises(InvalidInputError, match="overflow float32; scale X down"):
            fit(X, np.arange(20) % 2, normalize)


def test_the_scale_of_all_samples_changes_no_label(data):
    X, y, choice = data
    want = fit(X, y).predict(X)
    for scale in (1e-20, 2.0**-30, 1e20):
        clf = fit(scale * X, y)
        assert clf.normalize_ == choice
        assert (clf.predict(scale * X) == want).mean() > 0.99
