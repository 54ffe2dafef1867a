"""Fits with the joint rule and the joint selection: against the oracle, the same bits in every layout, resumed."""

import contextlib
from unittest.mock import Mock

import dask
import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import MemoryPlanError
from fxdask.tasks.telemetry import resident_bytes
from fxdask.workflows import pool

N_NODES = 60


def drawn(n_samples=240):
    """Three classes of unequal size that overlap, in six correlated features."""
    rng = np.random.default_rng(3)
    y = rng.choice(3, n_samples, p=[0.5, 0.3, 0.2])
    X = rng.standard_normal((n_samples, 6)) @ rng.standard_normal((6, 6)) * (1 + y[:, None]) + y[:, None]
    return X.astype(np.float32), y


def fit(X, y, **parameters):
    options = {"n_selected": 3, "combine": "joint", "selection": "joint", "normalize": None, **parameters}
    return FisherNetworkClassifier(N_NODES, **options).fit(X, y)


@pytest.fixture(scope="module")
def data():
    return drawn()


@pytest.fixture(scope="module")
def reference(data):
    return fit(*data)


def assert_same(found, wanted, X):
    assert np.array_equal(found.selected_nodes_, wanted.selected_nodes_)
    assert np.array_equal(found.overlaps_, wanted.overlaps_)
    for name, learned in wanted.network_.learned.items():
        assert np.array_equal(found.network_.learned[name], learned), name
    assert found.temperature_ == wanted.temperature_
    assert np.array_equal(found.decision_function(X), wanted.decision_function(X))


def test_a_joint_selection_equals_the_oracle(data, reference):
    X, y = data
    weights = reference.weights(np.arange(N_NODES)).astype(np.float64)
    z = weights @ (X - X.mean(axis=0)).T.astype(np.float64)
    own = [z[:, y == k] for k in range(3)]
    location = np.array([[oracles.interquartile_mean(row) for row in values] for values in own])
    spread = np.array([[oracles._mad64(row) for row in values] for values in own])
    correlations = [oracles.shrunk_correlations(values)[0] for values in own]
    counts = [values.shape[1] for values in own]
    chosen, overlaps = oracles.joint_selection(location, spread, correlations, counts, reference.priors_, 9)
    assert reference.selected_nodes_.tolist() == [chosen]
    np.testing.assert_allclose(reference.overlaps_, overlaps, rtol=1e-4)


def test_the_learned_correlations_equal_the_oracle(data, reference):
    X, y = data
    network = reference.network_
    z = network.weights.astype(np.float64) @ (X - X.mean(axis=0)).T.astype(np.float64)
    for k in range(3):
        correlation, shrinkage = oracles.shrunk_correlations(z[:, y == k])
        inner = np.linalg.inv(correlation) - np.eye(len(correlation))
        np.testing.assert_allclose(network.learned["precision"][k], inner, rtol=1e-6, atol=1e-6)
        assert network.learned["shrinkage"][k] == pytest.approx(shrinkage, rel=1e-9)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    nodes_per_block=st.integers(1, N_NODES),
    threads=st.integers(1, 4),
    chunk=st.integers(1, 240),
    form=st.sampled_from(["numpy", "dask", "zarr"]),
)
def test_no_layout_changes_a_bit(data, reference, tmp_path_factory, nodes_per_block, threads, chunk, form):
    X, y = data
    samples = X
    if form == "dask":
        samples = da.from_array(X, chunks=(chunk, 3))
    elif form == "zarr":
        folder = tmp_path_factory.mktemp("layout")
        samples = zarr.create_array(folder / "X.zarr", data=X, chunks=(chunk, 6))
    with dask.config.set(num_workers=threads):
        assert_same(fit(samples, y, nodes_per_block=nodes_per_block), reference, X)


def test_a_store_holds_the_same_model(data, reference, tmp_path):
    X, y = data
    assert_same(fit(X, y, store=tmp_path / "model.zarr"), reference, X)
    loaded = fxdask.load(tmp_path / "model.zarr")
    assert_same(loaded, reference, X)
    assert "pool" not in zarr.open_group(tmp_path / "model.zarr", mode="r")


@pytest.mark.parametrize("selection", ["top", "joint"])
def test_a_streamed_fit_gives_the_same_model(selection):
    X, y = drawn(60_000)
    tight = fit(X, y, selection=selection, memory_limit=int((resident_bytes() + 60 * 2**20) / 0.6))
    assert tight.fit_info_["plan"]["values_held"] == "of a chunk of samples"
    assert_same(tight, fit(X, y, selection=selection), X[:500])


@pytest.mark.parametrize("stage", ["measure_pool", "sum_pool", "select_jointly"])
def test_an_interrupted_selection_is_resumed(stage, data, reference, tmp_path, monkeypatch):
    X, y = data
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(pool, stage, Mock(side_effect=KeyboardInterrupt))
        fit(X, y, store=tmp_path / "model.zarr")
    resumed = fit(X, y, store=tmp_path / "model.zarr")
    assert resumed.fit_info_["n_blocks_resumed"] == resumed.fit_info_["n_blocks"]
    assert_same(resumed, reference, X)


def test_damaged_candidates_are_measured_again(data, reference, tmp_path, monkeypatch):
    X, y = data
    with monkeypatch.context() as patch, contextlib.suppress(KeyboardInterrupt):
        patch.setattr(pool, "sum_pool", Mock(side_effect=KeyboardInterrupt))
        fit(X, y, store=tmp_path / "model.zarr")
    (chunk,) = (path for path in tmp_path.rglob("pool/scores/c/**/*") if path.is_file())
    content = bytearray(chunk.read_bytes())
    content[100] ^= 1
    chunk.write_bytes(content)
    assert_same(fit(X, y, store=tmp_path / "model.zarr"), reference, X)


def test_too_many_classes_for_a_joint_selection_are_refused_with_both_numbers():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 100
    clf = FisherNetworkClassifier(2_000, selection="joint", memory_limit="8 GiB")
    with pytest.raises(
        MemoryPlanError, match=r"1,000 nodes among .* for 100 classes needs .* GiB but .* selection=.top"
    ):
        clf.fit(rng.standard_normal((400, 5)), y)


def test_a_pool_smaller_than_the_selection_is_refused(data):
    with pytest.raises(ValueError, match="pool_size is 2 but 3 nodes of each class are to be selected"):
        fit(*data, pool_size=2)
