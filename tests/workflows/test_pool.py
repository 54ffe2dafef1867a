"""Joint selections in stores: any split into tasks and chunks, interruptions in the middle of a stage, damage."""

import shutil
from unittest.mock import Mock

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from small import chunk_files

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreFormatError, StoreUnfinishedError
from fxdask.planning import pool_plan
from fxdask.tasks import pool as tasks
from fxdask.workflows import pool

N_SAMPLES, N_NODES = 240, 60
RNG = np.random.default_rng(3)
Y = RNG.choice(3, N_SAMPLES, p=[0.5, 0.3, 0.2])
X = (RNG.standard_normal((N_SAMPLES, 6)) @ RNG.standard_normal((6, 6)) * (1 + Y[:, None]) + Y[:, None]).astype("f4")


def fit(samples=X, **parameters):
    options = {"selection": "joint", "normalize": None, "nodes_per_block": 20, **parameters}
    return FisherNetworkClassifier(N_NODES, 3, **options).fit(samples, Y)


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """A fit into a store without any interruption, all candidates in one task."""
    folder = tmp_path_factory.mktemp("reference")
    return fit(store=folder / "model.zarr")


def assert_same_bytes(store, reference):
    assert chunk_files(store) == chunk_files(type(store)(reference.store_))
    header, wanted = (zarr.open_group(path).attrs["fxdask"] for path in (store, reference.store_))
    assert header["temperature"] == wanted["temperature"]


def split(patch, candidates_per_task, samples_per_sum=N_SAMPLES, samples_per_chunk=N_SAMPLES):
    """Let a pool have tasks and chunks of these sizes, as other memory or another number of threads would."""
    patch.setattr(pool_plan, "_candidates_that_fit", lambda *_: candidates_per_task)
    patch.setattr(pool_plan, "SAMPLES_PER_SUM", samples_per_sum)
    patch.setattr(pool_plan, "SMALLEST_SCORE_CHUNK", samples_per_chunk)
    patch.setattr(pool_plan, "MOST_SCORE_CHUNKS", N_SAMPLES)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    candidates_per_task=st.integers(1, N_NODES),
    samples_per_sum=st.integers(1, N_SAMPLES),
    samples_per_chunk=st.integers(1, N_SAMPLES),
    form=st.sampled_from(["numpy", "dask", "zarr"]),
    row_chunk=st.integers(10, N_SAMPLES),
    in_store=st.booleans(),
)
def test_no_split_of_the_candidates_changes_a_byte(
    reference, tmp_path_factory, candidates_per_task, samples_per_sum, samples_per_chunk, form, row_chunk, in_store
):
    folder = tmp_path_factory.mktemp("split")
    samples = X
    if form == "dask":
        samples = da.from_array(X, chunks=(row_chunk, 4))
    elif form == "zarr":
        samples = zarr.create_array(folder / "X.zarr", data=X, chunks=(row_chunk, 5))
    with pytest.MonkeyPatch.context() as patch:
        split(patch, candidates_per_task, max(8, samples_per_sum), max(8, samples_per_chunk))
        found = fit(samples, store=folder / "model.zarr" if in_store else None)
    if in_store:
        assert_same_bytes(folder / "model.zarr", reference)
    for name in ("selected_nodes_", "overlaps_", "density_error_", "divergences_"):
        assert np.array_equal(getattr(found, name), getattr(reference, name)), name
    for name, wanted in reference.network_.learned.items():
        assert np.array_equal(found.network_.learned[name], wanted), name
    assert found.temperature_ == reference.temperature_
    assert np.array_equal(found.decision_function(X), reference.decision_function(X))
    shutil.rmtree(folder)


def interrupted(store, patch, n_measured):
    """A fit that is interrupted when so many tasks have measured their candidates, each with ten of them."""
    split(patch, 10, samples_per_chunk=100)
    rank, calls = tasks.rank_scores, []

    def rank_until_interrupted(values, **options):
        calls.append(values)
        if len(calls) > 3 * n_measured:  # one call for each class
            raise KeyboardInterrupt
        return rank(values, **options)

    with pytest.MonkeyPatch.context() as inner, dask.config.set(scheduler="synchronous"):
        inner.setattr(tasks, "rank_scores", rank_until_interrupted)
        with pytest.raises(KeyboardInterrupt):
            fit(store=store)
    with pytest.raises(StoreUnfinishedError):
        fxdask.load(store)


def counted(patch):
    """Count how many tasks measure their candidates from now on."""
    weights, calls = tasks.weights_of, []

    def drawn(*arguments):
        calls.append(arguments)
        return weights(*arguments)

    patch.setattr(tasks, "weights_of", drawn)
    return calls


@pytest.mark.parametrize("n_measured", [0, 1, 4])
def test_a_selection_interrupted_among_its_candidates_resumes(n_measured, reference, tmp_path, monkeypatch):
    store = tmp_path / "model.zarr"
    interrupted(store, monkeypatch, n_measured)
    assert len(list((store / "pool" / "statistics" / "c").rglob("[0-9]*"))) >= n_measured
    calls = counted(monkeypatch)
    resumed = fit(store=store)
    assert len(calls) == 6 - n_measured
    assert resumed.fit_info_["n_blocks_resumed"] == 3
    assert_same_bytes(store, reference)


def test_candidates_of_another_memory_limit_are_measured_again(reference, tmp_path, monkeypatch):
    """The chunks have another size then."""
    store = tmp_path / "model.zarr"
    interrupted(store, monkeypatch, 3)
    split(monkeypatch, 14, samples_per_chunk=64)
    calls = counted(monkeypatch)
    fit(store=store)
    assert len(calls) == 5
    assert_same_bytes(store, reference)


def test_candidates_of_another_pool_are_measured_again(reference, tmp_path, monkeypatch):
    """As if a version with another automatic size of the pool had been interrupted."""
    store = tmp_path / "model.zarr"
    with monkeypatch.context() as patch:
        patch.setattr("fxdask.workflows.settings.pool_size_for", lambda *_: 4)
        interrupted(store, patch, 1)
    fit(store=store)
    assert_same_bytes(store, reference)


DAMAGES = {
    "flipped": lambda file: file.write_bytes(bytes([file.read_bytes()[0] ^ 1]) + file.read_bytes()[1:]),
    "short": lambda file: file.write_bytes(file.read_bytes()[:-7]),
    "empty": lambda file: file.write_bytes(b""),
    "missing": lambda file: file.unlink(),
}


CHUNKS = ("pool/scores/c/1/2", "pool/statistics/c/0/0/3")


@pytest.mark.parametrize(
    ("damage", "chunk"),
    [
        pytest.param(damage, chunk, marks=[pytest.mark.full] if i % len(CHUNKS) != j else [])
        for i, damage in enumerate(DAMAGES)
        for j, chunk in enumerate(CHUNKS)
    ],
)
def test_damaged_candidates_alone_are_measured_again(damage, chunk, reference, tmp_path, monkeypatch):
    store = tmp_path / "model.zarr"
    split(monkeypatch, 10, samples_per_chunk=100)
    with monkeypatch.context() as patch:
        patch.setattr(pool, "sum_pool", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            fit(store=store)
    DAMAGES[damage](store / chunk)
    calls = counted(monkeypatch)
    fit(store=store)
    assert len(calls) == 1
    assert_same_bytes(store, reference)


@pytest.mark.parametrize("damage", DAMAGES)
def test_scores_that_are_lost_before_they_are_summed_are_not_read_as_zeros(damage, reference, tmp_path, monkeypatch):
    store = tmp_path / "model.zarr"
    split(monkeypatch, 10)
    add_up = pool.sum_pool

    def after_damage(*arguments):
        DAMAGES[damage](store / "pool" / "scores" / "c" / "2" / "0")
        return add_up(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(pool, "sum_pool", after_damage)
        with pytest.raises(StoreFormatError, match="damaged: pool/scores"):
            fit(store=store)
    fit(store=store)
    assert_same_bytes(store, reference)


def test_no_candidates_are_left_in_a_finished_store(reference):
    assert "pool" not in zarr.open_group(reference.store_, mode="r")
