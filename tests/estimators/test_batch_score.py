"""``fxdask.batch_score`` on a model's path: it loads the fitted network, and builds no estimator."""

import numpy as np
import pytest
import zarr
from small import X, Y, fit, one_sentence, rewrite_manifest

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import InvalidInputError, StoreFormatError


@pytest.fixture
def store(tmp_path):
    path = tmp_path / "model.zarr"
    fit(store=path)
    return path


def edit_settings(store, name, value):
    """Change one setting in the header, and write a manifest that agrees with it."""
    group = zarr.open_group(store)
    header = group.attrs["fxdask"]
    if name == "density":
        header = {**header, "density": value}
    else:
        header = {**header, "identity": {**header["identity"], name: value}}
    group.attrs["fxdask"] = header
    rewrite_manifest(store)


def test_scoring_from_a_path_builds_no_estimator(store, tmp_path, monkeypatch):
    expected = fxdask.load(store).predict(X)

    def refuse(*_, **__):
        raise AssertionError("an estimator was built")

    monkeypatch.setattr(FisherNetworkClassifier, "__init__", refuse)
    result = fxdask.batch_score(store, X, tmp_path / "scored.zarr", Y)
    assert result.n_samples == 40
    assert np.array_equal(zarr.open_group(tmp_path / "scored.zarr")["labels"][:], expected)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("criterion", "gini"),
        ("location", None),
        ("bandwidth", -1.0),
        ("bandwidth_spread", "wide"),
        ("combine", "product"),
        ("density", "guess"),
        ("n_selected", 0),
        ("n_selected", True),
        ("priors", [1.0, -1.0]),
        ("seed", -1),
        ("keep_weights", "yes"),
    ],
)
def test_a_store_with_impossible_settings_is_refused(store, tmp_path, name, value):
    edit_settings(store, name, value)
    with pytest.raises(StoreFormatError, match="model.zarr is damaged: its header is invalid") as error:
        fxdask.batch_score(store, X, tmp_path / "scored.zarr")
    one_sentence(error)
    assert [path.name for path in tmp_path.iterdir()] == ["model.zarr"]


@pytest.mark.parametrize("name", ["scored.csv", "scored.NPY", "scored.json"])
def test_results_of_other_formats_are_refused(store, tmp_path, name):
    with pytest.raises(InvalidInputError, match=f"a Zarr group or Parquet, not .*{name}; choose a name with .zarr or"):
        fxdask.batch_score(store, np.zeros((1, 3)), tmp_path / name)
    assert not (tmp_path / name).exists()
