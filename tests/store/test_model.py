"""Model stores: what is in them, resuming, loading elsewhere."""

import os
import shutil
import subprocess
import sys
import time

import dask
import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from small import chunk_files
from zarr.codecs import Crc32cCodec

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreWriteError
from fxdask.store.layout import BLOCK_ARRAYS, MANIFEST, MODEL_ARRAYS
from fxdask.store.model import ModelStore
from fxdask.tasks import columns


@pytest.fixture
def fitted(two_blobs, tmp_path):
    X, y = two_blobs
    clf = FisherNetworkClassifier(
        100, 3, store=tmp_path / "model.zarr", nodes_per_block=30, keep_projections="all", keep_weights=True
    )
    return clf.fit(X, y)


def test_what_is_in_a_store(fitted, two_blobs, tmp_path):
    X, y = two_blobs
    group = zarr.open_group(tmp_path / "model.zarr", mode="r")
    specs = {spec.name: spec for spec in (*BLOCK_ARRAYS, *MODEL_ARRAYS, MANIFEST)}
    names = {name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)}
    assert names == set(specs) - {"samples", "probes", "scale"}
    for name in names:
        array = group[name]
        assert array.metadata.dimension_names == specs[name].dimensions
        assert any(isinstance(codec, Crc32cCodec) for codec in array.metadata.codecs), name
        assert array.nchunks_initialized == array.nchunks
    assert np.array_equal(group["weights"][:], fitted.weights(np.arange(100)))
    assert group["weights"].chunks == (30, 6)
    assert group["projections"].chunks == (30, 240)
    order = np.argsort(y, kind="stable")
    exact = group["weights"][:].astype(float) @ (X - X.mean(axis=0)).T.astype(float)
    ascending = np.concatenate([np.sort(exact[:, y == k], axis=1) for k in (0, 1)], axis=1)
    np.testing.assert_allclose(group["projections"][:], ascending, atol=1e-5)
    where = [[oracles.interquartile_mean(row[y[order] == k]) for row in group["projections"][:]] for k in (0, 1)]
    location, spread, source, divergence = group["statistics"][:]
    assert group["statistics"].attrs["quantities"] == ["location", "spread", "spread_source", "divergence"]
    assert np.array_equal(location, where)
    wide = [[oracles.mad(row[y[order] == k]) for row in group["projections"][:]] for k in (0, 1)]
    np.testing.assert_allclose(spread, wide, rtol=1e-14)
    assert not source.any()
    assert np.array_equal(divergence, fitted.divergences_)
    assert np.array_equal(group["selection"][:], fitted.selected_nodes_)
    header = group.attrs["fxdask"]
    assert header["classes"] == {"dtype": "<i8", "values": [0, 1]}
    assert header["identity"]["n_nodes"] == 100
    assert header["finished"]


def test_selected_projections_are_one_chunk_a_node(fitted, tmp_path):
    array = zarr.open_group(tmp_path / "model.zarr", mode="r")["selected/projections"]
    assert array.chunks == (1, 240)
    assert array.shape == (len(fitted.network_.nodes), 240)


@pytest.mark.parametrize("how", [None, "sample", "feature"])
@pytest.mark.parametrize("labels", [["ash", "birch"], [True, False], [-1.0, 2.0], [3, 7]])
def test_load(two_blobs, tmp_path, how, labels):
    X, y = two_blobs
    y = np.array(labels)[y]
    made = FisherNetworkClassifier(80, 3, store=tmp_path / "m.zarr", normalize=how, priors=[1, 3], combine="log").fit(
        X, y
    )
    shutil.move(tmp_path / "m.zarr", tmp_path / "elsewhere.zarr")
    back = fxdask.load(tmp_path / "elsewhere.zarr")
    assert back.store_ == str(tmp_path / "elsewhere.zarr")
    assert np.array_equal(back.classes_, made.classes_)
    assert back.classes_.dtype == made.classes_.dtype
    for name in ("selected_nodes_", "divergences_", "priors_", "sample_counts_"):
        assert np.array_equal(getattr(back, name), getattr(made, name)), name
    assert back.spread_sources_ == made.spread_sources_
    assert np.array_equal(back.predict_log_proba(X), made.predict_log_proba(X))
    assert np.array_equal(back.predict(X), made.predict(X))


def test_names_of_features_survive(two_blobs, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = two_blobs
    frame = pandas.DataFrame(X, columns=list("uvwxyz"))
    FisherNetworkClassifier(50, 3, store=tmp_path / "m.zarr").fit(frame, y)
    back = fxdask.load(tmp_path / "m.zarr")
    assert back.feature_names_in_.tolist() == list("uvwxyz")
    with pytest.raises(ValueError, match="feature names"):
        back.predict(frame[list("zyxwvu")])


def test_an_equal_call_on_a_finished_store_computes_nothing(fitted, two_blobs, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("a block was computed")

    monkeypatch.setattr(columns, "weight_block", refuse)
    again = FisherNetworkClassifier(
        100, 3, store=tmp_path / "model.zarr", keep_projections="all", keep_weights=True
    ).fit(*two_blobs)
    assert np.array_equal(again.divergences_, fitted.divergences_)


@pytest.mark.parametrize("lazy", [False, True])
def test_an_interrupted_fit_resumes(two_blobs, tmp_path, monkeypatch, lazy):
    X, y = two_blobs
    data = da.from_array(X, chunks=(50, 6)) if lazy else X
    whole = FisherNetworkClassifier(100, 3, store=tmp_path / "whole.zarr", nodes_per_block=10).fit(data, y)

    compute_weights = columns.weight_block
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return compute_weights(*arguments)

    monkeypatch.setattr(columns, "weight_block", interrupted)
    broken = FisherNetworkClassifier(100, 3, store=tmp_path / "broken.zarr", nodes_per_block=10)
    with dask.config.set(scheduler="synchronous"), pytest.raises(KeyboardInterrupt):
        broken.fit(data, y)
    with pytest.raises(fxdask.errors.StoreUnfinishedError):
        fxdask.load(tmp_path / "broken.zarr")

    monkeypatch.undo()
    # Another block size: the stored one is adopted.
    resumed = FisherNetworkClassifier(100, 3, store=tmp_path / "broken.zarr", nodes_per_block=33).fit(data, y)
    assert resumed.fit_info_["n_blocks"] == 10
    assert resumed.fit_info_["n_blocks_resumed"] == 4
    assert sum(resumed.fit_info_["blocks_by_process"].values()) == 6
    assert np.array_equal(resumed.divergences_, whole.divergences_)
    assert chunk_files(tmp_path / "broken.zarr") == chunk_files(tmp_path / "whole.zarr")


def test_a_killed_fit_resumes(tmp_path):
    """A process of its own gets a real SIGKILL once some of its blocks are marked."""
    program = (
        "import sys, numpy as np, fxdask\n"
        "X = np.load(sys.argv[1])\n"
        "clf = fxdask.FisherNetworkClassifier(20_000, 5, store=sys.argv[2], nodes_per_block=200)\n"
        "clf.fit(X, np.arange(len(X)) % 2)\n"
    )
    X = np.random.default_rng(0).standard_normal((2_000, 50)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    store = tmp_path / "killed.zarr"
    process = subprocess.Popen([sys.executable, "-c", program, tmp_path / "X.npy", store])
    while not sum(".partial" not in file.name for file in (store / "blocks_done" / "c").glob("*")) >= 10:
        assert process.poll() is None, "it ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    parameters = {"n_nodes": 20_000, "n_selected": 5, "nodes_per_block": 200}
    resumed = FisherNetworkClassifier(**parameters, store=store).fit(X, np.arange(2_000) % 2)
    assert 10 <= resumed.fit_info_["n_blocks_resumed"] < 100
    FisherNetworkClassifier(**parameters, store=tmp_path / "whole.zarr").fit(X, np.arange(2_000) % 2)
    finished = {name: content for name, content in chunk_files(store).items() if ".partial" not in name}
    assert finished == chunk_files(tmp_path / "whole.zarr")


def test_a_seed_left_to_chance_is_taken_up_again(two_blobs, tmp_path):
    X, y = two_blobs
    clf = FisherNetworkClassifier(50, 3, store=tmp_path / "m.zarr", random_state=None)
    first = clf.fit(X, y).seed_
    assert clf.fit(X, y).seed_ == first
    assert clf.set_params(overwrite=True).fit(X, y).seed_ != first


def test_a_disk_that_fills_up_is_told_and_the_same_call_resumes(two_blobs, small_disk, monkeypatch):
    """A real full disk: another file takes it up while blocks are being written."""
    X, y = two_blobs
    compute_weights, calls = columns.weight_block, []

    def while_another_file_grows(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))
        return compute_weights(*arguments)

    clf = FisherNetworkClassifier(1_000, 3, store=small_disk / "m.zarr", nodes_per_block=100)
    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(columns, "weight_block", while_another_file_grows)
        with pytest.raises(StoreWriteError, match="No space left on device; free some room and make the same call"):
            clf.fit(X, y)
    (small_disk / "other").unlink()
    clf.fit(X, y)
    assert clf.fit_info_["n_blocks_resumed"] == 3
    assert np.array_equal(clf.divergences_, FisherNetworkClassifier(1_000, 3).fit(X, y).divergences_)


def test_bytes_are_the_same_for_one_and_two_blas_threads(two_blobs, tmp_path):
    """Each in a process of its own, because the number is read when NumPy loads."""
    program = (
        "import sys, numpy as np, fxdask\n"
        "rng = np.random.default_rng(0)\n"
        "X = rng.standard_normal((900, 50)).astype(np.float32)\n"
        "fxdask.FisherNetworkClassifier(1000, 5, store=sys.argv[1], keep_projections='all', nodes_per_block=300)"
        ".fit(X, np.arange(900) % 3)\n"
    )
    stores = {}
    for threads in ("1", "2"):
        path = tmp_path / f"threads-{threads}.zarr"
        subprocess.run(
            [sys.executable, "-c", program, str(path)],
            check=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": threads},
        )
        stores[threads] = chunk_files(path)
    assert len(stores["1"]) > 20
    assert stores["1"] == stores["2"]


def test_a_block_is_marked_after_its_data(fitted, tmp_path):
    """Without the mark a block counts as missing, whatever data is there."""
    store = ModelStore.open(str(tmp_path / "model.zarr"), "r+")
    assert store.blocks_done().tolist() == [True] * 4
    (tmp_path / "model.zarr" / "blocks_done" / "c" / "2").unlink()
    assert store.blocks_done().tolist() == [True, True, False, True]


# Responses of every node


def test_responses_by_the_definition(fitted, two_blobs):
    X, y = two_blobs
    point = X[3] * 1.2
    got = fitted.responses(point)
    assert got.shape == (2, 100)
    W = fitted.weights(np.arange(100)).astype(float)
    z = W @ (X - X.mean(axis=0)).T.astype(float)
    places = W @ (point - X.mean(axis=0)).astype(float)
    for k in (0, 1):
        for i in range(0, 100, 9):
            own = z[i, y == k]
            width = oracles.silverman(own, oracles.mad(own))
            assert np.log(got[k, i]) == pytest.approx(oracles.log_density(places[i], own, width), abs=1e-4)


def test_responses_from_the_store_and_from_the_samples_are_the_same(fitted, two_blobs, tmp_path):
    X, y = two_blobs
    points = X[:5]
    stored = fitted.responses(points)
    assert stored.shape == (5, 2, 100)
    for data in (X, da.from_array(X, chunks=(50, 3))):
        assert np.array_equal(FisherNetworkClassifier(100, 3).fit(X, y).responses(points, X_train=data), stored)
    assert np.array_equal(fxdask.load(tmp_path / "model.zarr").responses(points), stored)
    assert np.array_equal(stored[2], fitted.responses(points[2]))


def test_selected_nodes_respond_as_they_decide(fitted, two_blobs):
    """The sum of the selected responses is the score that labels a sample."""
    X, _ = two_blobs
    responses = fitted.responses(X[:4])
    chosen = np.stack([responses[:, k, fitted.selected_nodes_[k]].sum(axis=1) for k in (0, 1)], axis=1)
    scores = np.log(chosen * fitted.priors_)
    np.testing.assert_allclose(fitted.decision_function(X[:4]), scores[:, 1] - scores[:, 0], atol=1e-5)
