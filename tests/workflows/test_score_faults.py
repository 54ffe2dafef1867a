"""Scorings that are killed, interrupted or damaged, and input that cannot be scored."""

import hashlib
import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import count

import dask.array as da
import numpy as np
import pytest
import zarr
from processes import PythonProcess
from scoring_runs import PROGRAM, begun, kill_while_scoring, scored

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreExistsError, StoreFormatError
from fxdask.execution import score as score_graphs
from fxdask.planning import score_plan
from fxdask.store.paths import is_partial
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import ZarrAddress, fingerprint
from fxdask.store.verify import verify_store


@pytest.fixture(scope="module")
def killed_once(wide_once, tmp_path_factory):
    """The files of a killed scoring in the folder ``work``, and a copy of them in ``kept``."""
    folder = tmp_path_factory.mktemp("killed")
    whole, model, X, y = wide_once
    shutil.copytree(whole, folder / "work")
    kill_while_scoring(folder / "work")
    shutil.copytree(folder / "work", folder / "kept")
    return folder, model, X, y


@pytest.fixture
def killed(killed_once, monkeypatch):
    """The files of a killed scoring, restored for each test, as another test may have changed them."""
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    folder, *rest = killed_once
    shutil.rmtree(folder / "work")
    return shutil.copytree(folder / "kept", folder / "work"), *rest


def test_a_killed_scoring_is_resumed(killed):
    tmp_path, model, X, y = killed
    assert not (tmp_path / "out.zarr").exists()
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr", y)
    assert 400 <= result.n_resumed < 4_000
    assert sum(result.chunks_by_process.values()) == 40 - result.n_resumed // 100
    assert result.accuracy == model.score(X, y)
    assert begun(tmp_path) == []
    fxdask.batch_score(model, X, tmp_path / "whole.zarr")
    for one, other in zip(scored(tmp_path / "out.zarr"), scored(tmp_path / "whole.zarr"), strict=True):
        assert np.array_equal(one, other)


def test_a_changed_test_set_is_scored_from_the_start(killed):
    tmp_path, model, X, _ = killed
    zarr.open_array(tmp_path / "X.zarr", mode="r+")[:100] = X[:100] + 5
    result = fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert result.n_resumed == 0
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(zarr.open_array(tmp_path / "X.zarr")[:]))


def test_a_chunk_lost_from_unfinished_scores_is_scored_again(killed):
    tmp_path, model, X, _ = killed
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

    monkeypatch.setattr(score_graphs, "score", interrupted)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(KeyboardInterrupt):
        fxdask.batch_score(model, X, tmp_path / "out.zarr")
    assert sorted(tmp_path.iterdir()) == before


def damage(folder, kind):
    chunks = {
        name: next(file for file in (folder / name / "c").rglob("*") if file.is_file() and not is_partial(file.name))
        for name in ("labels", "scores")
    }
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
def test_damaged_unfinished_scores_are_scored_again(killed, kind):
    tmp_path, model, X, _ = killed
    (folder,) = begun(tmp_path)
    damage(folder, kind)
    fxdask.batch_score(tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X))


def interrupt_after(n_chunks, call):
    """Call a scoring, and interrupt it after it has written some chunks."""
    write, counter = ScoreStore.write_chunk, count(1)

    def stopped(*arguments):
        write(*arguments)
        if next(counter) == n_chunks:  # one step, so that exactly one of several threads gets this number
            raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ScoreStore, "write_chunk", stopped)
        with pytest.raises(KeyboardInterrupt):
            call()


def swap(folder):
    """Exchange the files of two chunks."""
    one, other = sorted(file for file in folder.iterdir() if file.suffix == "")[:2]
    content = one.read_bytes(), other.read_bytes()
    one.write_bytes(content[1])
    other.write_bytes(content[0])


@pytest.mark.parametrize("fault", ["none", "lost", "damaged", "swapped"])
def test_an_interrupted_scoring_with_likelihoods_is_resumed(wide, fault, tmp_path):
    model, X, _ = wide
    call = partial(fxdask.batch_score, model, tmp_path / "X.zarr", tmp_path / "out.zarr", likelihood=True)
    interrupt_after(10, call)
    (folder,) = begun(tmp_path)
    chunks = folder / "log_likelihood" / "c"
    written = [file for file in chunks.iterdir() if file.suffix == ""]
    if fault == "lost":
        written[0].unlink()
    elif fault == "damaged":
        *start, last = written[0].read_bytes()
        written[0].write_bytes(bytes([*start, last ^ 1]))
    elif fault == "swapped":
        swap(chunks)
    spoilt = {"none": 0, "lost": 1, "damaged": 1, "swapped": 2}[fault]
    result = call()
    assert result.n_resumed == 100 * (len(written) - spoilt)
    assert begun(tmp_path) == []
    assert not verify_store(tmp_path / "out.zarr").damaged
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert np.array_equal(group["log_likelihood"][:], model.score_samples(X))
    assert np.array_equal(group["labels"][:], model.predict(X))


def test_likelihoods_are_another_job_than_scores_alone(wide, tmp_path):
    model, X, _ = wide
    call = partial(fxdask.batch_score, model, tmp_path / "X.zarr", tmp_path / "out.zarr")
    interrupt_after(10, call)
    assert call(likelihood=True).n_resumed == 0
    assert np.array_equal(zarr.open_group(tmp_path / "out.zarr")["log_likelihood"][:], model.score_samples(X))


def test_unfinished_scores_of_an_earlier_version_are_resumed(wide, tmp_path):
    """Their header does not say that they have no likelihoods, and their digest does not depend on it."""
    model, X, _ = wide
    call = partial(fxdask.batch_score, model, tmp_path / "X.zarr", tmp_path / "out.zarr")
    interrupt_after(10, call)
    (folder,) = begun(tmp_path)
    group = zarr.open_group(folder)
    header = group.attrs["fxdask"]
    facts = {
        "network": model._fitted_model().scorer.digest(),
        "classes": [0, 1],
        "samples": fingerprint(ZarrAddress(str(tmp_path / "X.zarr"))),
        "n_samples": 4_000,
    }
    assert header["job"] == hashlib.sha256(json.dumps(facts).encode()).hexdigest()
    group.attrs["fxdask"] = {name: value for name, value in header.items() if name != "likelihood"}
    assert call().n_resumed >= 1_000
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X))


def test_a_folder_created_during_scoring_is_not_replaced(wide, tmp_path, monkeypatch):
    model, X, _ = wide
    score = score_graphs.score

    def scored_late(*arguments):
        (tmp_path / "out.zarr").mkdir()
        (tmp_path / "out.zarr" / "precious.txt").write_text("mine")
        return score(*arguments)

    monkeypatch.setattr(score_graphs, "score", scored_late)
    with pytest.raises(
        StoreExistsError,
        match=r"while this call was running: the new store of kind 'scores' is complete in .*\.next-",
    ):
        fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "out.zarr")
    assert (tmp_path / "out.zarr" / "precious.txt").read_text() == "mine"
    (kept,) = begun(tmp_path)
    assert np.array_equal(scored(kept)[0], model.predict(X))


def test_a_second_call_into_the_same_store_is_refused(wide, tmp_path):
    """The first call finishes undisturbed."""
    model, X, _ = wide
    arguments = [tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr"]
    process = PythonProcess("-c", PROGRAM, *arguments)
    try:
        while not begun(tmp_path):
            assert process.poll() is None
            time.sleep(0.005)
        with pytest.raises(StoreExistsError, match="another call is working on .*out.zarr .*; wait until it ends"):
            fxdask.batch_score(*arguments)
        assert process.wait(60) == 0
    finally:
        process.kill()
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["X.zarr", "model.zarr", "out.zarr"]


def test_a_dask_array_is_scored_from_the_start(wide, tmp_path):
    """The name of a Dask array does not change with its files, so it cannot show that X is the same."""
    model, X, _ = wide
    lazy = da.from_zarr(tmp_path / "X.zarr")
    interrupt_after(10, partial(fxdask.batch_score, model, lazy, tmp_path / "out.zarr"))
    assert begun(tmp_path) == []
    zarr.open_array(tmp_path / "X.zarr", mode="r+")[:] = X[::-1]
    result = fxdask.batch_score(model, da.from_zarr(tmp_path / "X.zarr"), tmp_path / "out.zarr")
    assert result.n_resumed == 0
    assert np.array_equal(scored(tmp_path / "out.zarr")[0], model.predict(X[::-1]))


def test_the_error_names_a_damaged_chunk_of_samples(wide, tmp_path):
    model, _, _ = wide
    chunk = tmp_path / "X.zarr" / "c" / "3" / "0"
    chunk.write_bytes(chunk.read_bytes()[:-20])
    with pytest.raises(StoreFormatError, match="X.zarr is damaged: samples 300 to 400 cannot be read"):
        fxdask.batch_score(model, tmp_path / "X.zarr", tmp_path / "out.zarr")


def test_a_dask_array_with_fewer_rows_than_declared_is_refused(wide):
    model, X, _ = wide
    lazy = da.from_array(X, chunks=(1_000, 30))
    short = lazy.map_blocks(lambda block: block[:-1], dtype="f4", chunks=lazy.chunks)
    with pytest.raises(ValueError, match="declares float32 of shape .* but a chunk has"):
        model.predict(short).compute()


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (np.arange(4_000), "3,998 labels that the model does not know"),
        (np.full(4_000, np.nan), "contains NaN or infinity"),
        (np.full(4_000, "wide"), "so no label can match"),
    ],
)
def test_invalid_true_labels_are_refused(wide, labels, message, tmp_path):
    model, X, _ = wide
    with pytest.raises(ValueError, match=message):
        fxdask.batch_score(model, X, tmp_path / "out.zarr", labels)
    assert not (tmp_path / "out.zarr").exists()


@pytest.mark.parametrize("kind", ["uint64", "object"])
def test_true_labels_of_another_type_are_compared_exactly(wide, kind, tmp_path):
    _, X, y = wide
    large = y.astype(np.int64) + 2**53
    model = FisherNetworkClassifier(100, 3).fit(X, large)
    result = fxdask.batch_score(model, X, tmp_path / "out.zarr", large.astype(kind))
    assert result.accuracy == np.mean(model.predict(X) == large) < 1


def test_predictions_from_several_threads_are_correct(wide):
    """Each call has its own thread pool, so Dask still works during and after the calls."""
    model, X, _ = wide
    lengths = [4_000, 10, 900] * 4
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda length: model.predict(X[:length]), lengths))
    whole = model.predict(X)
    assert all(np.array_equal(labels, whole[:length]) for labels, length in zip(found, lengths, strict=True))
    assert da.ones(10, chunks=5).sum().compute() == 10


def test_changing_the_density_keeps_the_tables(wide):
    model, _, _ = wide
    other = model.set_params(density="exact")._fitted_model().scorer
    assert other.density == "exact"
    again, node = other.with_density("table"), other.used_nodes[0][0]
    assert again.table(0, node) is model.set_params(density="table")._fitted_model().scorer.table(0, node)
