"""What comes too late, was cut off by a loss of power, or went away in the middle."""

from functools import partial
from unittest.mock import Mock

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from small import X, Y, fit, unfinish

from fxdask.errors import InvalidInputError, StoreWriteError
from fxdask.execution import fit as fit_graphs
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import NodeBlock
from fxdask.store.model import ModelStore
from fxdask.store.scores import ScoreStore
from fxdask.store.verify import verify_store
from fxdask.tasks import fit as tasks


@pytest.mark.parametrize("kind", ["model", "scores"])
def test_a_late_write_does_not_bring_a_moved_store_back(kind, tmp_path):
    """As of a worker that was cut off, and goes on when others have done its part."""
    place = tmp_path / "store.zarr"
    if kind == "model":
        fit(store=place)
        unfinish(place)
        statistics = zarr.open_group(place)["statistics"][:]
        late = ModelStore.open(str(place), "r+", finished=False)
        write = partial(late.write_block, NodeBlock(0, 0, 50), {"statistics": statistics})
    else:
        late = ScoreStore.create(str(place), 40, 40, np.arange(2), {})
        write = partial(late.write, 0, Y, np.zeros((40, 2)))
    write()
    place.rename(tmp_path / "moved.zarr")
    with pytest.raises(StoreWriteError, match="was finished and moved, or taken away, while this was computed"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["moved.zarr"]


@pytest.mark.parametrize("content", [b"", b"\0" * 12])
def test_a_damaged_mark_is_none(content, tmp_path):
    """As a machine that loses power may leave one."""
    store = tmp_path / "model.zarr"
    expected = fit(store=store, nodes_per_block=10)
    unfinish(store)
    (store / "blocks_done" / "c" / "2").write_bytes(content)
    again = fit(store=store, nodes_per_block=10)
    assert again.fit_info_["n_blocks_resumed"] == 4
    assert np.array_equal(again.divergences_, expected.divergences_)
    assert not verify_store(store).damaged


def test_damaged_samples_in_the_store_are_copied_again(tmp_path, monkeypatch):
    """A Dask array is copied into the store; what an interrupted call left of that may be damaged."""
    lazy, store = da.from_array(X, chunks=(20, 4)), tmp_path / "model.zarr"
    with monkeypatch.context() as patch:
        patch.setattr(fit_graphs, "fit_blocks", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit(lazy, store=store)
    (chunk,) = (store / "samples" / "c").rglob("0/0")
    chunk.write_bytes(b"")
    assert np.array_equal(fit(lazy, store=store).divergences_, fit().divergences_)


def test_what_comes_too_late_does_not_spoil_a_finished_model(tmp_path):
    """A worker that was frozen goes on when the store is finished, and finds the samples in it gone."""
    store = tmp_path / "model.zarr"
    fit(store=store)
    unfinish(store)
    late = ModelStore.open(str(store), "r+", finished=False)
    fit(store=store)
    with pytest.raises(StoreWriteError, match="was finished"):
        late.write_block(NodeBlock(0, 0, 50), {"statistics": np.zeros((4, 2, 50))})
    with pytest.raises(StoreWriteError, match="was finished while this was computed"):
        late.check_staged()
    assert not verify_store(store).damaged


@pytest.mark.parametrize("kind", ["X.npy", "X.zarr"])
def test_samples_that_go_away_take_no_work_with_them(kind, tmp_path, monkeypatch):
    """A share that is unmounted in the middle: what was done from it stays, and the same call goes on."""
    np.save(tmp_path / "X.npy", X)
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(20, 4))
    store, block, begun = tmp_path / "model.zarr", tasks.fit_block, []

    def lose_samples(job, samples, probes, index):
        begun.append(index)
        if len(begun) == 4:
            (tmp_path / kind).rename(tmp_path / "away")
        return block(job, samples, probes, index)

    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(tasks, "fit_block", lose_samples)
        patch.setattr(FitPlan, "keeps_preprocessed", False)
        with pytest.raises(InvalidInputError, match="there is no"):
            fit(tmp_path / kind, store=store, nodes_per_block=10)
    (tmp_path / "away").rename(tmp_path / kind)
    assert fit(tmp_path / kind, store=store, nodes_per_block=10).fit_info_["n_blocks_resumed"] == 3
