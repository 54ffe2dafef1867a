"""A model that is loaded from its store has the parameters of its fit, also those that fxdask chose."""

import numpy as np
import pytest
import zarr
from sklearn.base import clone
from small import rewrite_manifest, unfinish

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreFormatError


@pytest.fixture(params=[1, 1_000], ids=["same scales", "one large scale"])
def data(three_blobs, request):
    X, y = three_blobs
    return X * [1, 1, 1, 1, request.param], y, None if request.param == 1 else "feature"


def fit(data, store=None, normalize="auto"):
    return FisherNetworkClassifier(100, 3, normalize=normalize, store=store).fit(*data[:2])


def edit_request(store, value):
    """Change or remove the requested normalisation in a header, with a manifest that agrees."""
    group = zarr.open_group(store)
    header = {name: entry for name, entry in group.attrs["fxdask"].items() if name != "normalize_requested"}
    group.attrs["fxdask"] = header if value is KeyError else {**header, "normalize_requested": value}
    rewrite_manifest(store)


def test_the_automatic_normalisation_is_loaded_with_its_choice(data, tmp_path):
    fitted = fit(data, tmp_path / "m.zarr")
    loaded = fxdask.load(tmp_path / "m.zarr")
    for clf in (fitted, loaded, clone(loaded).set_params(store=None).fit(*data[:2])):
        assert clf.normalize == "auto"
        assert clf.normalize_ == data[2]
    assert np.array_equal(loaded.predict_proba(data[0]), fitted.predict_proba(data[0]))
    assert np.array_equal(fitted.predict_proba(data[0]), fit(data, normalize=data[2]).predict_proba(data[0]))


def test_auto_and_its_choice_are_the_same_job(data, tmp_path):
    """A store keeps what its first call requested, and an estimator what it was told."""
    store = tmp_path / "m.zarr"
    fit(data, store, normalize="auto")
    again = fit(data, store, normalize=data[2])
    assert again.normalize == again._fitted_model().normalize_requested == data[2]
    assert fxdask.load(store).normalize == "auto"
    unfinish(store)
    fit(data, store, normalize=data[2])
    assert fxdask.load(store).normalize == "auto"


def test_a_store_of_an_earlier_version_tells_the_normalisation_in_use(data, tmp_path):
    fit(data, tmp_path / "m.zarr")
    edit_request(tmp_path / "m.zarr", KeyError)
    loaded = fxdask.load(tmp_path / "m.zarr")
    assert loaded.normalize == loaded.normalize_ == data[2]


@pytest.mark.parametrize("value", ["sample", 3, ["auto"]])
def test_an_impossible_request_is_refused(data, value, tmp_path):
    fit(data, tmp_path / "m.zarr")
    edit_request(tmp_path / "m.zarr", value)
    with pytest.raises(StoreFormatError, match="is damaged: its header is invalid .normalize_requested is"):
        fxdask.load(tmp_path / "m.zarr")
