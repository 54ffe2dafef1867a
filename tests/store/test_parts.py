import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import InvalidInputError
from fxdask.store.parts import PartsAddress, create_parts, remove_parts, remove_parts_beside, write_part
from fxdask.store.sources import fingerprint, location_of, open_rows, read_all, shape_and_dtype


def copied(folder, rows, lengths):
    url = create_parts(str(folder / "model.zarr"))
    start = 0
    for index, length in enumerate(lengths):
        write_part(url, index, rows[start : start + length])
        start += length
    return PartsAddress(url=url, lengths=tuple(lengths), n_features=rows.shape[1], dtype=rows.dtype.str)


@given(
    lengths=st.lists(st.integers(0, 5), max_size=6),
    start=st.integers(0, 30),
    n_rows=st.integers(0, 30),
    dtype=st.sampled_from(["<f4", "u1", ">i2"]),
)
def test_rows_of_parts_are_those_of_the_whole(tmp_path_factory, lengths, start, n_rows, dtype):
    rows = np.arange(3 * sum(lengths)).reshape(-1, 3).astype(dtype)
    address = copied(tmp_path_factory.mktemp("parts"), rows, lengths)
    found = open_rows(address)(start, start + n_rows)
    assert found.dtype == rows.dtype
    assert np.array_equal(found, rows[start : start + n_rows])
    assert shape_and_dtype(address) == (rows.shape, rows.dtype)
    assert np.array_equal(read_all(address), rows)


def test_copies_of_killed_calls_are_removed_and_nothing_else(tmp_path):
    rows = np.ones((4, 2))
    left = [copied(tmp_path, rows, [4]).url for _ in range(2)]
    others = [tmp_path / ".model.zarr.lease", tmp_path / ".other.zarr.samples-1", tmp_path / "model.zarr"]
    for other in others:
        other.mkdir()
    remove_parts_beside(str(tmp_path / "model.zarr"))
    assert sorted(tmp_path.iterdir()) == sorted(others), left
    remove_parts(left[0])  # is not there any more, which is no error


def test_a_missing_part_is_an_error_and_copies_have_no_lasting_address(tmp_path):
    address = copied(tmp_path, np.ones((4, 2)), [2, 2])
    assert location_of(address) is None
    assert fingerprint(address) is None
    remove_parts(address.url)
    with pytest.raises(InvalidInputError, match="there is no file"):
        read_all(address)
