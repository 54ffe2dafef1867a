"""What is at a store's path while a call works on it, when the call replaces it, and after it failed."""

import errno
import shutil
import subprocess
import sys
import time
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from small import X, fit, with_value

import fxdask
from fxdask.errors import InvalidInputError
from fxdask.store import model


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
