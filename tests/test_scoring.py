import logging
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import confusion_matrix

import fxdask
from fxdask import FisherNetworkClassifier, score_plan
from fxdask.errors import MemoryPlanError, StoreExistsError, StoreFormatError
from fxdask.plan import Resources
from fxdask.score_plan import TestSet, plan_scores
from fxdask.store.samples import ZarrAddress, read_pieces
from fxdask.store.scores import ScoreStore


@pytest.fixture
def model(three_blobs, tmp_path):
    return FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(*three_blobs)


def test_store_to_store(model, three_blobs, tmp_path):
    X, y = three_blobs
    zarr.create_array(tmp_path / "test.zarr", data=X, chunks=(37, 2))
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "test.zarr", tmp_path / "scored.zarr", y)
    scored = zarr.open_group(tmp_path / "scored.zarr", mode="r")
    assert scored["labels"][:].tolist() == model.predict(X).tolist()
    scores = scored["scores"][:]
    assert np.array_equal(scores - np.logaddexp.reduce(scores, axis=1)[:, None], model.predict_log_proba(X))
    assert result.n_samples == 300
    assert result.accuracy == model.score(X, y)
    assert result.samples_per_second > 0
    header = scored.attrs["fxdask"]
    assert header["finished"]
    assert header["classes"] == ["ash", "birch", "cedar"]
    assert header["accuracy"] == result.accuracy


@pytest.mark.parametrize("kind", ["numpy", "dask", "npy", "zarr"])
def test_more_than_one_read(kind, tmp_path, monkeypatch):
    """Samples so wide that the reads, so the chunks of the result, are several."""
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
    # Whole chunks of what has chunks, whole reads of what has none.
    rows = {"dask": 999, "zarr": 1_400}.get(kind, 1_536)
    assert scored["labels"].chunks == scored["scores"].chunks[:1] == (rows,)
    assert scored["labels"].nchunks_initialized == -(-4_000 // rows)
    assert np.array_equal(scored["labels"][:], model.predict(X))
    assert result.accuracy == model.score(X, y)


def test_an_empty_test_set(model, tmp_path):
    for data in (np.empty((0, 5)), da.zeros((0, 5))):
        result = fxdask.batch_score(model, data, tmp_path / "empty.zarr", [], overwrite=True)
        assert result.n_samples == 0
        assert result.accuracy is None
        group = zarr.open_group(tmp_path / "empty.zarr", mode="r")
        assert group["labels"].shape == (0,)
        assert group["scores"].shape == (0, 3)
        assert group.attrs["fxdask"]["finished"]


def test_labels_of_another_length(model, three_blobs, tmp_path):
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


@pytest.fixture
def wide(tmp_path, monkeypatch):
    """A model, and a test set of 40 chunks that are scored one by one."""
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4_000, 30)).astype(np.float32)
    X[::2] *= 1.3
    y = np.arange(4_000) % 2
    model = FisherNetworkClassifier(200, 5, store=tmp_path / "model.zarr").fit(X[:600], y[:600])
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(100, 30))
    return model, X, y


def scored(folder):
    group = zarr.open_group(folder, mode="r")
    return group["labels"][:], group["scores"][:]


def test_accuracy_and_confusion(wide, tmp_path):
    model, X, y = wide
    y = np.where(np.arange(4_000) < 7, 9, y)  # a label the model does not know
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
    assert "4000 of 4000 samples were decided by the exact sums" in caplog.text
    with pytest.raises(ValueError, match="density='guess' is not known"):
        fxdask.batch_score(model, X, tmp_path / "none.zarr", density="guess")
    assert not (tmp_path / "none.zarr").exists()


PROGRAM = """
import sys, time
import fxdask
from fxdask import score_plan, score_tasks
score_plan.BYTES_PER_TASK = 1
read = score_tasks.read_pieces
def slow(*arguments):
    time.sleep(0.05)
    return read(*arguments)
score_tasks.read_pieces = slow
fxdask.batch_score(*sys.argv[1:])
"""


def begun(tmp_path):
    return list(tmp_path.glob(".out.zarr.next-*"))


def kill_while_scoring(tmp_path):
    """A process of its own gets a real SIGKILL once some of its chunks are there."""
    arguments = [tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, arguments)])
    try:
        for _ in range(3_000):
            (folder,) = begun(tmp_path) or [None]
            if folder and len([file for file in (folder / "labels" / "c").glob("*") if file.suffix == ""]) >= 5:
                return
            assert process.poll() is None, "it ended before it could be killed"
            time.sleep(0.01)
        pytest.fail("nothing was scored")
    finally:
        process.kill()
        process.wait()


def test_a_killed_scoring_is_taken_up(wide, tmp_path):
    model, X, y = wide
    kill_while_scoring(tmp_path)
    assert not (tmp_path / "out.zarr").exists()
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr", y)
    assert 400 <= result.n_resumed < 4_000
    assert sum(result.chunks_by_process.values()) == 40 - result.n_resumed // 100
    assert result.accuracy == model.score(X, y)
    assert begun(tmp_path) == []
    fxdask.batch_score(model, X, tmp_path / "whole.zarr")
    for one, other in zip(scored(tmp_path / "out.zarr"), scored(tmp_path / "whole.zarr"), strict=True):
        assert np.array_equal(one, other)


def test_a_changed_test_set_is_scored_from_the_start(wide, tmp_path):
    model, X, _ = wide
    kill_while_scoring(tmp_path)
    zarr.open_array(tmp_path / "X.zarr", mode="r+")[:100] = X[:100] + 5
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert result.n_resumed == 0
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(zarr.open_array(tmp_path / "X.zarr")[:]))


def test_a_chunk_lost_from_what_was_begun_is_scored_again(wide, tmp_path):
    model, X, _ = wide
    kill_while_scoring(tmp_path)
    (folder,) = begun(tmp_path)
    lost = next(file for file in (folder / "labels" / "c").glob("*") if file.suffix == "")
    lost.unlink()
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert result.n_resumed > 0
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X))


def test_an_interrupted_scoring_of_an_array_in_memory_leaves_nothing(wide, tmp_path, monkeypatch):
    model, X, _ = wide

    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(fxdask.scoring.score_graph, "score", interrupted)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        fxdask.batch_score(model, X, tmp_path / "out.zarr")
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "chunks",
    [((1, 2, 997, 3_000), (7, 23)), ((0, 2_000, 0, 2_000), (30,)), ((700,) * 5 + (500,), (10, 20))],
)
def test_dask_chunks_of_any_shape(wide, chunks, tmp_path):
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
    """The graph grows with the chunks of X by as much for a large model as for a small one."""
    model, X, y = wide
    large = FisherNetworkClassifier(400, 100).fit(X[:600], y[:600])
    for clf in (model, large):
        few, many = (dict(clf.predict(da.from_array(X, chunks=(n, 15))).__dask_graph__()) for n in (2_000, 100))
        assert sum(clf.network_ is getattr(value, "value", value) for value in many.values()) == 1
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
@pytest.mark.parametrize("dtype", ["<f4", ">f8", "u1"])
def test_every_layout_of_zarr_arrays(wide, layout, dtype, tmp_path):
    model, X, _ = wide
    data = (X * 20 + 100).astype(dtype)
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
)
def test_pieces_make_up_the_rows(rows, chunk, cut, column_chunk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("pieces")
    X = np.arange(rows * 4.0).reshape(rows, 4)
    zarr.create_array(folder / "X.zarr", data=X, chunks=(chunk, column_chunk))
    start, stop = sorted(min(edge, rows) for edge in cut)
    pieces = read_pieces(ZarrAddress(str(folder / "X.zarr")), start, stop)
    assert np.array_equal(np.concatenate([np.empty((0, 4)), *pieces]), X[start:stop])
    if column_chunk >= 4 and stop > start:
        assert len(pieces) == len({row // chunk for row in range(start, stop)}), "one for each chunk, without a copy"


# Memory


def test_a_small_memory_limit_makes_small_ranges():
    test_set = TestSet(10**6, 784, copies=2)
    plans = [plan_scores(test_set, 20, 10, 2, Resources(mib * 2**20, 0, 2)) for mib in (4_000, 300, 100)]
    rows = [plan.rows_per_task for plan in plans]
    assert rows[0] > rows[1] > rows[2]
    assert all(plan.task_bytes <= plan.bytes_allowed for plan in plans)


def test_a_chunk_that_cannot_fit_is_refused_with_both_numbers(wide, tmp_path):
    model, X, _ = wide
    zarr.create_array(tmp_path / "one.zarr", data=np.tile(X, (50, 1)), chunks=(200_000, 30))
    limit = fxdask.resources.resident_bytes() / 0.6 + 80e6
    with pytest.raises(
        MemoryPlanError, match=r"one chunk of X \(200,000 samples\) needs .* but a task may use .*smaller"
    ):
        fxdask.batch_score(model, tmp_path / "one.zarr", tmp_path / "out.zarr", memory_limit=limit)
    assert not (tmp_path / "out.zarr").exists()
    fxdask.batch_score(model, tmp_path / "one.zarr", tmp_path / "out.zarr", memory_limit="4 GiB")


@pytest.mark.parametrize("limit", ["much", -3, True])
def test_a_memory_limit_that_is_none(wide, limit, tmp_path):
    model, X, _ = wide
    with pytest.raises(ValueError, match="memory_limit must be a number of bytes"):
        fxdask.batch_score(model, X, tmp_path / "out.zarr", memory_limit=limit)


def test_a_dask_chunk_that_cannot_fit_is_refused_too(wide, tmp_path):
    model, _, _ = wide
    limit = fxdask.resources.resident_bytes() / 0.6 + 200e6
    for rows in ((3_000_000,), (1_000, 2_999_000)):
        lazy = da.zeros((3_000_000, 30), chunks=(rows, (30,)), dtype=np.float32)
        with pytest.raises(MemoryPlanError, match="chunk of X .*needs .* but a task may use"):
            fxdask.batch_score(model, lazy, tmp_path / "out.zarr", memory_limit=limit)


# What goes wrong


def damage(folder, kind):
    chunks = {name: next(f for f in (folder / name / "c").rglob("*") if f.is_file()) for name in ("labels", "scores")}
    if kind in chunks:
        content = bytearray(chunks[kind].read_bytes())
        content[0] ^= 1
        chunks[kind].write_bytes(content)
    elif kind == "empty":
        chunks["labels"].write_bytes(b"")
    elif kind == "no header":
        (folder / "zarr.json").unlink()
    elif kind == "no array":
        (folder / "labels" / "zarr.json").unlink()
    else:
        (folder / "zarr.json").write_text("{" if kind == "bad header" else "")


@pytest.mark.parametrize("kind", ["labels", "scores", "empty", "no header", "bad header", "no array"])
def test_what_was_begun_and_then_damaged_is_scored_again(wide, kind, tmp_path):
    model, X, _ = wide
    kill_while_scoring(tmp_path)
    (folder,) = begun(tmp_path)
    damage(folder, kind)
    fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X))


def test_what_came_meanwhile_is_not_replaced(wide, tmp_path, monkeypatch):
    model, X, _ = wide
    score = fxdask.scoring.score_graph.score

    def scored_late(*arguments):
        (tmp_path / "out.zarr").mkdir()
        (tmp_path / "out.zarr" / "precious.txt").write_text("mine")
        return score(*arguments)

    monkeypatch.setattr(fxdask.scoring.score_graph, "score", scored_late)
    with pytest.raises(StoreExistsError, match=r"it came while this was scored, and the scores are in .*\.next-"):
        fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert (tmp_path / "out.zarr" / "precious.txt").read_text() == "mine"
    (kept,) = begun(tmp_path)
    assert np.array_equal(scored(kept)[0], model.predict(X))


def test_two_at_a_time_into_one_place(wide, tmp_path):
    """The second is refused while the first is at work; the first is not disturbed."""
    model, X, _ = wide
    arguments = [tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr"]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, *map(str, arguments)])
    try:
        while not begun(tmp_path):
            assert process.poll() is None
            time.sleep(0.005)
        with pytest.raises(StoreExistsError, match="another call is working on .*out.zarr; wait for its end"):
            fxdask.batch_score(*arguments)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.zarr", "model.zarr", "out.zarr"]


def test_a_dask_array_is_scored_from_the_start(wide, tmp_path, monkeypatch):
    """Its name stays when the file behind it changes."""
    model, X, _ = wide
    write, written = ScoreStore.write, []

    def stopped(*arguments):
        written.append(write(*arguments))
        if len(written) == 10:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(ScoreStore, "write", stopped)
        with pytest.raises(KeyboardInterrupt):
            fxdask.batch_score(model, da.from_zarr(tmp_path / "X.zarr"), tmp_path / "out.zarr")
    assert begun(tmp_path) == []
    zarr.open_array(tmp_path / "X.zarr", mode="r+")[:] = X[::-1]
    result = fxdask.batch_score(model, da.from_zarr(tmp_path / "X.zarr"), tmp_path / "out.zarr")
    assert result.n_resumed == 0
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X[::-1]))


def test_a_damaged_chunk_of_samples_is_named(wide, tmp_path):
    model, _, _ = wide
    chunk = tmp_path / "X.zarr" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-20])
    with pytest.raises(StoreFormatError, match="X.zarr is damaged: samples 300 to 400 cannot be read"):
        fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "out.zarr")


def test_a_dask_array_that_gives_less_than_it_promised(wide):
    model, X, _ = wide
    lazy = da.from_array(X, chunks=(1_000, 30))
    short = lazy.map_blocks(lambda block: block[:-1], dtype="f4", chunks=lazy.chunks)
    with pytest.raises(ValueError, match="promised float32 of shape .* but gave"):
        model.predict(short).compute()


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.arange(4_000), "3,998 labels that the model does not know"),
        (np.full(4_000, np.nan), "contains NaN or infinity"),
        (np.full(4_000, "wide"), "none could match"),
    ],
)
def test_true_labels_that_cannot_be(wide, labels, says, tmp_path):
    model, X, _ = wide
    with pytest.raises(ValueError, match=says):
        fxdask.batch_score(model, X, tmp_path / "out.zarr", labels)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("kind", ["uint64", "object"])
def test_true_labels_of_another_type_are_compared_exactly(wide, kind, tmp_path):
    _, X, y = wide
    large = y.astype(np.int64) + 2**53
    model = FisherNetworkClassifier(100, 3).fit(X, large)
    result = fxdask.batch_score(model, X, tmp_path / "out.zarr", large.astype(kind))
    assert result.accuracy == np.mean(model.predict(X) == large) < 1


def test_predictions_from_several_threads(wide):
    """One call's thread pool is nobody else's: Dask goes on working in the meantime and afterwards."""
    model, X, _ = wide
    lengths = [4_000, 10, 900] * 4
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda length: model.predict(X[:length]), lengths))
    whole = model.predict(X)
    assert all(np.array_equal(labels, whole[:length]) for labels, length in zip(found, lengths, strict=True))
    assert da.ones(10, chunks=5).sum().compute() == 10


def test_a_network_shares_its_tables(wide):
    model, _, _ = wide
    other = model.set_params(density="exact").network_
    assert other.density == "exact"
    again = other.with_density("table")
    assert again.table(0, again.used(0)[0]) is model.set_params(density="table").network_.table(0, again.used(0)[0])
