"""Scores as Parquet: the same values as in a Zarr group, beside the ids; resumed, and never over other files."""

import json
import os
from itertools import pairwise
from pathlib import Path

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from small import one_sentence

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import (
    InvalidInputError,
    MemoryPlanError,
    StoreExistsError,
    StoreFormatError,
    StoreUnfinishedError,
    StoreWriteError,
)
from fxdask.planning import score_plan
from fxdask.planning.machine import Resources
from fxdask.planning.score_plan import SamplesToScore, plan_scores
from fxdask.sizes import MIB
from fxdask.store import score_table
from fxdask.store.score_table import ScoreTable
from fxdask.store.verify import verify_store
from fxdask.tasks import score as score_tasks

N = 4_000
X = np.random.default_rng(1).standard_normal((N, 4))
Y = np.arange(N) % 2
X[Y == 1] *= 2
NAMES = list("abcd")
TABLE = pd.DataFrame(X, columns=NAMES).assign(
    id=[f"row {i}" for i in range(N)],
    day=pd.date_range("2020", periods=N, freq="h"),
    group=pd.Categorical(np.array(["x", "y"])[Y]),
    y=Y,
)
IDS = ["id", "day", "group"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    store = tmp_path_factory.mktemp("model") / "model.zarr"
    return FisherNetworkClassifier(60, 3, store=store).fit(TABLE[:200][NAMES], Y[:200])


@pytest.fixture(scope="module")
def expected(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("expected") / "scored.zarr"
    fxdask.batch_score(model, TABLE[NAMES], out, likelihood=True)
    group = zarr.open_group(out, mode="r")
    return {name: group[name][:] for name in ("labels", "scores", "log_likelihood")}


@pytest.fixture
def small_tasks(monkeypatch):
    """Tasks of 768 samples: six of them."""
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)


@pytest.fixture
def labelled_rows(tmp_path):
    path = tmp_path / "test.parquet"
    TABLE.to_parquet(path, row_group_size=768)
    return path


def check(out, expected, ids=IDS):
    found = pd.read_parquet(out)
    assert np.array_equal(found["label"], expected["labels"])
    assert np.array_equal(found[["score_0", "score_1"]], expected["scores"])
    for name in ids:
        assert found[name].tolist() == TABLE[name].tolist()
    return found


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def test_ids_labels_and_scores_are_written_in_the_order_of_the_samples(
    model, labelled_rows, tmp_path, expected, small_tasks
):
    out = tmp_path / "scored.parquet"
    result = fxdask.batch_score(model.store_, labelled_rows, out, "y", id_columns=IDS, likelihood=True)
    found = check(out, expected)
    assert list(found.columns) == [*IDS, "label", "score_0", "score_1", "log_likelihood"]
    assert np.array_equal(found["log_likelihood"], expected["log_likelihood"])
    assert result.accuracy == np.mean(expected["labels"] == Y)
    assert result.n_samples == N
    assert names_in(out) == ["_SUCCESS", "_fxdask.json", *(f"scores-0000{i}.parquet" for i in range(6))]
    assert names_in(tmp_path) == ["scored.parquet", "test.parquet"]
    facts = json.loads((out / "_SUCCESS").read_text())
    assert (facts["n_samples"], facts["classes"], facts["model"]) == (N, [0, 1], model.store_)
    assert facts["network"] == model._fitted_model().scorer.digest()
    assert len(dd.read_parquet(out)) == len(pl.read_parquet(out / "*.parquet")) == N


@settings(max_examples=5, deadline=None)
@given(st.integers(300, 5_000), st.lists(st.integers(1, N - 1), max_size=3))
def test_row_groups_and_files_never_change_the_scores(model, expected, tmp_path_factory, group, cuts):
    folder = tmp_path_factory.mktemp("layout")
    (folder / "t").mkdir()
    bounds = [0, *sorted(cuts), N]
    for index, (start, stop) in enumerate(pairwise(bounds)):
        TABLE[start:stop].to_parquet(folder / "t" / f"{index}.parquet", row_group_size=group)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(score_plan, "BYTES_PER_TASK", 1)
        fxdask.batch_score(model, folder / "t", folder / "out.parquet", id_columns=["id"])
    check(folder / "out.parquet", expected, ["id"])


def test_every_input_can_be_scored_into_parquet(model, tmp_path, expected):
    np.save(tmp_path / "X.npy", X)
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(900, 4))
    frames = {"pandas": TABLE[[*NAMES, *IDS]], "polars": pl.from_pandas(TABLE[[*NAMES, *IDS]])}
    for name, frame in frames.items():
        fxdask.batch_score(model, frame, tmp_path / f"{name}.parquet", id_columns=IDS)
        check(tmp_path / f"{name}.parquet", expected)
    others = {
        "npy": tmp_path / "X.npy",
        "zarr": tmp_path / "X.zarr",
        "dask": dd.from_pandas(TABLE[NAMES], npartitions=3),
    }
    for name, samples in others.items():
        fxdask.batch_score(model, samples, tmp_path / f"{name}.parquet")
        check(tmp_path / f"{name}.parquet", expected, [])


def test_a_test_set_without_rows_gives_a_table_without_rows(model, labelled_rows, tmp_path):
    TABLE[:0].to_parquet(tmp_path / "none.parquet")
    fxdask.batch_score(model, tmp_path / "none.parquet", tmp_path / "out.parquet", id_columns=["day"])
    assert pq.read_table(tmp_path / "out.parquet").column_names == ["day", "label", "score_0", "score_1"]


def test_words_as_classes(tmp_path):
    words = np.array(["ash", "birch"])[Y]
    model = FisherNetworkClassifier(60, 3).fit(X[:200], words[:200])
    fxdask.batch_score(model, X, tmp_path / "out.parquet")
    found = pd.read_parquet(tmp_path / "out.parquet")
    assert list(found.columns) == ["label", "score_ash", "score_birch"]
    assert found["label"].tolist() == model.predict(X).tolist()


class InterruptedForTestError(Exception):
    """Stands for a process that ends while it scores."""


def interrupt_after(n_files, monkeypatch):
    written = []
    original = score_table.ScoreTable.write_chunk

    def write(self, index, *rest):
        if len(written) == n_files:
            raise InterruptedForTestError
        written.append(index)
        original(self, index, *rest)

    monkeypatch.setattr(score_table.ScoreTable, "write_chunk", write)


def test_an_interrupted_scoring_is_resumed(model, labelled_rows, tmp_path, expected, small_tasks, monkeypatch):
    out = tmp_path / "scored.parquet"
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        with pytest.raises(InterruptedForTestError):
            fxdask.batch_score(model, labelled_rows, out, id_columns=IDS)
    assert not out.exists()
    (hidden,) = tmp_path.glob(".scored.parquet.next-*")
    parts = sorted(hidden.glob("scores-*"))
    assert len(parts) == 3
    parts[0].write_bytes(parts[0].read_bytes()[:100])  # a damaged file is computed again
    partial = hidden / f".scores-00005.parquet.{'a' * 32}.partial"
    partial.write_bytes(b"of a killed writer")

    os.utime(partial, (1, 1))
    result = fxdask.batch_score(model, labelled_rows, out, Y, id_columns=IDS)
    assert result.n_resumed in (2 * 768, 768 + N % 768)
    assert sum(result.chunks_by_process.values()) == 4
    assert result.accuracy == np.mean(expected["labels"] == Y)
    check(out, expected)
    assert len(names_in(out)) == 8
    assert names_in(tmp_path) == ["scored.parquet", "test.parquet"]


def test_other_ids_or_samples_are_another_job(model, labelled_rows, tmp_path, expected, small_tasks, monkeypatch):
    with monkeypatch.context() as patch:
        interrupt_after(3, patch)
        with pytest.raises(InterruptedForTestError):
            fxdask.batch_score(model, labelled_rows, tmp_path / "scored.parquet", id_columns=["id"])
    assert fxdask.batch_score(model, labelled_rows, tmp_path / "scored.parquet", id_columns=IDS).n_resumed == 0
    check(tmp_path / "scored.parquet", expected)


def test_finished_and_foreign_folders_are_not_overwritten(model, labelled_rows, tmp_path, expected):
    out = tmp_path / "scored.parquet"
    fxdask.batch_score(model, labelled_rows, out)
    with pytest.raises(StoreExistsError, match="already holds a finished .* pass overwrite=True") as error:
        fxdask.batch_score(model, labelled_rows, out, likelihood=True)
    one_sentence(error)
    fxdask.batch_score(model, labelled_rows, out, id_columns=IDS, overwrite=True)
    check(out, expected)
    (out / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(StoreExistsError):
            fxdask.batch_score(model, labelled_rows, out, likelihood=True, overwrite=overwrite)
    assert (out / "notes.txt").read_text() == "mine"
    TABLE.to_parquet(tmp_path / "file.parquet")
    (tmp_path / "spark.parquet").mkdir()
    (tmp_path / "spark.parquet" / "_SUCCESS").touch()
    TABLE.to_parquet(tmp_path / "spark.parquet" / "part-00000.parquet")
    for name in ("file.parquet", "spark.parquet"):
        with pytest.raises(StoreExistsError, match="exists but is not a score table of fxdask") as error:
            fxdask.batch_score(model, labelled_rows, tmp_path / name, overwrite=True)
        one_sentence(error)
    assert len(pd.read_parquet(tmp_path / "spark.parquet")) == N


@pytest.mark.parametrize("change", [Path.unlink, lambda file: file.write_bytes(file.read_bytes()[:-9])])
@pytest.mark.parametrize("kind", ["parquet", "zarr"])
def test_a_finished_result_that_was_damaged_is_no_success(model, tmp_path, kind, change):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    out = tmp_path / f"scored.{kind}"
    fxdask.batch_score(model, tmp_path / "X.npy", out)
    assert not verify_store(out).damaged
    change(out / ("scores-00000.parquet" if kind == "parquet" else "labels/c/0"))
    for truth in (None, tmp_path / "y.npy"):
        with pytest.raises(StoreFormatError, match="is damaged"):
            fxdask.batch_score(model, tmp_path / "X.npy", out, truth)
    assert len(verify_store(out).damaged) == 1
    fxdask.batch_score(model, tmp_path / "X.npy", out, overwrite=True)
    assert not verify_store(out).damaged


def test_a_late_write_is_refused(model, tmp_path):
    facts = {"job": "j", "n_samples": 2, "rows_per_file": 2, "columns": ["label", "score_0", "score_1"]}
    table = ScoreTable.create(str(tmp_path / "t"), facts)
    values = (np.array([0, 1]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    with pytest.raises(StoreFormatError, match="scores-00000.parquet is missing; run the same call again"):
        table.finish()
    with pytest.raises(StoreUnfinishedError):
        ScoreTable.open(str(tmp_path / "t"))
    table.write_chunk(0, *values)
    assert np.array_equal(table.read_done(0, np.array([0, 1])), values[1])
    table.write_chunk(0, values[0][::-1], values[1])
    assert table.read_done(0, np.array([0, 1])) is None, "labels that do not match the scores"
    table.finish()
    with pytest.raises(StoreWriteError, match="was finished, moved or replaced"):
        table.write_chunk(0, *values)
    (tmp_path / "t").rename(tmp_path / "moved")
    with pytest.raises(StoreWriteError, match="was finished, moved or replaced"):
        table.write_chunk(0, *values)
    assert names_in(tmp_path) == ["moved"]


def test_a_flipped_bit_is_noticed(model, tmp_path):
    fxdask.batch_score(model, X[:600], tmp_path / "out.parquet")
    file = tmp_path / "out.parquet" / "scores-00000.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    table = ScoreTable.open(str(tmp_path / "out.parquet"))
    assert table.read_done(0, model.classes_) is not None
    file.write_bytes(content)
    assert table.read_done(0, model.classes_) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"id_columns": ["nothing"]}, "has no column 'nothing'; its columns are"),
        ({"id_columns": ["label"]}, "the id column 'label' has the name of a column of the result"),
        ({"id_columns": ["id"], "out": "out.zarr"}, "need a result of Parquet, but out is .*out.zarr"),
        (
            {"id_columns": ["id"], "X": X},
            "columns can be chosen from Parquet or from a DataFrame, but X is of type ndarray",
        ),
        ({"id_columns": ["id"], "X": dd.from_pandas(TABLE, npartitions=2)}, "cannot be copied from a Dask DataFrame"),
        ({"columns": ["a", "b", "c"]}, "'d' is missing"),
        ({"columns": "abcd"}, "must be a list of names"),
        ({"X": TABLE, "id_columns": ["none"]}, "X has no column 'none'"),
    ],
)
def test_impossible_columns_are_refused_before_anything_is_written(model, tmp_path, options, message):
    TABLE.assign(label=0).to_parquet(tmp_path / "t.parquet")
    arguments = {"X": tmp_path / "t.parquet", "out": "out.parquet", **options}
    samples, out = arguments.pop("X"), tmp_path / arguments.pop("out")
    with pytest.raises(InvalidInputError, match=message) as error:
        fxdask.batch_score(model, samples, out, **arguments)
    one_sentence(error)
    assert names_in(tmp_path) == ["t.parquet"]


def test_only_the_missing_range_reads_its_samples(model, labelled_rows, tmp_path, small_tasks, monkeypatch):
    read = []
    original = score_tasks.read_pieces
    monkeypatch.setattr(score_tasks, "read_pieces", lambda *words: read.append(words[1]) or original(*words))
    with monkeypatch.context() as patch:
        patch.setattr(ScoreTable, "finish", lambda *_, **__: (_ for _ in ()).throw(InterruptedForTestError))
        with pytest.raises(InterruptedForTestError):
            fxdask.batch_score(model, labelled_rows, tmp_path / "out.parquet")
    (hidden,) = tmp_path.glob(".out.parquet.next-*")
    (hidden / "scores-00002.parquet").unlink()
    read.clear()
    assert fxdask.batch_score(model, labelled_rows, tmp_path / "out.parquet").n_resumed == N - 768
    assert read == [2 * 768]


def test_row_groups_larger_than_memory_are_refused_with_both_numbers():
    resources = Resources(limit=512 * MIB, baseline=100 * MIB, threads=2)
    samples = SamplesToScore(n_samples=10**6, n_features=100, decoded_bytes=2**30)
    with pytest.raises(
        MemoryPlanError, match=r"scoring the largest row group of X needs 1.0 GiB but .* smaller row gro"
    ):
        plan_scores(samples, n_nodes=20, n_used=10, n_classes=2, resources=resources)


def test_tasks_read_whole_row_groups_where_these_have_one_length(model, tmp_path, small_tasks):
    TABLE.to_parquet(tmp_path / "t.parquet", row_group_size=1_500)
    fxdask.batch_score(model, tmp_path / "t.parquet", tmp_path / "out.parquet")
    assert [len(pd.read_parquet(file)) for file in sorted((tmp_path / "out.parquet").glob("s*"))] == [
        1_500,
        1_500,
        1_000,
    ]
