import threading

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import InvalidInputError
from fxdask.sizes import row_ranges
from fxdask.store.sources import NpyAddress, ZarrAddress, address_of_mapped, read_all
from fxdask.tasks import reading
from fxdask.tasks.reading import checked_rows, read_ahead
from fxdask.tasks.telemetry import TaskCounters
from fxdask.workflows.data import as_samples

X = np.random.default_rng(0).standard_normal((103, 5)).astype(np.float32)


@pytest.fixture(params=["array", "npy", "zarr", "big-endian npy"])
def source(request, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "big.npy", X.astype(">f4"))
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(17, 2))
    return {
        "array": X,
        "npy": NpyAddress(str(tmp_path / "X.npy")),
        "big-endian npy": NpyAddress(str(tmp_path / "big.npy")),
        "zarr": ZarrAddress(str(tmp_path / "X.zarr")),
    }[request.param]


@pytest.mark.parametrize("per_read", [1, 10, 103, 500])
def test_ranges_come_in_order_and_are_not_overwritten_while_in_use(source, per_read):
    counters = TaskCounters()
    starts, seen = [], []
    for start, rows in read_ahead(source, row_ranges(len(X), per_read), counters):
        before = rows.copy()
        # Give the read of the next range time to overwrite these rows by mistake.
        threading.Event().wait(0.002)
        assert np.array_equal(rows, before)
        starts.append(start)
        seen.append(before)
    assert starts == list(range(0, len(X), per_read))
    assert np.array_equal(np.concatenate(seen), X)
    assert counters.bytes_read == (0 if isinstance(source, np.ndarray) else X.nbytes)


def test_the_next_range_is_read_while_this_one_is_used(tmp_path, monkeypatch):
    np.save(tmp_path / "X.npy", X)
    started = []

    def open_recorded(samples, allocate):
        read = open_rows(samples, allocate)

        def recorded(start, stop):
            started.append(start)
            return read(start, stop)

        return recorded

    open_rows = reading.open_rows
    monkeypatch.setattr(reading, "open_rows", open_recorded)
    for start, _ in read_ahead(NpyAddress(str(tmp_path / "X.npy")), row_ranges(len(X), 20), TaskCounters()):
        for _ in range(1000):
            if len(started) > start // 20 + 1 or start == 100:
                break
            threading.Event().wait(0.005)
        assert len(started) == min(start // 20 + 2, 6), "exactly one range ahead"


def test_infinity_that_appeared_in_a_file_after_the_scan_is_refused(tmp_path):
    bad = X.copy()
    bad[77, 3] = np.inf
    np.save(tmp_path / "X.npy", bad)
    with pytest.raises(InvalidInputError, match="contains infinity, first in sample 77, feature 3"):
        list(read_ahead(NpyAddress(str(tmp_path / "X.npy")), row_ranges(len(X), 10), TaskCounters()))


@given(
    value=st.sampled_from([np.nan, np.inf, -np.inf, 3e38, -3e38, 1.0]),
    index=st.tuples(st.integers(0, 102), st.integers(0, 4)),
)
def test_large_finite_values_are_accepted(value, index):
    """The sum of all values may overflow, but only NaN and infinity are refused."""
    rows = np.full((103, 5), 3e38, np.float32)
    rows[index] = value
    if np.isfinite(value):
        assert checked_rows(rows) is rows
    else:
        with pytest.raises(InvalidInputError, match=f"first in sample {index[0]}, feature {index[1]}"):
            checked_rows(rows)


def test_a_memory_map_of_a_whole_file_becomes_the_address_of_the_file(tmp_path):
    np.save(tmp_path / "X.npy", X)
    mapped = np.load(tmp_path / "X.npy", mmap_mode="r")
    assert address_of_mapped(mapped) == NpyAddress(str(tmp_path / "X.npy"))
    assert np.array_equal(read_all(as_samples(mapped).handle), X)
    # Maps that differ from the file stay arrays: a part, a transpose, or a copy-on-write map.
    assert address_of_mapped(mapped[3:]) is None
    assert address_of_mapped(mapped.T) is None
    assert address_of_mapped(np.load(tmp_path / "X.npy", mmap_mode="c")) is None
    assert address_of_mapped(X) is None
    np.memmap(tmp_path / "raw", np.float32, "w+", shape=X.shape)[:] = X
    assert address_of_mapped(np.memmap(tmp_path / "raw", np.float32, "r", shape=X.shape)) is None
