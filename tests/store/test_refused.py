"""Stores, paths and jobs that a call refuses, without changing what is there."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import zarr
from small import X, Y, fit, one_sentence, rewrite_manifest, unfinish

import fxdask
from fxdask.errors import (
    DiskSpaceError,
    InvalidInputError,
    StoreExistsError,
    StoreFormatError,
    StoreUnfinishedError,
    WeightStreamError,
)
from fxdask.store.group import begin_group


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"X": X + 1}, "made from other samples"),
        ({"X": X.astype(np.float32)}, "samples of another dtype"),
        ({"y": 1 - Y}, "made from other labels"),
        ({"y": Y + 10}, "made from other labels"),
        ({"n_nodes": 51}, "made from n_nodes=50 instead of 51"),
        ({"bandwidth": 0.5}, "bandwidth='silverman' instead of 0.5"),
        ({"random_state": 4}, "seed=0 instead of 4"),
    ],
)
@pytest.mark.parametrize("finished", [True, pytest.param(False, marks=pytest.mark.full)])
def test_a_store_of_another_job_is_replaced_only_with_overwrite(original, changed, message, finished, tmp_path):
    check_replaced_only_with_overwrite(original, changed, message, finished, tmp_path)


def test_an_unfinished_store_of_another_job_is_replaced_only_with_overwrite(original, tmp_path):
    check_replaced_only_with_overwrite(original, {"n_nodes": 51}, "n_nodes=50 instead of 51", False, tmp_path)


def check_replaced_only_with_overwrite(original, changed, message, finished, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    if not finished:
        unfinish(store)
    with pytest.raises(StoreExistsError) as error:
        fit(store=store, **changed)
    assert message in one_sentence(error)
    assert "overwrite=True" in one_sentence(error)
    assert fit(store=store, overwrite=True, **changed).predict(X).shape == (40,)
    assert np.array_equal(fxdask.load(store).predict(X), fit(**changed).predict(X))


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ({"selection": "joint"}, {}, "made from selection='joint' instead of 'top'; choose"),
        (
            {"selection": "joint", "pool_size": 9},
            {"pool_size": 8},
            "made from selection='joint' instead of 'top'; choose",
        ),
        (
            {},
            {"selection": "joint", "pool_size": 9},
            "selection='top' instead of 'joint', pool_size='auto' instead of 9",
        ),
        ({"shrink_spread": True}, {"shrink_spread": False}, "made from shrink_spread=True instead of False"),
    ],
)
@pytest.mark.parametrize("finished", [True, False])
def test_settings_that_identities_leave_out_are_another_job(before, after, message, finished, tmp_path):
    """Stores of the time before these settings existed are still the same job as their values of that time."""
    store = tmp_path / "model.zarr"
    fit(store=store, **before)
    if not finished:
        unfinish(store)
    with pytest.raises(StoreExistsError) as error:
        fit(store=store, **after)
    assert message in one_sentence(error)
    fit(store=store, overwrite=True, **after)
    assert np.array_equal(fxdask.load(store).selected_nodes_, fit(**after).selected_nodes_)


def test_a_store_of_an_older_format_is_refused(original, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], "format": 1}
    with pytest.raises(StoreFormatError, match="has store format 1 but this fxdask reads formats 6, 7, 8 and 9; fit"):
        fxdask.load(store)


def test_a_store_of_a_newer_format_is_refused(original, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], "format": 99}
    for call in (
        lambda: fxdask.load(store),
        lambda: fit(store=store),
        lambda: fit(store=store, overwrite=True),
    ):
        with pytest.raises(StoreFormatError, match="format 99 but this fxdask reads formats 6, 7, 8 and 9; upgrade"):
            call()


def test_a_pipe_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for call in (
        lambda: fit(store=tmp_path / "pipe"),
        lambda: fit(store=tmp_path / "pipe", overwrite=True),
        lambda: fxdask.batch_score(fit(), X, tmp_path / "pipe"),
    ):
        with pytest.raises(StoreExistsError, match="exists but is not an fxdask store"):
            call()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_foreign_file_in_an_interrupted_creation_is_kept(tmp_path):
    begin_group(str(tmp_path / "model.zarr"), "model", [])
    (tmp_path / "model.zarr" / "thesis.txt").write_text("mine")
    with pytest.raises(StoreExistsError, match="thesis.txt, which fxdask did not write"):
        fit(store=tmp_path / "model.zarr")
    assert (tmp_path / "model.zarr" / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    "path",
    [
        Path("s3://bucket/m.zarr"),
        "s3://",
        "memory://",
        "file:/m.zarr",
        "s3://a//b",
        b"m.zarr",
        3,
        "a\0b",
        "~nobody-at-all/m",
    ],
)
def test_impossible_paths_are_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for call in (lambda: fit(store=path), lambda: fxdask.load(path), lambda: fxdask.batch_score(fit(), X, path)):
        with pytest.raises(InvalidInputError) as error:
            call()
        one_sentence(error)
    assert not list(tmp_path.iterdir())


def test_folders_arrays_and_groups_that_are_no_store_are_refused(tmp_path):
    with pytest.raises(StoreFormatError, match="there is no fxdask store at"):
        fxdask.load(tmp_path / "nowhere")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "dear.txt").write_text("hello")
    zarr.create_array(tmp_path / "array.zarr", data=X)
    zarr.open_group(tmp_path / "group.zarr", mode="w")
    for name in ("letters", "array.zarr", "group.zarr"):
        for overwrite in (False, True):
            with pytest.raises(StoreExistsError, match="not an fxdask store; choose another path"):
                fit(store=tmp_path / name, overwrite=overwrite)
        with pytest.raises(StoreFormatError, match="not an fxdask store"):
            fxdask.load(tmp_path / name)
    assert (tmp_path / "letters" / "dear.txt").read_text() == "hello"
    assert np.array_equal(zarr.open_array(tmp_path / "array.zarr")[:], X)


def test_scores_and_models_do_not_replace_each_other(tmp_path):
    clf = fit(store=tmp_path / "model.zarr")
    fxdask.batch_score(clf, X, tmp_path / "out.zarr")
    with pytest.raises(StoreExistsError, match="of kind 'model', which one of kind 'scores' never replaces"):
        fxdask.batch_score(clf, X, tmp_path / "model.zarr", overwrite=True)
    with pytest.raises(StoreExistsError, match="not a model"):
        fit(store=tmp_path / "out.zarr", overwrite=True)
    with pytest.raises(StoreFormatError, match="holds 'scores', not 'model'"):
        fxdask.load(tmp_path / "out.zarr")
    with pytest.raises(StoreExistsError, match="already holds a finished store of kind 'scores'"):
        fxdask.batch_score(clf, X, tmp_path / "out.zarr")
    fxdask.batch_score(clf, X, tmp_path / "out.zarr", overwrite=True)


def test_an_unfinished_store_does_not_load(original, tmp_path):
    shutil.copytree(original, tmp_path / "model.zarr")
    unfinish(tmp_path / "model.zarr")
    with pytest.raises(StoreUnfinishedError, match="is unfinished; run the same call again"):
        fxdask.load(tmp_path / "model.zarr")


def test_resuming_refuses_another_weight_fingerprint(original, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    unfinish(store)
    fingerprint = zarr.open_group(store)["canaries"]
    fingerprint[:] = fingerprint[:] + 1
    with pytest.raises(WeightStreamError, match="draws other weights"):
        fit(store=store)


def test_a_job_larger_than_the_disk_is_refused(tmp_path):
    samples = np.random.default_rng(0).standard_normal((5_000, 4))
    too_many = 2 * shutil.disk_usage(tmp_path).free // (4 * len(samples))
    clf = fxdask.FisherNetworkClassifier(too_many, 3, store=tmp_path / "model.zarr", keep_projections="all")
    with pytest.raises(DiskSpaceError, match=r"needs .*iB but the disk has .*iB free; free some disk space"):
        clf.fit(samples, np.arange(len(samples)) % 2)
    assert not (tmp_path / "model.zarr").exists()


def test_the_candidates_of_a_joint_selection_count_as_disk_space(tmp_path, monkeypatch):
    """200 candidates of 5,000 samples take 2 MB while the selection runs; without them the disk would suffice."""
    samples, y = np.random.default_rng(0).standard_normal((5_000, 4)), np.arange(5_000) % 2
    clf = fxdask.FisherNetworkClassifier(200, 3, store=tmp_path / "model.zarr")
    enough = clf.plan(samples, y).store_bytes()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=enough + 1_900_000))
    with pytest.raises(DiskSpaceError, match=r"needs .*iB but the disk has .*iB free"):
        clf.set_params(selection="joint").fit(samples, y)
    clf.set_params(selection="top").fit(samples, y)


def test_a_loaded_model_refuses_another_weight_fingerprint(tmp_path):
    store = tmp_path / "model.zarr"
    fit(store=store, keep_projections="all")
    fingerprint = zarr.open_group(store)["canaries"]
    fingerprint[:] = fingerprint[:] + 1
    rewrite_manifest(store)
    loaded = fxdask.load(store)
    assert loaded.predict(X).shape == (40,)
    for call in (lambda: loaded.weights([0]), lambda: loaded.responses(X[0])):
        with pytest.raises(WeightStreamError, match="draws other weights"):
            call()


def test_a_store_with_foreign_files_is_not_replaced(original, tmp_path):
    shutil.copytree(original, tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(StoreExistsError, match="holds notes.txt, which fxdask did not write"):
        fit(store=tmp_path / "m", overwrite=True, n_nodes=60)
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"
    assert fxdask.load(tmp_path / "m").n_nodes == 50
