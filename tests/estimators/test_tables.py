"""Tables in every form: the same models and labels as from arrays of the same values, and errors that name columns."""

import pickle

import dask.dataframe as dd
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import X, Y, chunk_files, fit, one_sentence

import fxdask
from fxdask.errors import InvalidInputError, NotFiniteError

NAMES = list("abcd")
FRAME = pd.DataFrame(X, columns=NAMES)
WIDE = FRAME.assign(id=[f"row {i}" for i in range(40)], y=Y)[["id", "d", "y", "c", "b", "a"]]


def parquet_of(path, frame=WIDE, group=7):
    frame.to_parquet(path, row_group_size=group)
    return path


def every_table(folder):
    """The same samples and labels as tables of every kind."""
    path = parquet_of(folder / "train.parquet")
    dd.from_pandas(WIDE, npartitions=8).to_parquet(folder / "many")
    many = dd.read_parquet(folder / "many")
    return {
        "pandas": (FRAME, WIDE["y"]),
        "polars": (pl.from_pandas(FRAME), pl.Series(Y)),
        "Parquet and the name of a column": (fxdask.table(path, NAMES), "y"),
        "two tables": (fxdask.table(path, NAMES), fxdask.table(path, ["y"])),
        "Dask of pandas": (dd.from_pandas(FRAME, npartitions=3), dd.from_pandas(WIDE["y"], npartitions=2)),
        "Dask of Parquet, whose partitions change with the columns": (many[NAMES], many["y"]),
    }


def test_every_table_gives_the_model_of_the_array(tmp_path):
    expected = fit(store=tmp_path / "array.zarr")
    for name, (samples, labels) in every_table(tmp_path).items():
        store = tmp_path / f"{name}.zarr"
        made = fit(samples, labels, store=store)
        assert made.feature_names_in_.tolist() == NAMES, name
        stored = {file: content for file, content in chunk_files(store).items() if not file.startswith(("man", "sam"))}
        assert stored.items() <= chunk_files(tmp_path / "array.zarr").items(), name
        assert np.array_equal(fit(samples, labels).divergences_, expected.divergences_), name
        assert np.array_equal(np.asarray(made.predict(samples)), expected.predict(X)), name
        assert np.allclose(np.asarray(made.predict_proba(samples)), expected.predict_proba(X), rtol=1e-6), name
        assert made.score(samples, labels) == expected.score(X, Y), name


@pytest.mark.parametrize(
    "form", [lambda frame: frame, pl.from_pandas, lambda frame: dd.from_pandas(frame, npartitions=3)]
)
def test_the_labels_may_be_a_column_of_a_frame(form):
    whole = form(WIDE.drop(columns="id"))
    clf = fit(whole, "y")
    assert clf.feature_names_in_.tolist() == ["d", "c", "b", "a"]
    assert clf.score(whole, "y") == fit(FRAME[["d", "c", "b", "a"]], Y).score(FRAME[["d", "c", "b", "a"]], Y)
    assert fxdask.rank_features(whole, "y", ["pearson"]).names.tolist() == ["d", "c", "b", "a"]
    with pytest.raises(InvalidInputError, match="neither a column of X nor a file or folder; check"):
        fit(whole, "nothing.npy")


@settings(max_examples=6, deadline=None)
@given(st.integers(1, 50), st.integers(1, 9), st.sampled_from(["f4", "f8", "i2"]))
def test_row_groups_and_partitions_never_change_a_model(tmp_path_factory, group, npartitions, dtype):
    folder = tmp_path_factory.mktemp("layouts")
    values = (X * 100).astype(dtype)
    frame = pd.DataFrame(values, columns=NAMES)
    expected = fit(values, n_nodes=20)
    path = parquet_of(folder / "t.parquet", frame, group)
    for samples in (path, dd.from_pandas(frame, npartitions=npartitions)):
        made = fit(samples, n_nodes=20)
        assert np.array_equal(made.divergences_, expected.divergences_)
        assert np.array_equal(np.asarray(made.predict(samples)), expected.predict(values))


def test_a_label_column_is_no_feature(tmp_path):
    path = parquet_of(tmp_path / "t.parquet", WIDE.drop(columns="id"))
    clf = fit(str(path), "y")
    assert clf.feature_names_in_.tolist() == ["d", "c", "b", "a"]
    assert clf.score(path, "y") == clf.score(FRAME[["d", "c", "b", "a"]], Y)
    assert clf.report(tmp_path / "m.html", path, "y").n_samples == 40
    with pytest.raises(InvalidInputError, match="the column 'y' of the labels is also among the chosen columns"):
        fit(fxdask.table(path, ["a", "y"]), "y")
    with pytest.raises(
        InvalidInputError, match="y is 'z', which is neither a file or folder nor a column of .*t.parquet"
    ):
        fit(path, "z")
    with pytest.raises(InvalidInputError, match="has 2 columns; choose the one that holds the labels"):
        fit(FRAME, fxdask.table(path, ["y", "a"]))
    np.save(tmp_path / "y.npy", 1 - Y)
    assert fit(path, str(tmp_path / "y.npy")).n_features_in_ == 5, "a path of labels stays a path"


def test_other_columns_of_parquet_are_ignored_but_missing_ones_are_named(tmp_path):
    clf = fit(FRAME)
    path = parquet_of(tmp_path / "t.parquet")
    assert np.array_equal(clf.predict(path), clf.predict(FRAME)), "taken by name, in the order of the fit"
    assert np.array_equal(clf.predict(fxdask.table(path, list("dcba"))), clf.predict(FRAME))
    with pytest.raises(InvalidInputError, match="should match .*: 'd' is missing; 'y' was not there"):
        clf.predict(fxdask.table(path, ["a", "b", "c", "y"]))
    with pytest.raises(InvalidInputError, match="should match .*: 'b' is missing") as error:
        clf.predict(parquet_of(tmp_path / "u.parquet", WIDE.drop(columns="b")))
    one_sentence(error)
    frame = dd.from_pandas(WIDE, npartitions=2)
    assert np.array_equal(clf.predict(frame[list("dcba")]).compute(), clf.predict(FRAME))
    with pytest.raises(InvalidInputError, match="should match .*: 'id', 'y' was not there"):
        clf.predict(frame)
    with pytest.raises(ValueError, match="feature names should match"):
        clf.predict(pl.from_pandas(FRAME[list("dcba")]))
    unnamed = fit()
    assert np.array_equal(unnamed.predict(fxdask.table(path, NAMES)), clf.predict(FRAME))
    with pytest.raises(InvalidInputError, match="X has 3 features, but"):
        unnamed.predict(frame[["a", "b", "c"]])


def test_a_dask_frame_is_labelled_lazily_beside_its_own_columns():
    clf = fit(FRAME)
    frame = dd.from_pandas(WIDE.set_index(np.arange(40) * 3), npartitions=5)
    labels = clf.predict(frame[NAMES])
    assert isinstance(labels, dd.Series)
    assert labels.divisions == frame.divisions
    whole = frame.assign(label=labels, outlier=clf.score_samples(frame[NAMES])).compute()
    assert whole.index.tolist() == frame.index.compute().tolist()
    assert np.array_equal(whole["label"], clf.predict(FRAME))
    assert labels.dtype == whole["label"].dtype
    assert np.allclose(whole["outlier"], clf.score_samples(FRAME))
    assert np.allclose(clf.decision_function(frame[NAMES]).compute(), clf.decision_function(FRAME))
    probabilities = clf.predict_proba(frame[NAMES])
    assert list(probabilities.columns) == [0, 1]
    assert np.allclose(probabilities.compute(), clf.predict_proba(FRAME))
    assert np.allclose(
        dd.concat([frame, clf.predict_log_proba(frame[NAMES])], axis=1).compute()[1], clf.predict_log_proba(FRAME)[:, 1]
    )
    words = fit(FRAME, np.array(["ash", "birch"])[Y])
    assert words.predict(frame[NAMES]).compute().tolist() == words.predict(FRAME).tolist()
    three = fit(FRAME, np.arange(40) % 3)
    assert np.allclose(three.decision_function(frame[NAMES]).compute(), three.decision_function(FRAME))


BAD = {
    "text": (["x", "z"] * 20, "do not hold numbers: 'bad' "),
    "category": (pd.Categorical(["x", "z"] * 20), "do not hold numbers: 'bad' "),
    "datetime": (pd.date_range("2020", periods=40), "do not hold numbers: 'bad' .* encode them as numbers, or choose"),
    "NaN": (np.where(np.arange(40) == 5, np.nan, 1.0), "contains NaN, first in sample 5, column 'bad'"),
    "infinity": (np.where(np.arange(40) == 5, np.inf, 1.0), "contains infinity, first in sample 5, column 'bad'"),
    "missing": (pd.array([1] * 5 + [None] + [1] * 34, "Int64"), "contains NaN, first in sample 5, column 'bad'"),
}


@pytest.mark.parametrize("kind", BAD)
def test_errors_name_the_column(tmp_path, kind):
    values, message = BAD[kind]
    frame = FRAME[["a", "b"]].assign(bad=values)
    clf = fit(frame.assign(bad=0.0))
    lazy = dd.from_pandas(frame, npartitions=2)
    forms = (frame, pl.from_pandas(frame), parquet_of(tmp_path / "t.parquet", frame), lazy)
    for samples in forms:
        with pytest.raises(InvalidInputError, match=message) as error:
            fit(samples)
        one_sentence(error)
        with pytest.raises(InvalidInputError, match=message):
            fxdask.batch_score(clf, samples, tmp_path / "scored.zarr")
    for samples in forms[:-1]:
        with pytest.raises(InvalidInputError, match=message):
            clf.predict(samples)
    with pytest.raises(InvalidInputError, match=message.replace("sample 5", "sample 5 of its partition")):
        clf.predict(lazy).compute()
    assert not (tmp_path / "scored.zarr").exists()


def test_an_error_about_a_value_can_be_pickled_and_named():
    error = pickle.loads(pickle.dumps(NotFiniteError("NaN", 3, 1)))
    assert str(error).startswith("Input X contains NaN, first in sample 3, feature 1; remove")
    assert "sample 3, column 'b'" in str(error.named(NAMES))


def test_missing_values_of_integer_columns_are_named(tmp_path):
    frame = pd.DataFrame({"a": np.arange(40), "b": pd.array([1] * 39 + [None], "Int64")})
    for samples in (dd.from_pandas(frame, npartitions=1), parquet_of(tmp_path / "t.parquet", frame, 40)):
        with pytest.raises(NotFiniteError, match="contains a missing value, first in sample 39.*, column 'b'"):
            fit(samples)


def test_frames_of_objects_and_without_names_still_work():
    expected = fit().divergences_
    assert np.array_equal(fit(FRAME.astype(object)).divergences_, expected)
    unnamed = fit(pd.DataFrame(X))
    assert np.array_equal(unnamed.divergences_, expected)
    assert not hasattr(unnamed, "feature_names_in_")
    assert np.array_equal(fit(dd.from_pandas(pd.DataFrame(X), npartitions=2)).divergences_, expected)
    with pytest.raises(InvalidInputError, match=r"X is a Polars LazyFrame; pass X.collect\(\)"):
        fit(pl.from_pandas(FRAME).lazy())
    with pytest.raises(InvalidInputError, match="Expected 2D array"):
        fit(dd.from_pandas(FRAME["a"], npartitions=2))


def test_columns_of_one_name_are_refused_by_their_name(tmp_path):
    frame = pd.DataFrame(X, columns=["a", "b", "b", "c"])
    pq.write_table(pa.table([*X.T], names=[*frame.columns]), tmp_path / "t.parquet")
    for samples in (frame, dd.from_pandas(frame, npartitions=2), tmp_path / "t.parquet"):
        for numeric_only in (False, True):
            with pytest.raises(InvalidInputError, match="X has several columns of the name 'b'; give each its own"):
                fxdask.rank_features(samples, Y, ["pearson"], numeric_only=numeric_only)


def test_a_table_without_numbers_is_refused(tmp_path):
    frame = pd.DataFrame({"word": ["one", "two"] * 20, "digits": pd.Series(["1", "2"] * 20, dtype=object)})
    frame.to_parquet(tmp_path / "t.parquet")
    for samples in (frame, pl.from_pandas(frame), dd.from_pandas(frame, npartitions=2), tmp_path / "t.parquet"):
        with pytest.raises(InvalidInputError, match=r"do not hold numbers: 'word' \(.*\), 'digits' \("):
            fxdask.rank_features(samples, Y, ["pearson"], numeric_only=True)
    for samples in (frame[[]], pl.DataFrame()):
        with pytest.raises(InvalidInputError, match="X has 0 feature"):
            fxdask.rank_features(samples, Y, ["pearson"])


def test_a_table_needs_a_path_of_parquet(tmp_path):
    np.save(tmp_path / "X.npy", X)
    for path, message in [
        (tmp_path / "none.parquet", "there is no file or folder"),
        (tmp_path / "X.npy", "is not Parquet"),
        (FRAME, "a table needs a path or a URL, not DataFrame"),
    ]:
        with pytest.raises(InvalidInputError, match=message) as error:
            fxdask.table(path)
        one_sentence(error)


IDS = {
    "objects": (pl.DataFrame({"a": X[:, 0], "b": X[:, 1]}), pl.Series("id", [object()] * len(X), dtype=pl.Object)),
    "mixed": (FRAME[["a", "b"]], pd.Series([1, "a"] * (len(X) // 2), name="id")),
    "complex": (FRAME[["a", "b"]], pd.Series([1j] * len(X), name="id")),
}


@pytest.mark.parametrize("kind", list(IDS))
def test_ids_that_parquet_cannot_hold_are_refused_by_name(kind, tmp_path):
    frame, ids = IDS[kind]
    clf = fit(frame, Y, n_nodes=20)
    with_ids = frame.with_columns(ids) if kind == "objects" else frame.assign(id=ids)
    with pytest.raises(InvalidInputError, match="column 'id' h.*convert it to text or to numbers"):
        fxdask.batch_score(clf, with_ids, tmp_path / "s.parquet", id_columns=["id"])
    assert list(tmp_path.iterdir()) == []


def test_columns_of_one_name_are_refused(tmp_path):
    twice = pd.DataFrame(np.c_[X[:, :2], Y], columns=["a", "y", "y"])
    with pytest.raises(InvalidInputError, match="column 'y' is there or chosen more than once"):
        fxdask.rank_features(twice, "y", ["pearson"])
    arrays = [pa.array(X[:, 0]), pa.array(X[:, 1]), pa.array(Y)]
    pq.write_table(pa.Table.from_arrays(arrays, names=["a", "a", "y"]), tmp_path / "t.parquet")
    for table in (tmp_path / "t.parquet", fxdask.table(tmp_path / "t.parquet", columns=["y"])):
        with pytest.raises(InvalidInputError, match="several columns named 'a'|also among the chosen"):
            fxdask.rank_features(table, "y", ["pearson"])
