"""``fxdask responses``: the activations of all nodes as a file, a few samples at a time if memory is short."""

import json

import numpy as np
import pytest
from command_line import run_here

import fxdask
from fxdask.errors import MemoryPlanError
from fxdask.planning import respond_plan
from fxdask.workflows import respond


@pytest.fixture(scope="module")
def fitted(two_blobs, tmp_path_factory):
    folder = tmp_path_factory.mktemp("responses")
    X, y = two_blobs
    np.save(folder / "X.npy", X)
    np.save(folder / "points.npy", X[:7])
    clf = fxdask.FisherNetworkClassifier(60, 3, keep_projections="all", store=folder / "all.zarr").fit(X, y)
    fxdask.FisherNetworkClassifier(60, 3, store=folder / "m.zarr").fit(X, y)
    return folder, clf.responses(X[:7])


@pytest.mark.parametrize("words", [("all.zarr",), ("m.zarr", "--train", "X.npy")])
def test_the_file_has_what_python_gives(fitted, words):
    folder, expected = fitted
    model, *more = words
    run = run_here(folder, "responses", model, "points.npy", "out.npy", *more, "--overwrite", "--json")
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == {"out": "out.npy", "samples": 7, "classes": 2, "nodes": 60}
    assert np.array_equal(np.load(folder / "out.npy"), expected)


def test_few_samples_at_a_time_give_the_same(fitted, monkeypatch):
    folder, expected = fitted
    # Two samples of 2 classes and 60 nodes, in parts and as a whole, of the share that may be used.
    monkeypatch.setattr(respond, "available_bytes", lambda: 2 * 2 * 8 * 2 * 60 / 0.6 + 1)
    clf = fxdask.load(folder / "all.zarr")
    with pytest.raises(MemoryPlanError, match="those of 1 samples fit into memory together; pass so many at a time"):
        clf.responses(np.load(folder / "points.npy"))
    clf.write_responses(folder / "points.npy", folder / "batches.npy")
    assert np.array_equal(np.load(folder / "batches.npy"), expected)


def test_small_blocks_of_nodes_give_the_same(fitted, monkeypatch):
    folder, expected = fitted
    planned = respond.plan_responses

    def in_blocks_of_seven(*arguments, **options):
        plan = planned(*arguments, **options)
        fit = respond_plan.replace(plan.fit, nodes_per_block=7, nodes_per_pass=7)
        return respond_plan.replace(plan, fit=fit)

    monkeypatch.setattr(respond, "plan_responses", in_blocks_of_seven)
    found = fxdask.load(folder / "m.zarr").responses(np.load(folder / "points.npy"), X_train=folder / "X.npy")
    assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("words", "status", "message"),
    [
        (("m.zarr", "points.npy", "new.npy"), 1, "responses need the training samples"),
        (("all.zarr", "points.npy", "new.txt"), 2, "choose a name with .npy instead of new.txt"),
        (("all.zarr", "points.npy", "X.npy"), 1, "X.npy already exists; choose another path, or pass --overwrite"),
        (("all.zarr", "points.npy", "no/new.npy"), 1, "its folder does not exist"),
        (("m.zarr", "points.npy", "new.npy", "--train", "points.npy"), 1, "X_train differs from the samples"),
    ],
)
def test_wrong_words_are_refused(fitted, words, status, message):
    folder, _ = fitted
    run = run_here(folder, "responses", *words)
    assert run.returncode == status
    assert message in run.stderr
    assert not list(folder.glob("*new*"))
    assert not list(folder.glob(".*"))
