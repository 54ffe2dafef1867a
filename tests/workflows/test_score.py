"""Batch scoring: stores, layouts of X, densities and memory limits."""

import copy
import logging
import shutil
from functools import partial
from itertools import islice

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import logsumexp
from scoring_runs import scored
from sklearn.metrics import confusion_matrix

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import FxdaskError, MemoryPlanError
from fxdask.kernels.scratch import Scratch
from fxdask.planning import score_plan
from fxdask.planning.machine import Resources
from fxdask.planning.score_plan import SamplesToScore, plan_scores
from fxdask.store.sources import NpyAddress, ZarrAddress, read_pieces
from fxdask.store.verify import verify_store
from fxdask.tasks import score as score_tasks
from fxdask.tasks.telemetry import resident_bytes


@pytest.fixture(scope="module")
def model_once(three_blobs, tmp_path_factory):
    return FisherNetworkClassifier(100, 3, store=tmp_path_factory.mktemp("once") / "model.zarr").fit(*three_blobs)


@pytest.fixture
def model(model_once, tmp_path):
    """A model, and a copy of its store in ``tmp_path``."""
    shutil.copytree(model_once.store_, tmp_path / "model.zarr")
    return copy.copy(model_once)


def test_labels_and_scores_in_the_store_equal_the_predictions(model, three_blobs, tmp_path):
    X, y = three_blobs
    zarr.create_array(tmp_path / "test.zarr", data=X, chunks=(37, 2))
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "test.zarr", tmp_path / "scored.zarr", y)
    scored = zarr.open_group(tmp_path / "scored.zarr", mode="r")
    assert scored["labels"][:].tolist() == model.predict(X).tolist()
    assert np.array_equal(scored["scores"][:], model.decision_function(X))
    assert result.n_samples == 300
    assert result.accuracy == model.score(X, y)
    assert result.samples_per_second > 0
    header = scored.attrs["fxdask"]
    assert header["finished"]
    assert header["classes"] == ["ash", "birch", "cedar"]
    assert header["accuracy"] == result.accuracy


@pytest.mark.parametrize("kind", ["numpy", "dask", "npy", "zarr"])
def test_wide_samples_are_scored_in_several_reads(kind, tmp_path, monkeypatch):
    """Each read writes one chunk of the result."""
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 13 * 2**20)
    rng = np.random.default_rng(0)
    X = rng.integers(0, 200, (4_000, 2_000), dtype=np.uint8)
    X[::2, :500] //= 2
    y = np.arange(4_000) % 2
    model = FisherNetworkClassifier(200, 3).fit(X[:200], y[:200])
    np.save(tmp_path / "X.npy", X)
    data = {
        "numpy": X,
        "dask": da.from_array(X, chunks=(999, 700)),
        "npy": tmp_path / "X.npy",
        "zarr": zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(700, 700)),
    }[kind]
    result = fxdask.batch_score(model, data, tmp_path / "out.zarr", y)
    scored = zarr.open_group(tmp_path / "out.zarr", mode="r")
    # Arrays with chunks are read by whole chunks, the others by ranges of the planned size.
    rows = {"dask": 999, "zarr": 1_400}.get(kind, 1_536)
    assert scored["labels"].chunks == scored["scores"].chunks[:1] == (rows,)
    assert scored["labels"].nchunks_initialized == -(-4_000 // rows)
    assert np.array_equal(scored["labels"][:], model.predict(X))
    assert result.accuracy == model.score(X, y)


def test_an_empty_test_set_gives_an_empty_store(model, tmp_path):
    for data in (np.empty((0, 5)), da.zeros((0, 5))):
        result = fxdask.batch_score(model, data, tmp_path / "empty.zarr", [], overwrite=True, likelihood=True)
        assert result.n_samples == 0
        assert result.accuracy is None
        group = zarr.open_group(tmp_path / "empty.zarr", mode="r")
        assert group["labels"].shape == (0,)
        assert group["scores"].shape == (0, 3)
        assert group["log_likelihood"].shape == (0,)
        assert group.attrs["fxdask"]["finished"]


def test_true_labels_of_another_length_are_refused(model, three_blobs, tmp_path):
    with pytest.raises(ValueError, match="y has 3 labels but X has 300 samples"):
        fxdask.batch_score(model, three_blobs[0], tmp_path / "out.zarr", ["ash"] * 3)
    assert not (tmp_path / "out.zarr").exists()


def test_unfinished_scores_are_replaced(model, three_blobs, tmp_path):
    X, _ = three_blobs
    fxdask.batch_score(model, X, tmp_path / "out.zarr")
    group = zarr.open_group(tmp_path / "out.zarr")
    group.attrs["fxdask"] = {**group.attrs["fxdask"], "finished": False}
    fxdask.batch_score(model, X[:10], tmp_path / "out.zarr")
    assert zarr.open_group(tmp_path / "out.zarr")["labels"].shape == (10,)


def test_accuracy_and_confusion_matrix_count_unknown_labels(wide, tmp_path):
    model, X, y = wide
    y = np.where(np.arange(4_000) < 7, 9, y)  # 9 is a label that the model does not know
    result = fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "out.zarr", y)
    predicted = model.predict(X)
    assert result.labels.tolist() == [0, 1, 9]
    assert np.array_equal(result.confusion, confusion_matrix(y, predicted, labels=[0, 1, 9]))
    assert result.accuracy == np.mean(predicted == y)
    header = zarr.open_group(tmp_path / "out.zarr").attrs["fxdask"]
    assert header["confusion"] == result.confusion.tolist()
    assert header["labels"] == [0, 1, 9]
    assert sum(result.chunks_by_process.values()) == 40
    assert sum(result.bytes_read_by_process.values()) == X.nbytes
    assert min(result.peak_bytes_by_process.values()) > 50e6


def test_both_densities_give_the_same_labels(wide, tmp_path, caplog):
    model, X, _ = wide
    looked_up = fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "table.zarr")
    exact = fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "exact.zarr", density="exact")
    labels, scores = scored(tmp_path / "table.zarr")
    exact_labels, exact_scores = scored(tmp_path / "exact.zarr")
    assert np.array_equal(labels, exact_labels)
    np.testing.assert_allclose(scores, exact_scores, rtol=1e-13, atol=4e-7)
    assert looked_up.exact_share < 0.01
    assert exact.exact_share == 1
    assert looked_up.summed_share < 0.01
    with caplog.at_level(logging.INFO, logger="fxdask"):
        assert np.array_equal(model.predict(X), labels)
        assert np.array_equal(model.set_params(density="exact").predict(X), labels)
    assert "4000 of 4000 samples were decided by exact sums" in caplog.text
    with pytest.raises(ValueError, match="density='guess' is not known"):
        fxdask.batch_score(model, X, tmp_path / "none.zarr", density="guess")
    assert not (tmp_path / "none.zarr").exists()


@pytest.mark.parametrize("combine", ["sum", "joint"])
@pytest.mark.parametrize("kind", ["path", "numpy", "dask"])
def test_likelihoods_in_the_store_equal_score_samples(wide, kind, combine, tmp_path):
    _, X, y = wide
    model = FisherNetworkClassifier(100, 4, combine=combine).fit(X[:600], y[:600])
    data = {"path": tmp_path / "X.zarr", "numpy": X, "dask": da.from_array(X, chunks=(900, 30))}[kind]
    fxdask.batch_score(model, data, tmp_path / "out.zarr", likelihood=True)
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert group["log_likelihood"].dtype == np.float64
    assert group["log_likelihood"].chunks == group["labels"].chunks
    assert np.array_equal(group["log_likelihood"][:], model.score_samples(X))
    np.testing.assert_allclose(group["log_likelihood"][:], logsumexp(group["scores"][:], axis=1), rtol=1e-13)
    assert group.attrs["fxdask"]["likelihood"] is True
    assert not verify_store(tmp_path / "out.zarr").damaged


def test_likelihoods_are_written_only_if_asked_for(model, three_blobs, tmp_path):
    fxdask.batch_score(model, three_blobs[0], tmp_path / "out.zarr")
    assert "log_likelihood" not in zarr.open_group(tmp_path / "out.zarr", mode="r")
    with pytest.raises(ValueError, match="likelihood must be True or False, not 'yes'"):
        fxdask.batch_score(model, three_blobs[0], tmp_path / "none.zarr", likelihood="yes")
    assert not (tmp_path / "none.zarr").exists()


@pytest.mark.parametrize(
    "chunks",
    [((1, 2, 997, 3_000), (7, 23)), ((0, 2_000, 0, 2_000), (30,)), ((700,) * 5 + (500,), (10, 20))],
)
def test_dask_chunks_of_any_shape_give_the_same_labels(wide, chunks, tmp_path):
    model, X, y = wide
    lazy = da.from_array(X, chunks=chunks)
    result = fxdask.batch_score(model, lazy, tmp_path / "out.zarr", y)
    assert result.n_samples == 4_000
    labels, scores = scored(tmp_path / "out.zarr")
    assert np.array_equal(labels, model.predict(X))
    assert np.array_equal(labels, model.predict(lazy).compute())
    assert np.array_equal(scores[:, 1] - scores[:, 0], model.decision_function(lazy).compute())
    assert model.predict(lazy).chunks == lazy.chunks[:1]


def test_a_lazy_prediction_holds_the_model_once(wide):
    """The size of the graph depends on the chunks of X, not on the size of the model."""
    model, X, y = wide
    large = FisherNetworkClassifier(400, 100).fit(X[:600], y[:600])
    for clf in (model, large):
        few, many = (dict(clf.predict(da.from_array(X, chunks=(n, 15))).__dask_graph__()) for n in (2_000, 100))
        assert sum(clf._fitted_model().scorer is getattr(value, "value", value) for value in many.values()) == 1
        assert len(many) < 20 * len(few)
    graphs = [len(clf.predict(da.from_array(X, chunks=(100, 15))).__dask_graph__()) for clf in (model, large)]
    assert graphs[0] == graphs[1]


@pytest.mark.parametrize(
    "layout",
    [
        {"chunks": (100, 30)},
        {"chunks": (100, 30), "compressors": None},
        {"chunks": (64, 7)},
        {"chunks": (25, 30), "shards": (100, 30)},
        {"chunks": (100, 30), "zarr_format": 2},
        {"chunks": (5_000, 40)},
    ],
    ids=str,
)
@pytest.mark.parametrize("dtype", ["<f4", pytest.param(">f8", marks=pytest.mark.full), "u1"])
def test_every_zarr_layout_gives_the_same_labels(wide, layout, dtype, tmp_path):
    check_layout(wide, layout, dtype, tmp_path)


def test_numbers_in_the_other_byte_order_are_scored(wide, tmp_path):
    check_layout(wide, {"chunks": (64, 7)}, ">f8", tmp_path)


def check_layout(wide, layout, dtype, tmp_path):
    """Labels of a Zarr array of this layout are those of the same array in memory."""
    model, X, _ = wide
    data = (X[:1_000] * 20 + 100).astype(dtype)
    zarr.create_array(tmp_path / "laid.zarr", data=data, **layout)
    fxdask.batch_score(model, tmp_path / "laid.zarr", tmp_path / "out.zarr")
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(data))


def test_chunks_that_were_never_written_read_as_the_fill_value(wide, tmp_path):
    model, X, _ = wide
    array = zarr.create_array(tmp_path / "holes.zarr", shape=X.shape, dtype="f4", chunks=(100, 30), fill_value=2)
    array[300:900] = X[300:900]
    fxdask.batch_score(model, tmp_path / "holes.zarr", tmp_path / "out.zarr")
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(array[:]))


@given(
    rows=st.integers(1, 60),
    chunk=st.integers(1, 70),
    cut=st.tuples(st.integers(0, 60), st.integers(0, 60)),
    column_chunk=st.integers(1, 5),
    compressors=st.sampled_from(["auto", None]),
    dtype=st.sampled_from(["f8", "f4", ">f4", "u1"]),
    per_piece=st.integers(1, 70),
)
def test_pieces_concatenate_to_the_requested_rows(
    rows, chunk, cut, column_chunk, compressors, dtype, per_piece, tmp_path_factory
):
    folder = tmp_path_factory.mktemp("pieces")
    X = np.arange(rows * 4).reshape(rows, 4).astype(dtype)
    zarr.create_array(folder / "X.zarr", data=X, chunks=(chunk, column_chunk), compressors=compressors)
    np.save(folder / "X.npy", X)
    start, stop = sorted(min(edge, rows) for edge in cut)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fxdask.store.sources.rows_per_piece", lambda *_: per_piece)
        for address in (ZarrAddress(str(folder / "X.zarr")), NpyAddress(str(folder / "X.npy"))):
            pieces = [piece.copy() for piece in read_pieces(address, start, stop, partial(Scratch(), "raw"))]
            assert np.array_equal(np.concatenate([np.empty((0, 4)), *pieces]), X[start:stop])
    if column_chunk >= 4 and stop > start and compressors:
        pieces = list(read_pieces(ZarrAddress(str(folder / "X.zarr")), start, stop))
        assert len(pieces) == len({row // chunk for row in range(start, stop)}), "one piece per chunk, without a copy"


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"0"])
def test_a_raw_chunk_of_another_length_is_refused(wide, change, tmp_path):
    model, X, _ = wide
    zarr.create_array(tmp_path / "raw.zarr", data=X, chunks=(100, 30), compressors=None)
    chunk = tmp_path / "raw.zarr" / "c" / "3" / "0"
    chunk.write_bytes(change(chunk.read_bytes()))
    with pytest.raises(FxdaskError, match=r"chunk c/3/0 has 1[12],\d+ bytes instead of 12,000"):
        fxdask.batch_score(model, tmp_path / "raw.zarr", tmp_path / "out.zarr")


def test_samples_that_became_fewer_are_refused(wide, tmp_path, monkeypatch):
    model, X, _ = wide
    np.save(tmp_path / "X.npy", X)
    original = score_tasks.read_pieces
    monkeypatch.setattr(score_tasks, "read_pieces", lambda *words: islice(original(*words), 1))
    monkeypatch.setattr("fxdask.store.sources.rows_per_piece", lambda *_: 100)
    with pytest.raises(FxdaskError, match=r"samples \d+ to \d+ are now \d+ rows; make the same call again"):
        fxdask.batch_score(model, tmp_path / "X.npy", tmp_path / "out.zarr")


# Memory


def test_a_smaller_memory_limit_gives_smaller_ranges():
    test_set = SamplesToScore(n_samples=10**6, n_features=784, copies=2)
    plans = [
        plan_scores(test_set, 20, 10, 2, Resources(limit=mib * 2**20, baseline=0, threads=2))
        for mib in (4_000, 300, 100)
    ]
    rows = [plan.rows_per_task for plan in plans]
    assert rows[0] > rows[1] > rows[2]
    assert all(plan.task_bytes <= plan.bytes_allowed for plan in plans)


def test_a_chunk_that_cannot_fit_is_refused_with_both_numbers(wide, tmp_path):
    model, X, _ = wide
    zarr.create_array(tmp_path / "one.zarr", data=np.tile(X, (50, 1)), chunks=(200_000, 30))
    limit = resident_bytes() / 0.6 + 80e6
    with pytest.raises(
        MemoryPlanError, match=r"one chunk of X \(200,000 samples\) needs .* but a task may use .*smaller"
    ):
        fxdask.batch_score(model, tmp_path / "one.zarr", tmp_path / "out.zarr", memory_limit=limit)
    assert not (tmp_path / "out.zarr").exists()
    fxdask.batch_score(model, tmp_path / "one.zarr", tmp_path / "out.zarr", memory_limit=resident_bytes() / 0.6 + 4e9)


@pytest.mark.parametrize("limit", ["much", -3, True])
def test_invalid_memory_limits_are_refused(wide, limit, tmp_path):
    model, X, _ = wide
    with pytest.raises(ValueError, match="memory_limit must be a number of bytes"):
        fxdask.batch_score(model, X, tmp_path / "out.zarr", memory_limit=limit)


def test_a_dask_chunk_that_cannot_fit_is_refused(wide, tmp_path):
    model, _, _ = wide
    limit = resident_bytes() / 0.6 + 200e6
    for rows in ((3_000_000,), (1_000, 2_999_000)):
        lazy = da.zeros((3_000_000, 30), chunks=(rows, (30,)), dtype=np.float32)
        with pytest.raises(MemoryPlanError, match="chunk of X .*needs .* but a task may use"):
            fxdask.batch_score(model, lazy, tmp_path / "out.zarr", memory_limit=limit)
