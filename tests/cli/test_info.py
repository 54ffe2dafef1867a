"""``fxdask info`` on finished models: what they were made from, and what they found."""

import json
import os
from contextlib import nullcontext

import dask
import numpy as np
import pandas as pd
import pytest
from command_line import run_here
from small import rewrite_manifest
from zarr import create_array, open_group

from fxdask import FisherNetworkClassifier, batch_score
from fxdask.planning import score_plan
from fxdask.store.lease import exclusive_lease
from fxdask.workflows import score as score_module

NAMES = ["ant", "bee", "cat", "dog", "eel"]


@pytest.fixture
def fitted(three_blobs, tmp_path):
    """Fit a joint model of features with names, one of them at a much larger scale."""
    X, y = three_blobs
    frame = pd.DataFrame(X * [1, 1, 1, 1, 1_000], columns=NAMES)
    options = {"selection": "joint", "combine": "joint", "normalize": "auto"}
    return FisherNetworkClassifier(150, 4, store=tmp_path / "m.zarr", **options).fit(frame, y)


def shown(folder, *words):
    done = run_here(folder, "info", "m.zarr", *words)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_facts_of_a_joint_model_are_shown(fitted, tmp_path):
    facts = json.loads(shown(tmp_path, "--json"))
    assert facts["normalization"] == {"used": "feature", "requested": "auto"}
    assert facts["temperature"] == fitted.temperature_
    overlaps = fitted.overlaps_
    assert facts["nodes_selected"] == len(overlaps) == fitted.selected_nodes_.shape[1]
    assert [row["nodes"] for row in facts["overlap_of_the_classes"]] == [1, (len(overlaps) + 1) // 2, len(overlaps)]
    assert [row["overlap"] for row in facts["overlap_of_the_classes"]] == [
        overlaps[0],
        overlaps[(len(overlaps) - 1) // 2],
        overlaps[-1],
    ]
    shrinkage = fitted.network_.learned["shrinkage"]
    assert facts["shrinkage"] == {"lowest": shrinkage.min(), "highest": shrinkage.max()}
    shared = fitted.selected_nodes_[0]
    best_nodes = [shared[row[shared].argmax()] for row in fitted.divergences_]
    assert [row["best_node"] for row in facts["classes"]] == best_nodes
    assert len(set(best_nodes)) > 1, "the first node of the selection is not the best of every class"
    best = np.argsort(-fitted.feature_importances_, kind="stable")[:5]
    assert [row["feature"] for row in facts["most_important_features"]] == [NAMES[i] for i in best]
    assert [row["importance"] for row in facts["most_important_features"]] == fitted.feature_importances_[best].tolist()


def test_the_same_facts_are_shown_as_text(fitted, tmp_path):
    lines = [line.split() for line in shown(tmp_path).splitlines()]
    assert ["used", "feature"] in lines
    assert ["requested", "auto"] in lines
    assert ["temperature", f"{fitted.temperature_:.4g}"] in lines
    assert ["nodes", "selected", str(len(fitted.overlaps_))] in lines
    assert [str(len(fitted.overlaps_)), f"{fitted.overlaps_[-1]:.4g}"] in lines
    assert [NAMES[fitted.feature_importances_.argmax()], f"{fitted.feature_importances_.max():.4g}"] in lines


def test_a_model_of_the_paper_has_neither_overlaps_nor_shrinkage(two_blobs, tmp_path):
    FisherNetworkClassifier.paper(n_nodes=100, n_selected=3, store=tmp_path / "m.zarr").fit(*two_blobs)
    facts = json.loads(shown(tmp_path, "--json"))
    assert facts["normalization"] == {"used": "sample", "requested": "sample"}
    assert {"overlap_of_the_classes", "shrinkage"} & set(facts) == set()
    assert len(facts["most_important_features"]) == 5


def test_one_shared_node_is_one_step(two_blobs, tmp_path):
    X, y = two_blobs
    clf = FisherNetworkClassifier(40, 1, selection="joint", combine="joint", store=tmp_path / "m.zarr")
    clf.fit(X[:, :1], y)
    facts = json.loads(shown(tmp_path, "--json"))
    assert facts["overlap_of_the_classes"] == [{"nodes": 1, "overlap": clf.overlaps_[0]}]


def test_a_store_of_an_earlier_version_is_shown_without_importances(two_blobs, tmp_path):
    """They would have to be computed from all weights, which can take long."""
    store = tmp_path / "m.zarr"
    FisherNetworkClassifier.paper(n_nodes=100, n_selected=3, store=store).fit(*two_blobs)
    group = open_group(store)
    header = {name: value for name, value in group.attrs["fxdask"].items() if name != "normalize_requested"}
    group.attrs["fxdask"] = {**header, "format": 7}
    del group["importances"]
    rewrite_manifest(store)
    facts = json.loads(shown(tmp_path, "--json"))
    assert facts["normalization"] == {"used": "sample", "requested": "sample"}
    assert "most_important_features" not in facts


def test_interrupted_scores_are_shown(two_blobs, tmp_path, monkeypatch):
    """Scores are written in a hidden folder beside their path until they are complete."""
    X, y = two_blobs
    clf = FisherNetworkClassifier.paper(n_nodes=60, n_selected=3, store=tmp_path / "m.zarr").fit(X, y)
    create_array(tmp_path / "X.zarr", data=X, chunks=(50, X.shape[1]))
    for name, parts in (("s.zarr", "chunks"), ("s.parquet", "files")):
        interrupted_scores(clf, tmp_path / "X.zarr", tmp_path / name, monkeypatch)
        run = run_here(tmp_path, "info", name, "--json")
        assert run.returncode == 0, run.stderr
        facts = json.loads(run.stdout)
        (found,) = facts.pop("interrupted")
        assert facts["finished"] is False
        assert facts["remedy"] == "run the same command again to resume"
        assert (found["parts"], found["done"], found["of"]) == (parts, 2, -(-len(X) // 50))
        assert f".{name}.next-" in found["folder"]


def test_a_call_that_works_on_a_store_is_shown(two_blobs, tmp_path, monkeypatch):
    X, y = two_blobs
    clf = FisherNetworkClassifier.paper(n_nodes=60, n_selected=3, store=tmp_path / "m.zarr").fit(X, y)
    create_array(tmp_path / "X.zarr", data=X, chunks=(50, X.shape[1]))
    interrupted_scores(clf, tmp_path / "X.zarr", tmp_path / "s.zarr", monkeypatch)
    with exclusive_lease(str(tmp_path / "s.zarr")):
        before = sorted(tmp_path.iterdir())
        facts = json.loads(run_here(tmp_path, "info", "s.zarr", "--json").stdout)
        assert sorted(tmp_path.iterdir()) == before
    assert facts["working_on_it"].startswith(f"process {os.getpid()} on ")
    assert facts["running"][0]["done"] == 2
    assert not {"interrupted", "remedy"} & facts.keys()


def test_what_an_interrupted_call_left_beside_a_finished_store_is_told_apart(two_blobs, tmp_path, monkeypatch):
    X, y = two_blobs
    clf = FisherNetworkClassifier.paper(n_nodes=60, n_selected=3, store=tmp_path / "m.zarr").fit(X, y)
    create_array(tmp_path / "X.zarr", data=X, chunks=(50, X.shape[1]))
    interrupted_scores(clf, tmp_path / "X.zarr", tmp_path / "s.zarr", monkeypatch)
    batch_score(clf, X, tmp_path / "s.zarr")
    facts = json.loads(run_here(tmp_path, "info", "s.zarr", "--json").stdout)
    assert facts["finished"] is True
    assert facts["interrupted"][0]["done"] == 2
    assert facts["remedy"] == "run the command that was interrupted again to resume it, or delete its folder"


class StoppedForTestError(Exception):
    """Stops a scoring as Ctrl-C does."""


def interrupted_scores(clf, samples, out, monkeypatch):
    """Score until two chunks are written."""

    def stop(done, total):
        if done == 2:
            raise StoppedForTestError

    with monkeypatch.context() as patch, dask.config.set(num_workers=1):
        patch.setattr(score_plan, "BYTES_PER_TASK", 1)
        patch.setattr(score_module, "progress_bar", lambda *_, **__: nullcontext(stop))
        with pytest.raises(StoppedForTestError):
            batch_score(clf, samples, out)
