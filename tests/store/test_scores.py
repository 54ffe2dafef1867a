"""The score store: which arrays it has, when a chunk counts as done, and when the whole may be finished."""

import numpy as np
import pytest
import zarr

from fxdask.errors import StoreFormatError
from fxdask.store.layout import CLASS, LOG_LIKELIHOOD, SCORE_ARRAYS
from fxdask.store.scores import ScoreStore
from fxdask.store.verify import verify_store

CLASSES = np.array([3, 7])
SCORES = np.log([[0.5, 0.25], [0.125, 1.0], [2.0, 1.0]])


def created(folder, *, likelihood):
    """A store of 5 samples in chunks of 3."""
    return ScoreStore.create(str(folder / "out.zarr"), 5, 3, CLASSES, {"job": "a"}, likelihood=likelihood)


def write(store, index, length, *, likelihood):
    scores = SCORES[:length]
    store.write_chunk(index, CLASSES[scores.argmax(axis=1)], scores, np.arange(length) - 0.5 if likelihood else None)


@pytest.mark.parametrize("likelihood", [False, True])
def test_all_chosen_arrays_and_no_others_are_created(tmp_path, likelihood):
    store = created(tmp_path, likelihood=likelihood)
    expected = {spec.name for spec in SCORE_ARRAYS} - (set() if likelihood else {LOG_LIKELIHOOD})
    assert set(zarr.open_group(store.url).array_keys()) == {*store.names, CLASS} == expected
    assert ScoreStore.open(store.url, finished=False).names == store.names


@pytest.mark.parametrize("likelihood", [False, True])
def test_a_chunk_is_done_if_every_array_has_it(tmp_path, likelihood):
    store = created(tmp_path, likelihood=likelihood)
    write(store, 0, 3, likelihood=likelihood)
    assert (store.is_done(0), store.is_done(1), store.n_done()) == (True, False, 1)
    for name in store.names:
        (chunk,) = (path for path in (tmp_path / "out.zarr" / name / "c").rglob("*") if path.is_file())
        content = chunk.read_bytes()
        chunk.unlink()
        assert (store.is_done(0), store.n_done()) == (False, 0), name
        assert store.read_done(0, CLASSES) is None
        chunk.write_bytes(content)
    assert np.array_equal(store.read_done(0, CLASSES), SCORES)


def test_scores_are_finished_only_with_all_likelihoods(tmp_path):
    store = created(tmp_path, likelihood=True)
    write(store, 0, 3, likelihood=True)
    write(store, 1, 2, likelihood=False)
    with pytest.raises(StoreFormatError, match="log_likelihood has 1 of its 2 chunks; run the same call again"):
        store.finish()
    write(store, 1, 2, likelihood=True)
    store.finish()
    found = verify_store(store.url)
    assert not found.damaged
    assert not found.unknown
    assert zarr.open_group(store.url)[LOG_LIKELIHOOD][:].tolist() == [-0.5, 0.5, 1.5, -0.5, 0.5]


def test_a_damaged_chunk_of_likelihoods_is_not_read(tmp_path):
    store = created(tmp_path, likelihood=True)
    write(store, 0, 3, likelihood=True)
    assert store.read_likelihood(0).tolist() == [-0.5, 0.5, 1.5]
    chunk = tmp_path / "out.zarr" / LOG_LIKELIHOOD / "c" / "0"
    content = bytearray(chunk.read_bytes())
    content[0] ^= 1
    chunk.write_bytes(content)
    assert store.read_likelihood(0) is None


def test_a_store_of_an_earlier_version_has_no_likelihoods(tmp_path):
    store = created(tmp_path, likelihood=False)
    group = zarr.open_group(store.url)
    header = group.attrs["fxdask"]
    earlier = {name: value for name, value in header.items() if name != "likelihood"}
    group.attrs["fxdask"] = earlier | {"format": 8}
    assert ScoreStore.open(store.url, finished=False).names == ["labels", "scores"]
