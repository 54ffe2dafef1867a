"""Outliers, small classes and many features: what counts as constant, and what does not."""

import warnings

import numpy as np
import pytest
import zarr
from small import rewrite_manifest, unfinish

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreExistsError
from fxdask.store.layout import FORMAT


def classes_of_unequal_variance(seed, n_samples, n_features=50):
    """Two classes of the same mean; the second one's standard deviation is 1.5 times as large."""
    rng = np.random.default_rng(seed)
    X, y = rng.standard_normal((n_samples, n_features)), np.arange(n_samples) % 2
    X[y == 1] *= 1.5
    return X, y


def accuracy(X, y):
    """Accuracy on other samples, in percent; a warning is an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = FisherNetworkClassifier(1_000, combine="log").fit(X, y)
    return 100 * model.score(*classes_of_unequal_variance(1, 4_000))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("outlier", [1e6, 1e15, -1e15])
def test_one_outlier_does_not_change_the_accuracy(outlier, dtype):
    X, y = classes_of_unequal_variance(0, 2_000)
    X = X.astype(dtype)
    without = accuracy(X, y)
    X[37, 11] = outlier
    assert without > 60
    assert accuracy(X, y) == pytest.approx(without, abs=2)


def test_a_small_class_at_a_small_scale_is_not_constant():
    rng = np.random.default_rng(2)
    y = np.where(np.arange(2_000) % 10 == 0, 2, np.arange(2_000) % 2)
    X = rng.standard_normal((2_000, 50)) * np.array([1.0, 1.5, 1e-6])[y][:, None]
    model = FisherNetworkClassifier(500).fit(X, y)
    assert model.spread_sources_ == {"mad": 1_500, "iqr": 0, "std": 0, "zero": 0}


def test_many_features_do_not_make_spreads_zero():
    X, y = classes_of_unequal_variance(3, 60, 100_000)
    model = FisherNetworkClassifier(48).fit(X.astype(np.float32), y)
    assert model.spread_sources_["zero"] == 0


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
@pytest.mark.parametrize("noise", [0.0, 1e-16])
@pytest.mark.parametrize("proportion", [0.3, pytest.param(0.8, marks=pytest.mark.full), 0.95])
def test_a_constant_class_keeps_a_density_however_large_it_is(proportion, noise):
    """The origin of the samples is then the constant class itself, with norms of zero or of rounding noise."""
    rng = np.random.default_rng(4)
    y = (rng.random(400) >= proportion).astype(int)
    X = rng.standard_normal((400, 10))
    X[y == 0] = 0.3 + noise * rng.standard_normal(((y == 0).sum(), 10))
    for combine in ("sum", "log"):
        model = FisherNetworkClassifier(100, 5, combine=combine).fit(X, y)
        assert model.score(X, y) > 0.98
        assert model.score(X.astype(np.float32), y) > 0.98


def edited(path, **header):
    """Change fields of a store's header, with a manifest that agrees."""
    group = zarr.open_group(path)
    group.attrs["fxdask"] = {**group.attrs["fxdask"], **header}


def as_format_6(path):
    """Turn a store into one of format 6, which had no class_norms."""
    identity = zarr.open_group(path).attrs["fxdask"]["identity"]
    older = {name: value for name, value in identity.items() if name != "zero_tolerance"}
    edited(path, format=6, class_norms=None, identity=older)  # a reader of format 6 ignores the class_norms


def test_a_finished_store_of_format_6_is_read(two_blobs, tmp_path):
    X, y = two_blobs
    model = FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(X, y)
    as_format_6(tmp_path / "model.zarr")
    rewrite_manifest(tmp_path / "model.zarr")
    older = fxdask.load(tmp_path / "model.zarr")
    assert np.array_equal(older.predict_log_proba(X), model.predict_log_proba(X))
    assert np.array_equal(older.responses(X[0], X_train=X), model.responses(X[0], X_train=X))
    with pytest.raises(StoreExistsError, match="made from another rule for spreads that count as zero"):
        FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(X, y)


def test_an_unfinished_store_of_format_6_is_started_anew(two_blobs, tmp_path):
    X, y = two_blobs
    whole = FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr", nodes_per_block=20).fit(X, y)
    as_format_6(tmp_path / "model.zarr")
    unfinish(tmp_path / "model.zarr")
    other = FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr")
    with pytest.raises(StoreExistsError, match="made from other samples"):
        other.fit(X + 1, y)
    again = other.fit(X, y)
    assert again.fit_info_["n_blocks_resumed"] == 0
    assert np.array_equal(again.divergences_, whole.divergences_)
    assert zarr.open_group(tmp_path / "model.zarr").attrs["fxdask"]["format"] == FORMAT


def test_scales_that_no_fit_writes_are_refused(two_blobs, tmp_path):
    FisherNetworkClassifier(50, 3, store=tmp_path / "model.zarr").fit(*two_blobs)
    for class_norms in ([1.0], [1.0, -1.0], ["a", "b"], [1.0, float("nan")]):
        edited(tmp_path / "model.zarr", class_norms=class_norms)
        rewrite_manifest(tmp_path / "model.zarr")
        with pytest.raises(fxdask.errors.StoreFormatError, match="its header is invalid"):
            fxdask.load(tmp_path / "model.zarr")
