from unittest.mock import Mock
from uuid import uuid4

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from small import one_sentence

import fxdask
from fxdask.errors import InvalidInputError, MemoryPlanError, StoreExistsError
from fxdask.store.lease import exclusive_lease, lease_of_call
from fxdask.workflows import rank as rank_workflow

RNG = np.random.default_rng(3)
Y = np.arange(240) % 2
FRAME = pd.DataFrame(RNG.standard_normal((240, 4)) * (1 + Y[:, None]), columns=list("abcd"))
STARTS = [0, 60, 120, 180]
CRITERIA = ["extended_fisher", "relief", "pearson"]


class Counted:
    """Dask collections of the same samples, which note every chunk or partition that is read."""

    def __init__(self):
        self.read = []
        self.name = uuid4().hex  # Dask takes collections of equal content for the same one

    def load(self, start):
        self.read.append(start)
        return FRAME[start : start + 60]

    def frame(self):
        return dd.from_map(self.load, STARTS, meta=FRAME[:0])

    def array(self):
        rows = [
            da.from_delayed(dask.delayed(lambda start: self.load(start).to_numpy())(start), (60, 4), float)
            for start in STARTS
        ]
        return da.concatenate(rows)

    def was_read_once(self):
        return sorted(self.read) == STARTS


@pytest.fixture(autouse=True)
def on_threads():
    with dask.config.set(scheduler="threads"):
        yield


@pytest.fixture(params=["frame", "array"])
def counted(request):
    found = Counted()
    found.samples = getattr(found, request.param)()
    return found


def fitted(X, store=None, **settings):
    return fxdask.FisherNetworkClassifier(60, 3, store=store, **settings).fit(X, Y)


@pytest.mark.parametrize("with_store", [False, True])
def test_a_collection_is_read_once_by_a_fit(tmp_path, counted, with_store):
    clf = fitted(counted.samples, tmp_path / "m.zarr" if with_store else None)
    assert counted.was_read_once()
    assert clf.divergences_.tobytes() == fitted(FRAME.to_numpy()).divergences_.tobytes()
    assert [path.name for path in tmp_path.iterdir()] == ["m.zarr"] * with_store
    counted.read.clear()
    labels = clf.predict(counted.samples)
    assert counted.read == [], "labels are lazy"
    assert np.array_equal(labels.compute(), clf.predict(FRAME.to_numpy() if isinstance(labels, da.Array) else FRAME))
    assert counted.was_read_once()


@pytest.mark.parametrize("small", [0, 2**20])
@pytest.mark.parametrize("with_store", [False, True])
def test_a_collection_is_read_once_by_a_ranking(tmp_path, monkeypatch, counted, with_store, small):
    """Small ones are loaded; larger ones are copied, although ReliefF and the digest read them again."""
    monkeypatch.setattr(rank_workflow, "SMALL", small)
    store = tmp_path / "r.zarr" if with_store else None
    ranking = fxdask.rank_features(counted.samples, Y, CRITERIA, store=store)
    assert counted.was_read_once() or (small and with_store and isinstance(counted.samples, da.Array))
    expected = fxdask.rank_features(FRAME, Y, CRITERIA)
    for criterion in CRITERIA:
        assert np.array_equal(ranking.score(criterion), expected.score(criterion))
    assert [path.name for path in tmp_path.iterdir()] == ["r.zarr"] * with_store


def test_a_collection_is_read_once_by_a_scoring(tmp_path, counted):
    clf = fitted(FRAME)
    samples = counted.samples
    result = fxdask.batch_score(clf, samples, tmp_path / "s.zarr", Y)
    assert counted.was_read_once()
    assert result.accuracy == clf.score(FRAME, Y)
    assert [path.name for path in tmp_path.iterdir()] == ["s.zarr"]


def test_a_finished_store_is_loaded_or_refused_without_a_copy(tmp_path, counted, monkeypatch):
    store = tmp_path / "m.zarr"
    first = fitted(counted.samples, store)
    monkeypatch.setattr("fxdask.workflows.copies.create_parts", None)  # would fail if it were called
    again = fitted(counted.samples, store)
    assert np.array_equal(first.divergences_, again.divergences_)
    with pytest.raises(StoreExistsError, match="n_selected"):
        fxdask.FisherNetworkClassifier(60, 2, store=store).fit(counted.samples, Y)


def test_an_interrupted_fit_leaves_no_copy_and_is_resumed(tmp_path, counted, monkeypatch):
    store = tmp_path / "m.zarr"
    with monkeypatch.context() as patch:
        patch.setattr("fxdask.workflows.fit.assemble_selected", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fitted(counted.samples, store)
    assert [path.name for path in tmp_path.iterdir()] == ["m.zarr"]
    again = fitted(counted.samples, store)
    assert again.fit_info_["n_blocks_resumed"] == again.fit_info_["n_blocks"]
    assert np.array_equal(again.divergences_, fitted(FRAME).divergences_)


def test_overwriting_copies_and_leaves_the_earlier_model_until_the_end(tmp_path, counted):
    store = tmp_path / "m.zarr"
    fitted(FRAME, store)
    clf = fitted(counted.samples, store, overwrite=True, random_state=7)
    assert clf.seed_ == 7
    assert counted.was_read_once()
    assert [path.name for path in tmp_path.iterdir()] == ["m.zarr"]


def test_an_error_in_a_partition_leaves_nothing(tmp_path):
    def load(start):
        frame = FRAME[start : start + 60].copy()
        frame.loc[frame.index == 130, "c"] = np.nan
        return frame

    frame = dd.from_map(load, STARTS, meta=FRAME[:0])
    with pytest.raises(InvalidInputError, match="NaN, first in sample 130, column 'c'") as error:
        fitted(frame, tmp_path / "m.zarr")
    one_sentence(error)
    assert list(tmp_path.iterdir()) == []


def test_a_frame_without_a_store_that_is_larger_than_memory_is_refused(monkeypatch):
    monkeypatch.setattr("fxdask.execution.copy.PARTITIONS_AT_A_TIME", 1)
    frame = Counted().frame()
    with pytest.raises(MemoryPlanError, match=r"first 1 of 4 partitions of X need .* but .* of memory") as error:
        fitted(frame, memory_limit=100)
    one_sentence(error)


def test_an_array_is_not_copied_for_a_fit_that_memory_or_labels_refuse(tmp_path):
    counted = Counted()
    with pytest.raises(MemoryPlanError, match="needs .* but"):
        fitted(counted.array(), tmp_path / "m.zarr", memory_limit=100)
    with pytest.raises(InvalidInputError, match="y has 239 labels but X has 240 samples"):
        fxdask.FisherNetworkClassifier(60, store=tmp_path / "m.zarr").fit(counted.array(), Y[1:])
    assert counted.read == []
    assert list(tmp_path.iterdir()) == []


def test_another_call_is_refused_before_anything_is_read(tmp_path, counted):
    url = str(tmp_path / "m.zarr")
    with exclusive_lease(url) as lease:
        with lease_of_call(url) as same:
            assert same is lease
        assert lease.is_held(), "the inner block does not release what the outer one holds"
        with pytest.raises(StoreExistsError, match="another call is working"):
            in_another_thread(lambda: fitted(counted.samples, url))
    assert counted.read == []


def in_another_thread(call):
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result()
