"""Late writes, power failures, and samples that disappear during a fit."""

from functools import partial
from pathlib import Path
from unittest.mock import Mock

import dask
import numpy as np
import pytest
import zarr
from distributed import Client
from small import X, Y, fit, unfinish

from fxdask.errors import InvalidInputError, StoreWriteError
from fxdask.execution import fit as fit_graphs
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import NodeBlock
from fxdask.store import model as model_store
from fxdask.store import scores as score_store
from fxdask.store.model import ModelStore
from fxdask.store.paths import hidden_url
from fxdask.store.scores import ScoreStore
from fxdask.store.verify import verify_store
from fxdask.tasks import fit as tasks
from fxdask.workflows import staging


def late_write(kind, store):
    """A function that writes a part of an unfinished store."""
    if kind == "model":
        fit(store=store)
        unfinish(store)
        statistics = zarr.open_group(store)["statistics"][:]
        late = ModelStore.open(str(store), "r+", finished=False)
        return partial(late.write_block, NodeBlock(0, 0, 50), {"statistics": statistics})
    late = ScoreStore.create(str(store), 40, 40, np.arange(2), {})
    return partial(late.write_chunk, 0, Y, np.zeros((40, 2)))


@pytest.mark.parametrize("kind", ["model", "scores"])
def test_a_late_write_does_not_create_a_moved_store_again(kind, tmp_path):
    """A worker that lost its connection writes after other workers have finished its part."""
    store = tmp_path / "store.zarr"
    write = late_write(kind, store)
    write()
    store.rename(tmp_path / "moved.zarr")
    with pytest.raises(StoreWriteError, match="was finished, moved or removed while this part was computed"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["moved.zarr"]


@pytest.mark.parametrize("content", [b"", b"\0" * 12])
def test_a_damaged_mark_counts_as_missing(content, tmp_path):
    """A power failure may leave an empty file or zeros."""
    store = tmp_path / "model.zarr"
    expected = fit(store=store, nodes_per_block=10)
    unfinish(store)
    (store / "blocks_done" / "c" / "2").write_bytes(content)
    again = fit(store=store, nodes_per_block=10)
    assert again.fit_info_["n_blocks_resumed"] == 4
    assert np.array_equal(again.divergences_, expected.divergences_)
    assert not verify_store(store).damaged


@pytest.mark.parametrize("kind", ["model", "scores"])
def test_a_write_that_was_suspended_while_its_store_moved_is_withdrawn(kind, tmp_path, monkeypatch):
    """A worker is stopped after it has looked whether its store is still there, and goes on much later."""
    store = Path(hidden_url(str(tmp_path / "store.zarr"), "job"))
    module = model_store if kind == "model" else score_store
    write_together = module.write_together

    def move_before(*parts, **named):
        store.rename(tmp_path / "store.zarr")
        write_together(*parts, **named)

    write = late_write(kind, store)
    monkeypatch.setattr(module, "write_together", move_before)
    with pytest.raises(StoreWriteError, match="was finished, moved or removed while this part was computed"):
        write()
    assert [path.name for path in tmp_path.iterdir()] == ["store.zarr"]


def test_files_at_the_path_of_a_store_that_was_moved_away_are_kept(tmp_path, monkeypatch):
    store, write_together = tmp_path / "store.zarr", score_store.write_together

    def replace_before(*parts):
        store.rename(tmp_path / "moved.zarr")
        store.mkdir()
        (store / "notes.txt").write_text("mine")
        write_together(*parts)

    late = ScoreStore.create(str(store), 40, 40, np.arange(2), {})
    monkeypatch.setattr(score_store, "write_together", replace_before)
    with pytest.raises(StoreWriteError, match="was finished, moved or removed"):
        late.write_chunk(0, Y, np.zeros((40, 2)))
    assert (store / "notes.txt").read_text() == "mine"


def test_an_array_is_copied_beside_the_store_while_workers_read_it(tmp_path, monkeypatch):
    """A killed call leaves its copy, which may be damaged; the next call removes it and copies again."""
    store, left = tmp_path / "model.zarr", tmp_path / ".model.zarr.samples-of-a-killed-call"
    left.mkdir()
    (left / "00000000.npy").write_bytes(b"")
    with Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None):
        with monkeypatch.context() as patch:
            patch.setattr(fit_graphs, "fit_blocks", Mock(side_effect=KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                fit(store=store)
        assert [path.name for path in tmp_path.iterdir()] == ["model.zarr"]
        again = fit(store=store)
    assert [path.name for path in tmp_path.iterdir()] == ["model.zarr"]
    assert np.array_equal(again.divergences_, fit().divergences_)


def test_an_array_that_changes_before_it_is_copied_is_refused(tmp_path, monkeypatch):
    samples, copy = X.copy(), staging.copy_array

    def change(array, *arguments):
        array[3] += 1
        return copy(array, *arguments)

    monkeypatch.setattr(staging, "copy_array", change)
    with (
        Client(processes=False, n_workers=1, threads_per_worker=1, dashboard_address=None),
        pytest.raises(InvalidInputError, match="changed"),
    ):
        fit(samples, store=tmp_path / "model.zarr")
    assert not list(tmp_path.iterdir())


def test_a_finished_model_refuses_late_writes(tmp_path):
    """A worker that was suspended continues after the store is finished."""
    store = tmp_path / "model.zarr"
    fit(store=store)
    unfinish(store)
    late = ModelStore.open(str(store), "r+", finished=False)
    fit(store=store)
    with pytest.raises(StoreWriteError, match="was finished"):
        late.write_block(NodeBlock(0, 0, 50), {"statistics": np.zeros((4, 2, 50))})
    assert not verify_store(store).damaged


@pytest.mark.parametrize("kind", ["X.npy", "X.zarr"])
def test_a_fit_resumes_after_its_samples_were_unreachable(kind, tmp_path, monkeypatch):
    """A share is unmounted during a fit: finished blocks stay, and the same call resumes."""
    np.save(tmp_path / "X.npy", X)
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(20, 4))
    store, fit_block, started = tmp_path / "model.zarr", tasks.fit_block, []

    def lose_samples(job, samples, probes, index):
        started.append(index)
        if len(started) == 4:
            (tmp_path / kind).rename(tmp_path / "away")
        return fit_block(job, samples, probes, index)

    with monkeypatch.context() as patch, dask.config.set(scheduler="synchronous"):
        patch.setattr(tasks, "fit_block", lose_samples)
        patch.setattr(FitPlan, "keeps_preprocessed", False)
        with pytest.raises(InvalidInputError, match="there is no"):
            fit(tmp_path / kind, store=store, nodes_per_block=10)
    (tmp_path / "away").rename(tmp_path / kind)
    assert fit(tmp_path / kind, store=store, nodes_per_block=10).fit_info_["n_blocks_resumed"] == 3
