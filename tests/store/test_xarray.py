"""Stores as xarray shows them: coordinates instead of bare numbers, a model card, and nothing of fxdask's own files."""

import json

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from small import X, Y, fit

import fxdask

WORDS = np.where(Y == 1, "yes", "no")


@pytest.mark.parametrize("labels", [Y, WORDS])
def test_scores_have_sample_and_class_coordinates(tmp_path, labels):
    clf = fit(y=labels, store=tmp_path / "m.zarr", combine="sum")
    fxdask.batch_score(clf, X, tmp_path / "s.zarr", y=labels, likelihood=True)
    shown = xr.open_zarr(tmp_path / "s.zarr", consolidated=False).load()
    assert set(shown.data_vars) == {"labels", "scores", "log_likelihood"}
    assert shown.scores.dims == ("sample", "class")
    assert shown["class"].values.tolist() == clf.classes_.tolist()
    assert shown["sample"].values.tolist() == list(range(len(X)))
    best = shown["class"][shown.scores.argmax("class")]
    assert best.values.tolist() == shown.labels.values.tolist() == clf.predict(X).tolist()
    first = clf.classes_[0]
    assert shown.scores.sel({"sample": 3, "class": first}).item() == shown.scores.values[3, 0]
    card = shown.attrs["model_card"]
    assert card["accuracy"] == clf.score(X, labels)
    assert card["data"] == {"n_samples": len(X)}
    assert card["model"] == str(tmp_path / "m.zarr")


def test_models_have_class_coordinates_and_a_card(tmp_path):
    clf = fit(y=WORDS, store=tmp_path / "m.zarr", n_nodes=50, combine="sum")
    shown = xr.open_zarr(tmp_path / "m.zarr", consolidated=False).load()
    assert "manifest" not in shown.variables
    assert shown.priors.sel({"class": "yes"}).item() == clf.priors_[1]
    assert shown.importances.dims == ("class", "input")
    card = shown.attrs["model_card"]
    assert card["versions"]["fxdask"] == fxdask.__version__
    assert card["parameters"]["n_nodes"] == 50
    assert card["data"]["samples"] == clf._fitted_model().samples_digest
    assert (card["data"]["n_samples"], card["data"]["n_features"]) == X.shape
    assert card["accuracy"] is None


def test_rankings_and_score_tables_have_cards(tmp_path):
    fxdask.rank_features(X, Y, ["pearson"], store=tmp_path / "r.zarr")
    card = xr.open_zarr(tmp_path / "r.zarr", consolidated=False).attrs["model_card"]
    assert card["kind"] == "ranking"
    assert card["parameters"]["criteria"] == ["pearson"]
    fxdask.batch_score(fit(), X, tmp_path / "s.parquet", y=Y)
    card = json.loads((tmp_path / "s.parquet" / "_SUCCESS").read_text())["model_card"]
    assert card["kind"] == "score table"
    assert 0 <= card["accuracy"] <= 1
    assert len(pd.read_parquet(tmp_path / "s.parquet")) == len(X)


def test_every_array_names_its_dimensions(tmp_path):
    fit(store=tmp_path / "m.zarr", keep_projections="all", keep_weights=True, selection="joint")
    fxdask.batch_score(tmp_path / "m.zarr", X, tmp_path / "s.zarr", likelihood=True)
    fxdask.rank_features(X, Y, ["pearson", "relief"], store=tmp_path / "r.zarr")
    for file in tmp_path.rglob("zarr.json"):
        metadata = json.loads(file.read_text())
        if metadata["node_type"] == "array":
            assert len(metadata["dimension_names"]) == len(metadata["shape"]), file
            assert all(metadata["dimension_names"]), file
