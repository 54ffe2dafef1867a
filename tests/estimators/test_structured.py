"""Fits by structured projections: against the oracle, the same bits for every layout, and what a model then offers."""

import dask
import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from small import chunk_files, fit, unfinish

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreExistsError
from fxdask.kernels.structured import StructuredNodes
from fxdask.tasks.telemetry import resident_bytes

NODES = 600  # of blocks of 256, the last of which is not full


@pytest.fixture(scope="module")
def twenty():
    """400 samples of three classes; 20 features are no power of two."""
    y = np.arange(400) % 3
    rng = np.random.default_rng(2)
    X = rng.standard_normal((400, 20)) * (1 + 0.5 * y[:, None]) + 0.3 * y[:, None]
    return X.astype(np.float32), y


@pytest.fixture(scope="module")
def fitted(twenty, tmp_path_factory):
    """A model whose store has the weights and projections of all nodes."""
    store = tmp_path_factory.mktemp("structured") / "model.zarr"
    return structured(store=store, keep_projections="all", keep_weights=True).fit(*twenty)


def structured(n_nodes=NODES, n_selected=4, **parameters):
    return FisherNetworkClassifier(n_nodes, n_selected, projection="structured", **parameters)


def whole_matrix(n_features, n_nodes=NODES, seed=0):
    """(node, feature) weights of the oracle."""
    per_block = len(oracles.structured_weights(seed, 0, n_features))
    blocks = [oracles.structured_weights(seed, block, n_features) for block in range(-(-n_nodes // per_block))]
    return np.concatenate(blocks)[:n_nodes]


def assert_same(one, other, X):
    assert one.projection_ == other.projection_
    for name in ("divergences_", "selected_nodes_", "feature_importances_"):
        assert getattr(one, name).tobytes() == getattr(other, name).tobytes(), name
    assert one.network_.projections.tobytes() == other.network_.projections.tobytes()
    assert np.array_equal(one.predict_log_proba(X), other.predict_log_proba(X))


@pytest.mark.parametrize(("n_features", "how"), [(16, None), (20, "sample"), (256, None), (300, None)])
def test_weights_and_divergences_match_the_oracle(n_features, how):
    rng = np.random.default_rng(n_features)
    y = np.arange(90) % 2
    X = rng.standard_normal((90, n_features)) * (1 + y[:, None]) + 0.3 * y[:, None]
    X -= X.mean(axis=0)
    n_nodes = len(oracles.structured_weights(0, 0, n_features)) + 40
    clf = structured(n_nodes, 3, normalize=how, priors="equal").fit(X, y)
    W = whole_matrix(n_features, n_nodes)
    assert np.array_equal(clf.weights(np.arange(n_nodes)), W)
    assert np.array_equal(clf.weights([n_nodes - 1, 0, 7]), W[[n_nodes - 1, 0, 7]])
    some = np.sort(rng.choice(n_nodes, 40, replace=False))
    want = oracles.Network(W[some], X, y, n_selected=3, priors=[0.5, 0.5], how=how)
    np.testing.assert_allclose(clf.divergences_[:, some], want.divergences, rtol=2e-5, atol=2e-5)
    best = np.argsort(-clf.divergences_, axis=1, kind="stable")[:, :3]
    assert np.array_equal(np.sort(clf.selected_nodes_), np.sort(best))


@settings(max_examples=settings.default.max_examples // 2)
@given(
    nodes=st.integers(3, 700),
    per_block=st.integers(2, 500),
    samples=st.integers(8, 1_000),
    features=st.sampled_from([16, 17, 256, 257]),
    row_chunk=st.integers(3, 900),
    how=st.sampled_from([None, "sample", "feature"]),
    workers=st.integers(1, 4),
)
def test_block_sizes_chunks_and_threads_change_no_value(nodes, per_block, samples, features, row_chunk, how, workers):
    X = np.random.default_rng(samples).standard_normal((samples, features)).astype(np.float32)
    y = np.arange(samples) % 2
    one = structured(nodes, 3, normalize=how).fit(X, y)
    chunked = da.from_array(X, chunks=(row_chunk, max(1, features // 3)))
    with dask.config.set(scheduler="threads", num_workers=workers):
        per_block = max(per_block, nodes // 10 + 1)
        other = structured(nodes, 3, normalize=how, nodes_per_block=per_block).fit(chunked, y)
    assert_same(one, other, X)
    assert np.array_equal(one.responses(X[0], X_train=X), other.responses(X[0], X_train=chunked))


def test_a_larger_network_contains_the_smaller(fitted, twenty):
    small = structured(300).fit(*twenty)
    assert np.array_equal(small.divergences_, fitted.divergences_[:, :300])


def test_the_store_has_the_weights_and_loads_as_the_same_model(fitted, twenty, tmp_path):
    X, _ = twenty
    assert np.array_equal(zarr.open_array(f"{fitted.store_}/weights", mode="r")[:], whole_matrix(20))
    loaded = fxdask.load(fitted.store_)
    assert_same(loaded, fitted, X)
    assert loaded.projection == loaded.projection_ == "structured"
    assert np.array_equal(loaded.weights([599, 3]), fitted.weights([599, 3]))
    fxdask.batch_score(fitted.store_, X, tmp_path / "scores.zarr")
    scored = zarr.open_group(tmp_path / "scores.zarr", mode="r")
    assert np.array_equal(fitted.classes_[scored["labels"][:]], fitted.predict(X))


def test_an_unfinished_fit_is_resumed(fitted, twenty, tmp_path):
    X, y = twenty
    store = tmp_path / "model.zarr"
    structured(store=store, nodes_per_block=100).fit(X, y)
    before = chunk_files(store)
    unfinish(store)
    (store / "blocks_done" / "c" / "2").unlink()
    resumed = structured(store=store, nodes_per_block=100).fit(X, y)
    assert resumed.fit_info_["n_blocks_resumed"] == 5
    assert_same(resumed, fitted, X)
    assert chunk_files(store) == before


def test_the_projection_is_part_of_a_job(twenty, tmp_path):
    X, y = twenty
    store = tmp_path / "model.zarr"
    structured(store=store).fit(X, y)
    unfinish(store)
    with pytest.raises(StoreExistsError, match="projection"):
        FisherNetworkClassifier(NODES, 4, store=store).fit(X, y)


def test_responses_of_all_nodes_follow_the_definition(fitted, twenty):
    X, y = twenty
    points = X[:2] * 1.1
    responses = fitted.responses(points)
    assert np.array_equal(structured().fit(X, y).responses(points, X_train=X), responses)
    assert responses.shape == (2, 3, NODES)
    origin = X.mean(axis=0, dtype=float)
    for i in (0, 255, 256, 599):
        w = whole_matrix(20)[i]
        for k in range(3):
            own = np.float32((X[y == k] - origin) @ w)
            width = oracles.silverman(own, oracles.mad(own))
            wanted = oracles.log_density(float((points[0] - origin) @ w), own, width)
            assert np.log(responses[0, k, i]) == pytest.approx(wanted, abs=2e-4)


def test_a_joint_selection_has_the_same_bits_for_every_block_size(twenty, tmp_path):
    X, y = twenty
    one = structured(selection="joint").fit(X, y)
    other = structured(selection="joint", nodes_per_block=70, store=tmp_path / "model.zarr").fit(
        da.from_array(X, 130), y
    )
    assert_same(one, other, X)
    assert np.array_equal(one.overlaps_, other.overlaps_)
    assert np.array_equal(fxdask.load(tmp_path / "model.zarr").predict(X), one.predict(X))
    assert one.score(X, y) > 0.6


def test_importances_find_the_features_that_differ():
    rng = np.random.default_rng(0)
    y = np.arange(1_500) % 2
    X = rng.standard_normal((1_500, 40)).astype(np.float32)
    X[y == 1, :4] *= 2.5
    clf = structured(1_024, 4).fit(X, y)
    assert set(np.argsort(clf.feature_importances_)[-4:].tolist()) == {0, 1, 2, 3}


def test_the_model_tells_its_projection(fitted, twenty, tmp_path):
    assert "structured" in repr(fitted)
    fitted.report(tmp_path / "model.html", *twenty)
    assert "structured" in (tmp_path / "model.html").read_text()
    assert fitted.plan(*twenty).facts()["projection"] == "structured"


def test_few_features_get_gaussian_weights():
    X, y = np.random.default_rng(0).standard_normal((40, 15)), np.arange(40) % 2
    clf = fit(X, y, projection="structured")
    gaussian = fit(X, y)
    assert clf.projection == "structured"
    assert clf.projection_ == "gaussian"
    assert np.array_equal(clf.divergences_, gaussian.divergences_)
    assert np.array_equal(clf.weights([3, 1]), gaussian.weights([3, 1]))


def test_an_unknown_projection_is_refused():
    with pytest.raises(ValueError, match="projection='sparse' is not known"):
        fit(projection="sparse")


@pytest.fixture(scope="module")
def many():
    """So many samples that the values of 256 nodes take 30 MiB."""
    rng = np.random.default_rng(3)
    y = (rng.random(30_000) < 0.35).astype(int)
    X = rng.standard_normal((30_000, 20)).astype(np.float32)
    X[y == 1, :4] *= 1.5
    return X, y, structured(256, 5, combine="sum").fit(X, y)


@pytest.mark.parametrize("megabytes", [28, 16])
def test_a_streamed_fit_transforms_each_sample_once_in_a_pass(many, megabytes, monkeypatch):
    X, y, whole = many
    transformed = []
    transform = StructuredNodes.parts

    def counted(nodes, samples):
        transformed.append(len(samples) * len(nodes._blocks))
        return transform(nodes, samples)

    monkeypatch.setattr(StructuredNodes, "parts", counted)
    with dask.config.set(num_workers=1):
        # The memory of numba counts once, whether an earlier test has loaded it or not.
        limit = int((resident_bytes() + megabytes * 2**20) / 0.6)
        clf = structured(256, 5, combine="sum", memory_limit=limit)
        plan = clf.plan(X, y)
        assert plan.is_streamed
        # All 256 nodes have one pass, unless not even the values inside their brackets fit.
        assert (plan.passes == 1) == (megabytes == 28)
        clf.fit(X, y)
    assert clf.fit_info_["passes"] == plan.passes
    assert clf.fit_info_["rows_repeated"] == 0
    n_padded = sum(transformed) / plan.passes - len(X) - sum(plan.probe_counts)
    assert 0 <= n_padded < 64
    assert_same(clf, whole, X[:500])
