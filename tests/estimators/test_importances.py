"""``feature_importances_``: which features it finds, where it comes from, and that the layout changes no bit."""

import pickle
import shutil

import dask
import dask.array as da
import numpy as np
import oracles
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError
from sklearn.feature_selection import SelectFromModel
from small import fit, rewrite_manifest

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreFormatError, WeightStreamError, ZeroSpreadWarning
from fxdask.execution import importance
from fxdask.kernels import projections
from fxdask.store.verify import verify_store


def best(importances, count):
    return set(np.argsort(importances)[-count:].tolist())


def variances_differ(seed, n_features, informative, ratio=2.0):
    """4,000 samples of equal means; the deviation of each class is multiplied by the ratio at its features."""
    rng = np.random.default_rng(seed)
    y = np.arange(4_000) % len(informative)
    X = rng.standard_normal((4_000, n_features), dtype=np.float32)
    for k, features in enumerate(informative):
        X[np.ix_(y == k, features)] *= ratio
    return X, y


@pytest.fixture(scope="module")
def ten_of_500():
    """Ten of 500 features differ between two classes, in their variances only."""
    features = np.random.default_rng(1).choice(500, 10, replace=False)
    return (*variances_differ(0, 500, [[], features]), set(features.tolist()))


# What it finds


def test_features_that_differ_in_variance_only_are_found(ten_of_500):
    X, y, informative = ten_of_500
    clf = FisherNetworkClassifier(random_state=0).fit(X, y)
    importances = clf.feature_importances_
    assert importances.shape == (500,)
    assert importances.sum() == pytest.approx(1)
    assert (importances >= 0).all()
    assert len(best(importances, 10) & informative) >= 9
    selected = SelectFromModel(clf, prefit=True, max_features=10, threshold=-np.inf)
    assert len(set(selected.get_support(indices=True).tolist()) & informative) >= 9
    assert selected.transform(X[:5]).shape == (5, 10)


def test_selecting_features_fits_the_classifier(ten_of_500):
    X, y, informative = ten_of_500
    selector = SelectFromModel(FisherNetworkClassifier(), max_features=10, threshold=-np.inf).fit(X, y)
    chosen = selector.get_support(indices=True)
    assert len(set(chosen.tolist()) & informative) >= 9
    few = FisherNetworkClassifier(2_000).fit(selector.transform(X[:2_000]), y[:2_000])
    assert few.feature_importances_.shape == (10,)


@pytest.mark.parametrize("ratio", [0.5, 2])
def test_features_of_three_classes_are_found(ratio):
    informative = [[3, 30, 60], [11, 41, 71], [7, 77, 97]]
    X, y = variances_differ(2, 100, informative, ratio)
    importances = FisherNetworkClassifier(5_000).fit(X, y).feature_importances_
    assert best(importances, 9) == set(np.ravel(informative).tolist())


def test_features_that_differ_in_mean_are_found():
    rng = np.random.default_rng(3)
    X, y = rng.standard_normal((2_000, 100)), np.arange(2_000) % 2
    X[y == 1, :5] += 1
    assert best(FisherNetworkClassifier(5_000).fit(X, y).feature_importances_, 5) == {0, 1, 2, 3, 4}


def test_equal_features_share_their_importance():
    rng = np.random.default_rng(4)
    X, y = rng.standard_normal((1_000, 30)), np.arange(1_000) % 2
    X[y == 1, :2] *= 3
    alone = FisherNetworkClassifier(4_000).fit(X, y).feature_importances_
    X[:, 2:6] = X[:, 1:2]
    shared = FisherNetworkClassifier(4_000).fit(X, y).feature_importances_
    assert alone[1] > 2 * shared[1:6].max()
    assert shared[1:6].min() > 3 * shared[6:].max()


def test_importances_match_the_oracle(three_blobs):
    X, y = three_blobs
    clf = FisherNetworkClassifier(300, 3).fit(X, y)
    found = oracles.feature_correlations(clf.weights(np.arange(300)), clf.divergences_)
    np.testing.assert_allclose(clf.feature_importances_, oracles.feature_importances(found), atol=1e-9)


def test_a_class_of_infinite_divergences_does_not_count():
    """A constant class is perfectly separated at every node, so no feature matters more than another for it."""
    rng = np.random.default_rng(5)
    X, y = rng.standard_normal((300, 4)), np.arange(300) % 2
    X[y == 0] = 0
    with pytest.warns(ZeroSpreadWarning):
        clf = FisherNetworkClassifier(200, 3).fit(X, y)
    assert np.isinf(clf.divergences_[0]).all()
    assert np.isfinite(clf.divergences_[1]).all()
    found = oracles.feature_correlations(clf.weights(np.arange(200)), clf.divergences_)
    assert not np.any(found[0])
    np.testing.assert_allclose(clf.feature_importances_, oracles.feature_importances(found), atol=1e-9)


@pytest.mark.parametrize("n_nodes", [1, 2])
def test_too_few_nodes_make_all_features_equal(n_nodes, two_blobs):
    clf = FisherNetworkClassifier(n_nodes, 1).fit(*two_blobs)
    np.testing.assert_allclose(clf.feature_importances_, np.full(6, 1 / 6))


def test_before_a_fit_there_are_none():
    clf = FisherNetworkClassifier()
    assert not hasattr(clf, "feature_importances_")
    with pytest.raises(NotFittedError, match="not fitted yet"):
        _ = clf.feature_importances_


# Layout


@settings(max_examples=10)
@given(
    seed=st.integers(0, 1_000),
    n_features=st.integers(1, 40),
    n_classes=st.integers(2, 3),
    nodes_per_block=st.integers(7, 400),
    n_threads=st.integers(1, 4),
    chunk=st.integers(30, 200),
)
def test_the_layout_changes_no_bit(seed, n_features, n_classes, nodes_per_block, n_threads, chunk):
    rng = np.random.default_rng(seed)
    y = np.arange(200) % n_classes
    X = (rng.standard_normal((200, n_features)) * (1 + y[:, None])).astype(np.float32)
    want = FisherNetworkClassifier(400, 3).fit(X, y).feature_importances_
    data = da.from_array(X, chunks=(chunk, -1))
    with dask.config.set(num_workers=n_threads):
        found = FisherNetworkClassifier(400, 3, nodes_per_block=nodes_per_block).fit(data, y).feature_importances_
    assert found.tobytes() == want.tobytes()


def test_several_ranges_of_nodes_give_the_same_bits(monkeypatch, two_blobs):
    monkeypatch.setattr(importance, "WEIGHT_BYTES_PER_RANGE", 6 * 4 * 128)
    found = set()
    for nodes_per_block in (100, 384, 1_000):
        for n_threads in (1, 3):
            with dask.config.set(num_workers=n_threads):
                clf = FisherNetworkClassifier(3_000, 3, nodes_per_block=nodes_per_block).fit(*two_blobs)
            found.add(clf.feature_importances_.tobytes())
    assert len(found) == 1


# Stores


@pytest.fixture(scope="module")
def stored(two_blobs, tmp_path_factory):
    path = tmp_path_factory.mktemp("stored") / "model.zarr"
    return FisherNetworkClassifier(500, 3, store=path, nodes_per_block=100).fit(*two_blobs), path


def as_format_7(path, copy):
    """A copy of a store as format 7 wrote it, without importances."""
    shutil.copytree(path, copy)
    group = zarr.open_group(copy)
    group.attrs["fxdask"] = {**group.attrs["fxdask"], "format": 7}
    del group["importances"]
    rewrite_manifest(copy)
    return copy


def test_a_store_has_the_importances(stored, monkeypatch):
    model, path = stored
    array = zarr.open_group(path, mode="r")["importances"]
    assert array.shape == (2, 6)
    monkeypatch.setattr(importance, "delayed", None)
    loaded = fxdask.load(path)
    assert loaded.feature_importances_.tobytes() == model.feature_importances_.tobytes()


def test_an_older_store_computes_them_once(stored, tmp_path, monkeypatch):
    model, path = stored
    older = fxdask.load(as_format_7(path, tmp_path / "older.zarr"))
    assert older.feature_importances_.tobytes() == model.feature_importances_.tobytes()
    monkeypatch.setattr(importance, "delayed", None)
    assert older.feature_importances_.tobytes() == model.feature_importances_.tobytes()
    verify_store(str(tmp_path / "older.zarr"))


def test_an_older_store_that_is_finished_now_has_them(stored, two_blobs, tmp_path):
    """The unfinished store keeps its format number when it is resumed."""
    model, path = stored
    copy = as_format_7(path, tmp_path / "older.zarr")
    group = zarr.open_group(copy)
    group.attrs["fxdask"] = {**group.attrs["fxdask"], "finished": False}
    del group["manifest"]
    resumed = FisherNetworkClassifier(500, 3, store=copy).fit(*two_blobs)
    assert resumed.fit_info_["n_blocks_resumed"] == 5
    assert zarr.open_group(copy, mode="r")["importances"].shape == (2, 6)
    assert fxdask.load(copy).feature_importances_.tobytes() == model.feature_importances_.tobytes()


def test_an_older_store_of_other_weights_is_refused(stored, tmp_path):
    copy = as_format_7(stored[1], tmp_path / "older.zarr")
    zarr.open_group(copy)["canaries"][0, 0] += 1
    rewrite_manifest(copy)
    with pytest.raises(WeightStreamError, match="draws other weights"):
        _ = fxdask.load(copy).feature_importances_


def test_a_store_that_lacks_them_is_damaged(stored, tmp_path):
    shutil.copytree(stored[1], tmp_path / "model.zarr")
    del zarr.open_group(tmp_path / "model.zarr")["importances"]
    rewrite_manifest(tmp_path / "model.zarr")
    with pytest.raises(StoreFormatError, match="importances"):
        fxdask.load(tmp_path / "model.zarr")


def test_a_fit_into_a_finished_store_draws_no_weights(stored, two_blobs, monkeypatch):
    model, path = stored
    monkeypatch.setattr(projections, "weight_block", None)
    monkeypatch.setattr(importance, "delayed", None)
    again = FisherNetworkClassifier(500, 3, store=path).fit(*two_blobs)
    assert again.feature_importances_.tobytes() == model.feature_importances_.tobytes()


def test_a_pickle_has_them(stored):
    model, _ = stored
    copy = pickle.loads(pickle.dumps(model))
    assert copy.feature_importances_.tobytes() == model.feature_importances_.tobytes()


def test_a_verbose_fit_shows_their_progress(capsys):
    fit(verbose=True)
    assert "weighing features" in capsys.readouterr().err
