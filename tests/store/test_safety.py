"""Which stores are refused, which are kept, and what a failed call leaves behind."""

import errno
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from small import X, Y, fit, one_sentence, rewrite_manifest, unfinish, with_value

import fxdask
from fxdask.errors import (
    DiskSpaceError,
    InvalidInputError,
    StoreExistsError,
    StoreFormatError,
    StoreUnfinishedError,
    WeightStreamError,
)
from fxdask.store import model
from fxdask.store.group import begin_group


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """A finished model, of which tests change copies."""
    return Path(fit(store=tmp_path_factory.mktemp("original") / "model.zarr").store_)


def test_samples_with_nan_do_not_change_an_earlier_model(original, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    before = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    for overwrite in (False, True):
        with pytest.raises(InvalidInputError, match="NaN"):
            fit(with_value(np.nan), store=store, overwrite=overwrite)
    assert {path: path.read_bytes() for path in store.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize("kind", ["dask", "zarr"])
def test_scores_are_removed_if_a_later_sample_is_infinite(kind, tmp_path):
    """Some chunks are already written when the bad one is read."""
    wide = np.random.default_rng(1).standard_normal((4_000, 2_000)).astype(np.float32)
    clf = fit(wide[:40])
    wide[3_990, 1_234] = np.inf
    if kind == "dask":
        data = da.from_array(wide, chunks=(900, 2_000))
    else:
        data = zarr.create_array(tmp_path / "X.zarr", data=wide, chunks=(700, 2_000))
    for scheduler in ("synchronous", "threads"):
        with (
            dask.config.set(scheduler=scheduler),
            pytest.raises(InvalidInputError, match="infinity, first in sample 3990, feature 1234"),
        ):
            fxdask.batch_score(clf, data, tmp_path / "out.zarr")
        assert not (tmp_path / "out.zarr").exists()


def test_earlier_scores_stay_until_the_new_ones_are_finished(tmp_path):
    clf = fit()
    fxdask.batch_score(clf, X, tmp_path / "out.zarr")
    before = zarr.open_group(tmp_path / "out.zarr")["scores"][:]
    with pytest.raises(InvalidInputError, match="NaN"):
        fxdask.batch_score(clf, with_value(np.nan), tmp_path / "out.zarr", overwrite=True)
    assert np.array_equal(zarr.open_group(tmp_path / "out.zarr")["scores"][:], before)
    assert [path.name for path in tmp_path.iterdir()] == ["out.zarr"]
    fxdask.batch_score(clf, X[:7], tmp_path / "out.zarr", overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out.zarr"]
    assert zarr.open_group(tmp_path / "out.zarr")["labels"].shape == (7,)


def test_an_earlier_model_stays_until_the_new_one_is_finished(tmp_path):
    store = tmp_path / "model.zarr"
    old = fit(store=store)
    with pytest.raises(InvalidInputError, match="no node separates class"):
        fit(np.ones((40, 4)), store=store, overwrite=True)
    assert np.array_equal(fxdask.load(store).divergences_, old.divergences_)
    assert [path.name for path in tmp_path.iterdir()] == ["model.zarr"]
    new = fit(store=store, overwrite=True, n_nodes=60)
    assert new.store_ == str(store)
    assert fxdask.load(store).n_nodes == 60
    assert [path.name for path in tmp_path.iterdir()] == ["model.zarr"]


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


def test_a_missing_chunk_is_an_error_not_zeros(original, tmp_path):
    store = shutil.copytree(original, tmp_path / "model.zarr")
    (store / "selected" / "weights" / "c" / "0" / "0").unlink()
    with pytest.raises(StoreFormatError, match="damaged: selected/weights/c/0/0 is missing"):
        fxdask.load(store)


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


def test_a_missing_block_chunk_is_reported_by_responses_and_computed_by_a_resume(tmp_path):
    store = tmp_path / "model.zarr"
    parameters = {"store": store, "keep_projections": "all", "keep_weights": True, "nodes_per_block": 10}
    expected = fit(**parameters).responses(X[0])
    (store / "projections" / "c" / "2" / "0").unlink()
    with pytest.raises(StoreFormatError, match="damaged: projections has no chunk 2"):
        fxdask.load(store).responses(X[0])
    unfinish(store)
    (store / "weights" / "c" / "3" / "0").unlink()
    resumed = fit(**parameters)
    assert resumed.fit_info_["n_blocks_resumed"] == 3
    assert np.array_equal(resumed.responses(X[0]), expected)


def test_a_store_whose_creation_was_interrupted_is_created_again(tmp_path, monkeypatch):
    store = tmp_path / "model.zarr"

    def fill_disk(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(model, "write_header", fill_disk)
        with pytest.raises(OSError, match="No space left"):
            fit(store=store)
    assert store.exists()
    assert np.array_equal(fit(store=store).divergences_, fit().divergences_)


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


def test_overwriting_keeps_folders_beside_the_store(original, tmp_path):
    store, out = shutil.copytree(original, tmp_path / "m"), tmp_path / "o"
    fxdask.batch_score(store, X, out)
    for name in ("m.old", "m.next", "o.old", "o.next"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "thesis.tex").write_text(name)
    before = sorted(path.name for path in tmp_path.iterdir())
    fit(store=store, overwrite=True, n_nodes=60)
    fxdask.batch_score(store, X, out, overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    for name in ("m.old", "m.next", "o.old", "o.next"):
        assert (tmp_path / name / "thesis.tex").read_text() == name


def test_a_store_with_foreign_files_is_not_replaced(original, tmp_path):
    shutil.copytree(original, tmp_path / "m")
    (tmp_path / "m" / "notes.txt").write_text("mine")
    with pytest.raises(StoreExistsError, match="holds notes.txt, which fxdask did not write"):
        fit(store=tmp_path / "m", overwrite=True, n_nodes=60)
    assert (tmp_path / "m" / "notes.txt").read_text() == "mine"
    assert fxdask.load(tmp_path / "m").n_nodes == 50


def test_overwriting_through_a_link_keeps_the_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for nodes in (50, 60, 70):
        fit(store=tmp_path / "link", overwrite=True, n_nodes=nodes)
        assert fxdask.load(tmp_path / "real").n_nodes == nodes
    assert (tmp_path / "link").is_symlink()


def test_an_overwrite_interrupted_between_its_renames_is_completed_by_the_same_call(original, tmp_path, monkeypatch):
    store = shutil.copytree(original, tmp_path / "m")
    rename = Path.rename
    calls = []

    def interrupt_second(self, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return rename(self, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", interrupt_second)
        with pytest.raises(KeyboardInterrupt):
            fit(store=store, overwrite=True, n_nodes=60)
    assert not store.exists()
    again = fit(store=store, overwrite=True, n_nodes=60)
    assert again.fit_info_ == {}, "the model must be loaded, not fitted again"
    assert fxdask.load(store).n_nodes == 60


def test_a_failed_scoring_leaves_nothing(tmp_path):
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(20, 4))
    chunk = tmp_path / "X.zarr" / "c" / "1" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-9])
    clf = fit()
    with pytest.raises(Exception):  # noqa: B017, PT011 - any error of Zarr about a corrupt chunk
        fxdask.batch_score(clf, tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert [path.name for path in tmp_path.iterdir()] == ["X.zarr"]


@pytest.mark.parametrize("name", ["selected/weights", "labels", "priors", "statistics"])
def test_the_error_about_a_flipped_bit_names_its_array(original, name, tmp_path):
    store = shutil.copytree(original, tmp_path / "m")
    chunk = next(path for path in (store / name).rglob("*") if path.is_file() and path.name != "zarr.json")
    content = bytearray(chunk.read_bytes())
    content[3] ^= 4
    chunk.write_bytes(content)
    with pytest.raises(StoreFormatError, match=f"damaged: {name} cannot be read .*checksum") as error:
        fxdask.load(store)
    one_sentence(error)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("selection", {"shape": [1, 3]}),
        ("priors", {"shape": [10**15]}),
        ("selected/weights", {"data_type": "int32"}),
        ("statistics", {"shape": [4, 2, 49]}),
    ],
)
def test_arrays_that_contradict_the_header_are_refused(original, name, change, tmp_path):
    store = shutil.copytree(original, tmp_path / "m")
    metadata = store / name / "zarr.json"
    metadata.write_text(json.dumps({**json.loads(metadata.read_text()), **change}))
    with pytest.raises(StoreFormatError, match=f"damaged: {name}/zarr.json "):
        fxdask.load(store)
    rewrite_manifest(store)
    with pytest.raises(StoreFormatError, match=f"damaged: {name} ") as error:
        fxdask.load(store)
    one_sentence(error)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("sizes", None),
        ("identity", "x"),
        ("classes", []),
        ("nodes_per_block", 0),
        ("source_counts", None),
        ("largest", "x"),
    ],
)
def test_headers_with_wrong_types_are_refused(original, key, value, tmp_path):
    store = shutil.copytree(original, tmp_path / "m")
    opened = zarr.open_group(store)
    opened.attrs["fxdask"] = {**opened.attrs["fxdask"], key: value}
    with pytest.raises(StoreFormatError, match="damaged") as error:
        fxdask.load(store)
    one_sentence(error)


@pytest.mark.full
def test_two_fits_do_not_work_on_one_store(tmp_path):
    """A second process is refused while the first one runs; a third one resumes after the first was killed."""
    code = (
        "import sys, numpy as np, fxdask\n"
        "X = np.random.default_rng(0).standard_normal((20_000, 300), dtype=np.float32)\n"
        "clf = fxdask.FisherNetworkClassifier(int(sys.argv[2]), 3, store=sys.argv[1], nodes_per_block=64)\n"
        "clf.fit(X, np.arange(20_000) % 2)\n"
    )
    store = tmp_path / "model.zarr"

    def start(n_nodes):
        return subprocess.Popen([sys.executable, "-c", code, store, str(n_nodes)], stderr=subprocess.PIPE, text=True)

    first = start(200_000)
    deadline = time.monotonic() + 60
    while not (store / "blocks_done" / "c").exists():
        assert time.monotonic() < deadline
        time.sleep(0.05)
    second = start(200_000)
    assert "another call is working on" in second.communicate(timeout=60)[1]
    assert second.returncode == 1
    first.kill()
    first.wait()
    third = start(200_000)
    done = len(list((store / "blocks_done" / "c").iterdir()))
    deadline = time.monotonic() + 60
    while len(list((store / "blocks_done" / "c").iterdir())) <= done:
        assert time.monotonic() < deadline
        assert third.poll() is None
        time.sleep(0.05)
    third.kill()
    third.communicate()
