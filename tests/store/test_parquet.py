"""Parquet as a source of samples: every range of rows equals that of the same values in an array."""

import pickle
import sys
import threading

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small import one_sentence

from fxdask.errors import InvalidInputError, NotFiniteError
from fxdask.store import parquet_rows
from fxdask.store.parquet import is_parquet, open_parquet
from fxdask.store.parquet_rows import read_arrow_rows, read_column
from fxdask.store.sources import decoded_bytes, fingerprint, location_of, open_rows, rows_per_chunk, shape_and_dtype

X = np.arange(120, dtype=np.float32).reshape(40, 3)
NAMES = ["a", "b", "c"]


def write(path, values=X, names=NAMES, group=None, **columns):
    table = pa.table({**dict(zip(names, values.T, strict=True)), **columns})
    pq.write_table(table, path, row_group_size=group)
    return path


def write_folder(folder, lengths, groups, values=X):
    folder.mkdir(exist_ok=True)
    start = 0
    for index, (length, group) in enumerate(zip(lengths, groups, strict=True)):
        write(folder / f"part.{index}.parquet", values[start : start + length], group=group)
        start += length
    return folder


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_any_range_of_any_layout_equals_the_array(tmp_path_factory, data):
    lengths = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=12))
    groups = [data.draw(st.integers(1, 12)) for _ in lengths]
    values = np.random.default_rng(0).standard_normal((sum(lengths), 3))
    folder = write_folder(tmp_path_factory.mktemp("layout") / "t", lengths, groups, values)
    names = data.draw(st.permutations(NAMES))
    address = open_parquet(folder, names).address()
    expected = values[:, [NAMES.index(name) for name in names]]
    assert shape_and_dtype(address) == (expected.shape, expected.dtype)
    read = open_rows(pickle.loads(pickle.dumps(address)))
    for _ in range(4):
        start = data.draw(st.integers(0, len(values)))
        stop = data.draw(st.integers(start, len(values) + 3))
        assert np.array_equal(read(start, stop), expected[start:stop])
        rows = read_arrow_rows(address, start, stop)
        assert rows.column_names == list(names)
        assert np.array_equal(rows.column(0).to_numpy(), expected[start:stop, 0])


@pytest.mark.parametrize(
    ("types", "expected"),
    [
        (("f4", "f4", "f4"), "f4"),
        (("u1", "u1", "u1"), "u1"),
        (("?", "?", "?"), "?"),
        (("f4", "i1", "?"), "f4"),
        (("f4", "i4", "f4"), "f8"),
        (("i2", "u2", "i1"), "i4"),
        (("f2", "f4", "f8"), "f8"),
    ],
)
def test_columns_get_one_common_type(tmp_path, types, expected):
    columns = [np.arange(5).astype(kind) for kind in types]
    pq.write_table(pa.table(dict(zip(NAMES, columns, strict=True))), tmp_path / "t.parquet")
    address = open_parquet(tmp_path / "t.parquet").address()
    rows = open_rows(address)(0, 5)
    assert rows.dtype == np.dtype(expected) == shape_and_dtype(address)[1]
    assert np.array_equal(rows, np.stack(columns, axis=1).astype(expected))


def test_nulls_become_nan_or_are_refused_if_the_type_has_none(tmp_path):
    table = pa.table({"f": [1.0, None, 3.0], "i": [1, 2, None], "b": [True, None, False]})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=2)
    opened = open_parquet(tmp_path / "t.parquet")
    expected = [[1.0, 1.0, 1.0], [np.nan, 2.0, np.nan], [3.0, np.nan, 0.0]]
    assert np.array_equal(open_rows(opened.address())(0, 3), expected, equal_nan=True)
    with pytest.raises(NotFiniteError, match="contains a missing value, first in sample 2, column 'i'") as error:
        open_rows(opened.choose(["i"]).address())(0, 3)
    one_sentence(error)


def test_files_are_sorted_by_their_numbers_and_hidden_ones_ignored(tmp_path):
    folder = write_folder(tmp_path / "t", [4] * 10 + [0], [3] * 11)
    for name in ("_metadata", ".part.0.parquet.crc", "_temporary/part.0.parquet", "_SUCCESS"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"no table")
    address = open_parquet(folder).address()
    assert np.array_equal(open_rows(address)(0, 40), X)
    assert address.n_rows == 40
    assert location_of(address) == str(folder)


def test_what_counts_as_parquet(tmp_path):
    write(tmp_path / "t.parquet")
    write(tmp_path / "data")
    (tmp_path / "empty").mkdir()
    (tmp_path / "text").write_text("PAR")
    assert is_parquet(tmp_path / "t.parquet")
    assert is_parquet(str(tmp_path / "data")), "by its first bytes"
    assert is_parquet(tmp_path), "a folder"
    assert not is_parquet(tmp_path / "empty")
    assert not is_parquet(tmp_path / "text")
    assert not is_parquet(tmp_path / "missing.parquet")
    assert is_parquet("s3://bucket/t.parquet/")
    assert not is_parquet("s3://bucket/X.npy")


def test_parquet_at_a_url(tmp_path):
    import fsspec

    fsspec.filesystem("memory").put(str(write_folder(tmp_path / "t", [25, 15], [10, 10])), "/tables/t", recursive=True)
    assert is_parquet("memory://tables/t")
    address = open_parquet("memory://tables/t", ["c"]).address()
    assert np.array_equal(open_rows(address)(5, 33), X[5:33, 2:])


def test_a_pass_by_short_ranges_decodes_every_row_group_once(tmp_path, monkeypatch):
    decoded = []
    original = parquet_rows._arrow_group
    monkeypatch.setattr(
        parquet_rows, "_arrow_group", lambda source, group: decoded.append(group) or original(source, group)
    )
    address = open_parquet(write(tmp_path / "t.parquet", group=13)).address()
    for start in range(0, 40, 3):  # one reader for each range, as tasks have
        assert np.array_equal(open_rows(address)(start, start + 3), X[start : start + 3])
    assert [group.start for group in decoded] == [0, 13, 26, 39]
    assert not parquet_rows._open_table(address)._decoded, "nothing is kept after all rows were read"


def test_threads_share_decoded_row_groups(tmp_path):
    address = open_parquet(write(tmp_path / "t.parquet", group=20)).address()
    found = [None] * 40

    def read_one(row):
        found[row] = open_rows(address)(row, row + 1)

    threads = [threading.Thread(target=read_one, args=(row,)) for row in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert np.array_equal(np.concatenate(found), X)
    assert len(parquet_rows._open_table(address)._decoded) <= 1


def test_memory_of_a_row_group_and_its_length(tmp_path):
    address = open_parquet(write(tmp_path / "t.parquet", group=16)).address()
    assert rows_per_chunk(address) == 16
    assert 16 * 3 * 4 < decoded_bytes(address) < 16 * 3 * 4 + 2_000, "in Arrow, and compressed"
    uneven = open_parquet(write_folder(tmp_path / "u", [10, 30], [8, 8])).address()
    assert rows_per_chunk(uneven) == 0


def test_the_fingerprint_depends_on_files_and_columns(tmp_path):
    path = write(tmp_path / "t.parquet")
    first = fingerprint(open_parquet(path, ["a", "b"]).address())
    assert first == fingerprint(open_parquet(path, ["a", "b"]).address())
    assert first != fingerprint(open_parquet(path, ["b", "a"]).address())
    earlier = open_parquet(path).address()
    assert earlier == open_parquet(path).address()
    write(path, X + 1, group=7)
    assert earlier != open_parquet(path).address()
    assert first != fingerprint(open_parquet(path, ["a", "b"]).address())


def test_files_with_other_columns_are_refused_by_name(tmp_path):
    folder = write_folder(tmp_path / "t", [20], [20])
    write(folder / "part.1.parquet", X.astype(np.float64), extra=np.zeros(40))
    write(folder / "part.2.parquet", X[:, :2], ["b", "a"])
    opened = open_parquet(folder)
    with pytest.raises(
        InvalidInputError, match=r"column 'a' has type float in .*part.0.parquet but double in .*part.1"
    ):
        opened.address()
    (folder / "part.1.parquet").unlink()
    with pytest.raises(InvalidInputError, match=r"column 'c' has type float in .* but missing in .*part.2.parquet"):
        open_parquet(folder).address()
    assert open_parquet(folder, ["a", "b"]).address().n_rows == 60, "columns that are not chosen may differ"


def test_unknown_repeated_and_no_columns_are_refused(tmp_path):
    opened = open_parquet(write(tmp_path / "t.parquet"))
    for columns, message in [
        (["a", "z"], "has no column 'z'; its columns are 'a', 'b', 'c'"),
        (["a", "a"], "column 'a' is chosen more than once"),
        ([], "no columns were chosen"),
        ("abc", "must be a list of names, not 'abc'"),
    ]:
        with pytest.raises(InvalidInputError, match=message) as error:
            opened.choose(columns)
        one_sentence(error)
    with pytest.raises(InvalidInputError, match="no columns"):
        opened.without(NAMES)


def test_damaged_and_changed_files_are_refused_in_a_sentence(tmp_path):
    path = write(tmp_path / "t.parquet", group=10)
    address = open_parquet(path).address()
    write(path, X[:15], group=15)
    with pytest.raises(InvalidInputError, match="has changed since its footer was read: row group 3 had 10 rows"):
        open_rows(address)(30, 40)
    content = bytearray(write(path, group=10).read_bytes())
    content[4:60] = bytes(range(200, 256))
    path.write_bytes(content)
    with pytest.raises(InvalidInputError, match="t.parquet is not a readable Parquet file") as error:
        open_rows(address)(0, 10)
    one_sentence(error)
    path.write_bytes(path.read_bytes()[:-20])
    for message in (lambda: open_parquet(path), lambda: open_rows(address)(0, 5)):
        with pytest.raises(InvalidInputError, match="t.parquet is not a readable Parquet file") as error:
            message()
        one_sentence(error)
    path.unlink()
    with pytest.raises(InvalidInputError, match="there is no file .*t.parquet"):
        open_rows(address)(0, 5)


def test_a_missing_pyarrow_is_named_with_its_remedy(tmp_path, monkeypatch):
    path = write(tmp_path / "t.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(InvalidInputError, match=r"run pip install 'fxdask\[parquet\]'") as error:
        open_parquet(path)
    one_sentence(error)


def test_labels_of_any_type_are_read_from_a_column(tmp_path):
    words = pd.Series(["ash", "birch"] * 20)
    columns = {"word": words, "category": words.astype("category"), "number": np.arange(40), "yes": [True, False] * 20}
    pd.DataFrame(columns).to_parquet(tmp_path / "t.parquet", row_group_size=7)
    for name, expected in columns.items():
        assert read_column(open_parquet(tmp_path / "t.parquet", [name]).address()).tolist() == list(expected)


def test_an_index_of_pandas_is_no_feature_unless_it_is_chosen(tmp_path):
    frame = pd.DataFrame(X, columns=NAMES)
    frame.iloc[[0, 3, 4]].to_parquet(tmp_path / "filtered.parquet")
    frame.set_index(frame["a"].rename("key")).to_parquet(tmp_path / "keyed.parquet")
    assert "__index_level_0__" in pq.read_table(tmp_path / "filtered.parquet").column_names
    for name in ("filtered", "keyed"):
        opened = open_parquet(tmp_path / f"{name}.parquet")
        assert opened.names == tuple(NAMES)
        assert opened.without(["b"]).names == ("a", "c")
    assert opened.choose(["key"]).address().n_rows == 40


def test_two_columns_of_one_name_are_refused(tmp_path):
    pq.write_table(pa.table([[1.0], [2.0]], names=["a", "a"]), tmp_path / "t.parquet")
    with pytest.raises(InvalidInputError, match="several columns named 'a'"):
        open_parquet(tmp_path / "t.parquet").address()
