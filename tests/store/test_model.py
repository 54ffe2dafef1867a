"""Model stores: content, resuming, loading, and responses from the store."""

import shutil
import time

import dask
import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from processes import PythonProcess
from small import chunk_files
from zarr.codecs import Crc32cCodec

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreWriteError
from fxdask.kernels import projections
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.store import arrays
from fxdask.store.layout import BLOCK_ARRAYS, MANIFEST, MODEL_ARRAYS
from fxdask.store.model import ModelStore


@pytest.fixture
def fitted(two_blobs, tmp_path):
    X, y = two_blobs
    clf = FisherNetworkClassifier(
        100,
        3,
        combine="sum",
        store=tmp_path / "model.zarr",
        nodes_per_block=30,
        keep_projections="all",
        keep_weights=True,
    )
    return clf.fit(X, y)


def test_the_content_of_a_finished_store(fitted, two_blobs, tmp_path):
    X, y = two_blobs
    group = zarr.open_group(tmp_path / "model.zarr", mode="r")
    specs = {spec.name: spec for spec in (*BLOCK_ARRAYS, *MODEL_ARRAYS, MANIFEST)}
    names = {name for name, member in group.members(max_depth=None) if isinstance(member, zarr.Array)}
    of_joint = {"overlaps", *(f"selected/{name}" for name in COMBINATIONS["joint"].stored_arrays)}
    of_tables = {name for name in specs if name.startswith("tables/")}
    assert names == set(specs) - {"samples", "codes", "probes", "scale"} - of_joint - of_tables
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
    projections = group["projections"][:]
    expected_location = [[oracles.interquartile_mean(row[y[order] == k]) for row in projections] for k in (0, 1)]
    location, spread, source, divergence = group["statistics"][:]
    assert group["statistics"].attrs["quantities"] == ["location", "spread", "spread_source", "divergence"]
    assert np.array_equal(location, expected_location)
    expected_spread = [[oracles.mad(row[y[order] == k]) for row in projections] for k in (0, 1)]
    np.testing.assert_allclose(spread, expected_spread, rtol=1e-14)
    assert not source.any()
    assert np.array_equal(divergence, fitted.divergences_)
    assert np.array_equal(group["selection"][:], fitted.selected_nodes_)
    header = group.attrs["fxdask"]
    assert header["classes"] == {"dtype": "<i8", "values": [0, 1]}
    assert header["identity"]["n_nodes"] == 100
    assert header["finished"]


def test_selected_projections_have_chunks_of_whole_nodes(fitted, tmp_path, monkeypatch):
    n_nodes = len(fitted.network_.nodes)
    array = zarr.open_group(tmp_path / "model.zarr", mode="r")["selected/projections"]
    assert array.shape == array.chunks == (n_nodes, 240)
    monkeypatch.setattr(arrays, "BYTES_PER_CHUNK", 3 * 4 * 240)
    store = ModelStore.open(str(tmp_path / "model.zarr"))
    assert arrays._chunk_length(store.specs["selected/projections"], array[...]) == 3
    monkeypatch.setattr(arrays, "BYTES_PER_CHUNK", 1)
    assert arrays._chunk_length(store.specs["selected/projections"], array[...]) == 1


@pytest.mark.parametrize("normalize", [None, "sample", "feature"])
@pytest.mark.parametrize("labels", [["ash", "birch"], [True, False], [-1.0, 2.0], [3, 7]])
def test_a_loaded_model_equals_the_fitted_one(two_blobs, tmp_path, normalize, labels):
    X, y = two_blobs
    y = np.array(labels)[y]
    parameters = {"normalize": normalize, "priors": [1, 3], "combine": "log"}
    fitted = FisherNetworkClassifier(80, 3, store=tmp_path / "m.zarr", **parameters).fit(X, y)
    shutil.move(tmp_path / "m.zarr", tmp_path / "elsewhere.zarr")
    loaded = fxdask.load(tmp_path / "elsewhere.zarr")
    assert loaded.store_ == str(tmp_path / "elsewhere.zarr")
    assert np.array_equal(loaded.classes_, fitted.classes_)
    assert loaded.classes_.dtype == fitted.classes_.dtype
    for name in ("selected_nodes_", "divergences_", "priors_", "sample_counts_"):
        assert np.array_equal(getattr(loaded, name), getattr(fitted, name)), name
    assert loaded.spread_sources_ == fitted.spread_sources_
    assert np.array_equal(loaded.predict_log_proba(X), fitted.predict_log_proba(X))
    assert np.array_equal(loaded.predict(X), fitted.predict(X))


def test_feature_names_are_stored(two_blobs, tmp_path):
    pandas = pytest.importorskip("pandas")
    X, y = two_blobs
    frame = pandas.DataFrame(X, columns=list("uvwxyz"))
    FisherNetworkClassifier(50, 3, store=tmp_path / "m.zarr").fit(frame, y)
    loaded = fxdask.load(tmp_path / "m.zarr")
    assert loaded.feature_names_in_.tolist() == list("uvwxyz")
    with pytest.raises(ValueError, match="feature names"):
        loaded.predict(frame[list("zyxwvu")])


def test_an_equal_call_on_a_finished_store_computes_nothing(fitted, two_blobs, tmp_path, monkeypatch):
    def refuse(*_):
        raise AssertionError("a block was computed")

    monkeypatch.setattr(projections, "weight_block", refuse)
    again = FisherNetworkClassifier(
        100, 3, combine="sum", store=tmp_path / "model.zarr", keep_projections="all", keep_weights=True
    ).fit(*two_blobs)
    assert np.array_equal(again.divergences_, fitted.divergences_)


@pytest.mark.parametrize("lazy", [False, True])
def test_an_interrupted_fit_resumes(two_blobs, tmp_path, monkeypatch, lazy):
    X, y = two_blobs
    data = da.from_array(X, chunks=(50, 6)) if lazy else X
    whole = FisherNetworkClassifier(100, 3, store=tmp_path / "whole.zarr", nodes_per_block=10).fit(data, y)

    compute_weights = projections.weight_block
    calls = []

    def interrupted(*arguments):
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        return compute_weights(*arguments)

    monkeypatch.setattr(projections, "weight_block", interrupted)
    broken = FisherNetworkClassifier(100, 3, store=tmp_path / "broken.zarr", nodes_per_block=10)
    with dask.config.set(scheduler="synchronous"), pytest.raises(KeyboardInterrupt):
        broken.fit(data, y)
    with pytest.raises(fxdask.errors.StoreUnfinishedError):
        fxdask.load(tmp_path / "broken.zarr")

    monkeypatch.undo()
    # The stored block size is used instead of the new one.
    resumed = FisherNetworkClassifier(100, 3, store=tmp_path / "broken.zarr", nodes_per_block=33).fit(data, y)
    assert resumed.fit_info_["n_blocks"] == 10
    assert resumed.fit_info_["n_blocks_resumed"] == 4
    assert sum(resumed.fit_info_["blocks_by_process"].values()) == 6
    assert np.array_equal(resumed.divergences_, whole.divergences_)
    assert chunk_files(tmp_path / "broken.zarr") == chunk_files(tmp_path / "whole.zarr")


def test_a_killed_fit_resumes(tmp_path):
    """A separate process gets SIGKILL after it has marked some of its blocks; it waits in every block."""
    program = (
        "import sys, time, numpy as np, fxdask\n"
        "from fxdask.kernels import projections\n"
        "drawn = projections.weight_block\n"
        "projections.weight_block = lambda *arguments: (time.sleep(0.05), drawn(*arguments))[1]\n"
        "X = np.load(sys.argv[1])\n"
        "clf = fxdask.FisherNetworkClassifier(3_000, 5, store=sys.argv[2], nodes_per_block=50)\n"
        "clf.fit(X, np.arange(len(X)) % 2)\n"
    )
    X = np.random.default_rng(0).standard_normal((500, 50)).astype(np.float32)
    np.save(tmp_path / "X.npy", X)
    store = tmp_path / "killed.zarr"
    process = PythonProcess("-c", program, tmp_path / "X.npy", store)
    while not sum(".partial" not in file.name for file in (store / "blocks_done" / "c").glob("*")) >= 10:
        assert process.poll() is None, "the process ended before it could be killed"
        time.sleep(0.01)
    process.kill()
    process.wait()
    parameters = {"n_nodes": 3_000, "n_selected": 5, "nodes_per_block": 50}
    resumed = FisherNetworkClassifier(**parameters, store=store).fit(X, np.arange(500) % 2)
    assert 10 <= resumed.fit_info_["n_blocks_resumed"] < 60
    FisherNetworkClassifier(**parameters, store=tmp_path / "whole.zarr").fit(X, np.arange(500) % 2)
    finished = {name: content for name, content in chunk_files(store).items() if ".partial" not in name}
    assert finished == chunk_files(tmp_path / "whole.zarr")


def test_a_random_seed_is_kept_by_an_equal_call(two_blobs, tmp_path):
    X, y = two_blobs
    clf = FisherNetworkClassifier(50, 3, store=tmp_path / "m.zarr", random_state=None)
    first = clf.fit(X, y).seed_
    assert clf.fit(X, y).seed_ == first
    assert clf.set_params(overwrite=True).fit(X, y).seed_ != first


def test_a_full_disk_is_reported_and_the_same_call_resumes(two_blobs, small_disk, monkeypatch):
    """Another file fills a real disk while blocks are being written."""
    X, y = two_blobs
    compute_weights, calls = projections.weight_block, []

    def while_another_file_grows(*arguments):
        calls.append(arguments)
        if len(calls) == 4:
            (small_disk / "other").write_bytes(bytes(shutil.disk_usage(small_disk).free - 8192))
        return compute_weights(*arguments)

    clf = FisherNetworkClassifier(1_000, 3, store=small_disk / "m.zarr", nodes_per_block=100)
    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(projections, "weight_block", while_another_file_grows)
        with pytest.raises(StoreWriteError, match="No space left on device; free some disk space and run"):
            clf.fit(X, y)
    (small_disk / "other").unlink()
    clf.fit(X, y)
    assert clf.fit_info_["n_blocks_resumed"] == 3
    assert np.array_equal(clf.divergences_, FisherNetworkClassifier(1_000, 3).fit(X, y).divergences_)


def test_a_block_without_its_mark_counts_as_missing(fitted, tmp_path):
    store = ModelStore.open(str(tmp_path / "model.zarr"), "r+")
    assert store.blocks_done().tolist() == [True] * 4
    (tmp_path / "model.zarr" / "blocks_done" / "c" / "2").unlink()
    assert store.blocks_done().tolist() == [True, True, False, True]


# Responses of every node


def test_responses_follow_the_definition(fitted, two_blobs):
    X, y = two_blobs
    point = X[3] * 1.2
    responses = fitted.responses(point)
    assert responses.shape == (2, 100)
    W = fitted.weights(np.arange(100)).astype(float)
    z = W @ (X - X.mean(axis=0)).T.astype(float)
    projected = W @ (point - X.mean(axis=0)).astype(float)
    for k in (0, 1):
        for i in range(0, 100, 9):
            own = z[i, y == k]
            width = oracles.silverman(own, oracles.mad(own))
            assert np.log(responses[k, i]) == pytest.approx(oracles.log_density(projected[i], own, width), abs=1e-4)


def test_responses_from_the_store_and_from_the_samples_are_the_same(fitted, two_blobs, tmp_path):
    X, y = two_blobs
    points = X[:5]
    stored = fitted.responses(points)
    assert stored.shape == (5, 2, 100)
    for data in (X, da.from_array(X, chunks=(50, 3))):
        assert np.array_equal(FisherNetworkClassifier(100, 3).fit(X, y).responses(points, X_train=data), stored)
    assert np.array_equal(fxdask.load(tmp_path / "model.zarr").responses(points), stored)
    assert np.array_equal(stored[2], fitted.responses(points[2]))


def test_scores_are_sums_of_the_selected_responses(fitted, two_blobs):
    X, _ = two_blobs
    responses = fitted.responses(X[:4])
    chosen = np.stack([responses[:, k, fitted.selected_nodes_[k]].sum(axis=1) for k in (0, 1)], axis=1)
    scores = np.log(chosen * fitted.priors_)
    np.testing.assert_allclose(fitted.decision_function(X[:4]), scores[:, 1] - scores[:, 0], atol=1e-5)
