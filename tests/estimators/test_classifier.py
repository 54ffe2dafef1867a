"""The classifier end to end: scikit-learn's checks, the oracle, other block sizes and chunks, degenerate data."""

import pickle
import shutil

import dask
import dask.array as da
import numpy as np
import oracles
import pandas as pd
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from fxdask import FisherNetworkClassifier
from fxdask.errors import FewUsableNodesWarning, InvalidInputError
from fxdask.kernels.density.bandwidth import sheather_jones


@parametrize_with_checks([FisherNetworkClassifier(n_nodes=300, n_selected=5)])
def test_scikit_learn_conventions(estimator, check):
    """All checks run; none is marked as an expected failure."""
    check(estimator)


# Against the oracle


@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 10_000),
    n_classes=st.integers(2, 3),
    per_class=st.integers(60, 120),
    features=st.integers(1, 30),
    nodes=st.integers(5, 40),
    how=st.sampled_from([None, "sample", "feature"]),
)
def test_divergences_and_selection_match_the_oracle(seed, n_classes, per_class, features, nodes, how):
    features = max(features, 3) if how == "sample" else features
    rng = np.random.default_rng(seed)
    y = rng.permutation(np.repeat(np.arange(n_classes), per_class))
    X = rng.standard_normal((len(y), features)) * (1 + y[:, None]) + 0.3 * y[:, None]
    X -= X.mean(axis=0)
    n_selected = min(4, nodes)
    clf = FisherNetworkClassifier(nodes, n_selected, normalize=how, priors="equal", random_state=seed).fit(X, y)
    W = clf.weights(np.arange(nodes))
    priors = np.full(n_classes, 1 / n_classes)
    want = oracles.Network(W, X, y, n_selected=n_selected, priors=priors, how=how)
    allowed = np.array([[1e-5 * _size_of_terms(want, priors, k, i) for i in range(nodes)] for k in range(n_classes)])
    assert (np.abs(clf.divergences_ - want.divergences) <= allowed).all()
    for k in range(n_classes):
        ours, theirs = set(clf.selected_nodes_[k].tolist()), set(want.selected[k])
        # A selection may differ only by nodes whose divergences differ by less than the tolerances.
        for mine in ours - theirs:
            for other in theirs - ours:
                gap = abs(want.divergences[k, mine] - want.divergences[k, other])
                assert gap <= allowed[k, mine] + allowed[k, other]


def _size_of_terms(want, priors, k, i):
    """1 + F + |T| of the pair of classes that gives class k's divergence at node i."""
    pairs = []
    for j in range(len(priors)):
        if j != k:
            mu, sigma = want.location[:, i], want.spread[:, i]
            fisher, threshold = oracles.fisher_and_threshold(mu[k], mu[j], sigma[k], sigma[j], priors[k], priors[j])
            pairs.append((fisher - threshold, 1 + fisher + abs(threshold)))
    return min(pairs)[1]


@pytest.mark.parametrize("combine", ["sum", "scaled", "log"])
def test_labels_match_the_oracle(combine, three_blobs):
    X, y = three_blobs
    clf = FisherNetworkClassifier(200, 5, combine=combine).fit(X, y)
    clf.temperature_ = 1.0
    nodes = clf.network_.nodes
    z = clf.network_.projections
    codes = np.sort(np.searchsorted(clf.classes_, y))
    spread = np.array([[oracles.mad(row[codes == k]) for row in z] for k in range(3)])
    bandwidth = np.array(
        [[oracles.silverman(row[codes == k], s) for row, s in zip(z, spread[k], strict=True)] for k in range(3)]
    )
    test = X[::7] * 1.1
    points = np.array(
        [[np.float32(np.dot(w.astype(float), x - X.mean(axis=0))) for x in test] for w in clf.weights(nodes)]
    )
    selected = [[nodes.tolist().index(i) for i in row] for row in clf.selected_nodes_]
    scores = oracles.log_scores(points, z, codes, selected, bandwidth, spread, clf.priors_, combine)
    np.testing.assert_allclose(
        clf.predict_log_proba(test), scores - np.logaddexp.reduce(scores, axis=1)[:, None], atol=2e-4
    )
    assert np.array_equal(clf.predict(test), clf.classes_[scores.argmax(axis=1)])


def test_the_extended_criterion_separates_classes_of_equal_means():
    """The classes differ only in the variance of one of six features."""
    rng = np.random.default_rng(5)
    y = np.arange(1_200) % 2
    X = rng.standard_normal((1_200, 6))
    X[y == 1, 0] *= 6
    for seed in range(3):
        extended, plain = (
            FisherNetworkClassifier(2_000, combine="sum", criterion=criterion, random_state=seed)
            .fit(X[:600], y[:600])
            .score(X[600:], y[600:])
            for criterion in ("extended_fisher", "fisher")
        )
        assert extended > plain + 0.1


# Independence of blocks, chunks and input types


@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 100),
    nodes=st.integers(3, 900),
    per_block=st.integers(2, 500),
    samples=st.integers(8, 1_700),
    features=st.integers(3, 70),
    row_chunk=st.integers(3, 900),
    column_chunk=st.integers(1, 70),
    how=st.sampled_from([None, "sample", "feature"]),
    workers=st.integers(1, 4),
)
def test_block_sizes_chunks_and_workers_change_no_value(
    seed, nodes, per_block, samples, features, row_chunk, column_chunk, how, workers
):
    per_block = max(per_block, nodes // 30 + 1)
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((samples, features)).astype(np.float32)
    y = np.arange(samples) % 2
    one = FisherNetworkClassifier(nodes, 3, normalize=how).fit(X, y)
    chunked = da.from_array(X, chunks=(row_chunk, max(column_chunk, features // 8)))
    with dask.config.set(scheduler="threads", num_workers=workers):
        other = FisherNetworkClassifier(nodes, 3, normalize=how, nodes_per_block=per_block).fit(chunked, y)
    assert np.array_equal(one.divergences_, other.divergences_)
    assert np.array_equal(one.selected_nodes_, other.selected_nodes_)
    assert np.array_equal(one.network_.projections, other.network_.projections)
    assert np.array_equal(one.network_.bandwidth, other.network_.bandwidth)
    assert np.array_equal(one.predict_log_proba(X), other.predict_log_proba(X))
    assert np.array_equal(one.responses(X[0], X_train=X), other.responses(X[0], X_train=chunked))
    assert np.array_equal(one.predict_log_proba(X), other.predict_log_proba(chunked).compute())


def test_a_larger_network_contains_the_smaller(two_blobs):
    X, y = two_blobs
    small, large = (FisherNetworkClassifier(n).fit(X, y) for n in (500, 3_000))
    assert np.array_equal(small.divergences_, large.divergences_[:, :500])


@pytest.fixture
def every_input_type(two_blobs, tmp_path):
    X, y = two_blobs
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", y)
    stored = zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(50, 4))
    zarr.create_array(tmp_path / "y.zarr", data=y)
    memory = zarr.create_array(zarr.storage.MemoryStore(), data=X, chunks=(50, 4))
    frame = pd.DataFrame(X, columns=[f"feature {i}" for i in range(X.shape[1])])
    return [
        (X, y),
        (X.tolist(), y.tolist()),
        (np.asfortranarray(X), list(y)),
        (frame, pd.Series(y)),
        (da.from_array(X, chunks=(70, 2)), da.from_array(y, chunks=70)),
        (stored, y),
        (memory, y),
        (str(tmp_path / "X.zarr"), str(tmp_path / "y.zarr")),
        (tmp_path / "X.npy", tmp_path / "y.npy"),
    ]


@pytest.mark.parametrize("store", [False, True])
def test_every_input_type_gives_the_same_model(every_input_type, store, tmp_path):
    X, y = every_input_type[0]
    reference = FisherNetworkClassifier(100, 3).fit(X, y)
    expected = reference.predict_log_proba(X)
    for i, (data, labels) in enumerate(every_input_type):
        path = tmp_path / f"model-{i}.zarr" if store else None
        clf = FisherNetworkClassifier(100, 3, store=path).fit(data, labels)
        assert np.array_equal(clf.selected_nodes_, reference.selected_nodes_), i
        np.testing.assert_allclose(np.asarray(clf.predict_log_proba(data)), expected, rtol=1e-5, atol=1e-5)
        assert clf.score(data, labels) == reference.score(X, y)


def test_uint8_samples_stay_uint8_in_the_store(tmp_path):
    X, y = load_digits(return_X_y=True)
    lazy = da.from_array(X.astype(np.uint8), chunks=(400, 64))
    clf = FisherNetworkClassifier(100, store=tmp_path / "m.zarr").fit(lazy, y)
    assert np.array_equal(clf.divergences_, FisherNetworkClassifier(100).fit(X.astype(np.uint8), y).divergences_)
    header = zarr.open_group(tmp_path / "m.zarr", mode="r").attrs["fxdask"]
    assert header["identity"]["samples_dtype"] == "|u1"


# Prediction, pipelines and pickles


def test_a_dask_array_gives_a_lazy_result(two_blobs):
    X, y = two_blobs
    clf = FisherNetworkClassifier(100, 3).fit(X, y)
    lazy = da.from_array(X, chunks=(100, 3))
    for method in ("predict", "predict_proba", "predict_log_proba", "decision_function"):
        got = getattr(clf, method)(lazy)
        assert isinstance(got, da.Array)
        want = getattr(clf, method)(X)
        assert got.shape == want.shape
        assert got.dtype == want.dtype
        assert np.array_equal(got.compute(), want)


def test_a_lazy_graph_holds_the_model_once(two_blobs):
    X, y = two_blobs
    clf = FisherNetworkClassifier(100, 3).fit(X, y)
    many = clf.predict(da.from_array(np.repeat(X, 8, axis=0), chunks=(60, 6)))
    holders = [v for v in dict(many.__dask_graph__()).values() if clf._fitted_model().scorer is getattr(v, "value", v)]
    assert len(holders) == 1


def test_empty_chunks_are_predicted(two_blobs):
    X, y = two_blobs
    clf = FisherNetworkClassifier(100, 3).fit(X, y)
    with_empty = da.concatenate([da.from_array(X[:10], chunks=4), da.zeros((0, 6)), da.from_array(X[10:20], chunks=6)])
    assert np.array_equal(clf.predict(with_empty).compute(), clf.predict(X[:20]))


@pytest.mark.parametrize("lazy", [False, True])
def test_an_empty_test_set_gives_an_empty_result(two_blobs, lazy):
    X, y = two_blobs
    clf = FisherNetworkClassifier(50, 3).fit(X, y)
    empty = da.from_array(X[:0]) if lazy else X[:0]
    assert np.asarray(clf.predict(empty)).shape == (0,)
    assert np.asarray(clf.predict_proba(empty)).shape == (0, 2)


def test_the_classifier_works_in_a_pipeline_and_a_grid_search(three_blobs):
    X, y = three_blobs
    pipeline = make_pipeline(StandardScaler(), FisherNetworkClassifier(100, 3))
    search = GridSearchCV(pipeline, {"fishernetworkclassifier__n_selected": [2, 5]}, cv=3).fit(X, y)
    assert search.best_score_ > 0.6
    assert clone(search.best_estimator_).fit(X, y).score(X, y) > 0.6


def test_a_pickle_predicts_without_its_store(two_blobs, tmp_path):
    X, y = two_blobs
    clf = FisherNetworkClassifier(100, 3, store=tmp_path / "m.zarr").fit(X, y)
    pickled = pickle.dumps(clf)
    shutil.rmtree(tmp_path / "m.zarr")
    assert np.array_equal(pickle.loads(pickled).predict(X), clf.predict(X))


def test_the_next_fit_removes_feature_names(two_blobs):
    X, y = two_blobs
    clf = FisherNetworkClassifier(50, 3).fit(pd.DataFrame(X, columns=list("uvwxyz")), y)
    assert clf.feature_names_in_.tolist() == list("uvwxyz")
    clf.fit(da.from_array(X), y)
    assert not hasattr(clf, "feature_names_in_")


def test_priors_are_shares_equal_or_given(two_blobs):
    X, y = two_blobs
    X, y = X[:200], y[:200].copy()
    y[:60] = 0
    shares = FisherNetworkClassifier(100, 3).fit(X, y)
    assert shares.priors_ == pytest.approx([0.65, 0.35])
    assert FisherNetworkClassifier(100, 3, priors="equal").fit(X, y).priors_.tolist() == [0.5, 0.5]
    given_ = FisherNetworkClassifier(100, 3, priors=[3, 1]).fit(X, y)
    assert given_.priors_.tolist() == [0.75, 0.25]
    np.testing.assert_allclose(
        given_.divergences_[0] - shares.divergences_[0],
        2 * np.log(0.35 / 0.65) - 2 * np.log(0.25 / 0.75),
        atol=1e-12,
    )


@pytest.mark.parametrize("bandwidth", ["silverman", "scott", "sheather_jones", 0.7])
@pytest.mark.parametrize("bandwidth_spread", [None, "std"])
def test_bandwidths_match_their_rules(two_blobs, bandwidth, bandwidth_spread):
    X, y = two_blobs
    clf = FisherNetworkClassifier(100, 3, bandwidth=bandwidth, bandwidth_spread=bandwidth_spread).fit(X, y)
    values = clf.network_.projections[0, clf.network_.class_slices[1]]
    sigma = oracles.SPREAD[bandwidth_spread or "mad"](values)
    expected = {
        "silverman": oracles.silverman(values, sigma),
        "scott": len(values) ** -0.2 * sigma,
        "sheather_jones": sheather_jones(values, sigma),
        0.7: 0.7,
    }
    assert clf.network_.bandwidth[1, 0] == pytest.approx(expected[bandwidth])


def test_random_states_give_seeds():
    X, y = load_digits(n_class=2, return_X_y=True)
    by_number = FisherNetworkClassifier(50, 3, random_state=7).fit(X, y)
    assert by_number.seed_ == 7
    by_stream = [FisherNetworkClassifier(50, 3, random_state=np.random.RandomState(1)).fit(X, y).seed_ for _ in "ab"]
    assert by_stream[0] == by_stream[1]
    fresh = {FisherNetworkClassifier(50, 3, random_state=None).fit(X, y).seed_ for _ in range(3)}
    assert len(fresh) == 3


# Degenerate data


def test_fallbacks_of_spreads_are_counted():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((80, 3))
    X[:30] = X[0]  # most of class 0 is one repeated sample, so its MAD is zero at every node
    y = np.repeat([0, 1], 40)
    clf = FisherNetworkClassifier(60, 3).fit(X, y)
    assert clf.spread_sources_ == {"mad": 60, "iqr": 0, "std": 60, "zero": 0}
    assert np.isfinite(clf.divergences_).all()


def test_a_constant_class_is_separated_from_a_wide_one():
    rng = np.random.default_rng(1)
    X = rng.standard_normal((60, 4))
    X[:20] = 0.25
    y = np.repeat([0, 1], [20, 40])
    clf = FisherNetworkClassifier(40, 4).fit(X, y)
    assert (clf.divergences_[0] == np.inf).all()
    assert np.isfinite(clf.divergences_[1]).all()
    assert clf.selected_nodes_[0].tolist() == [0, 1, 2, 3]
    assert (clf.predict(X[:20]) == 0).all()
    assert (clf.predict(X[20:]) == 1).all()


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning")
def test_fewer_usable_nodes_than_requested_cause_a_warning():
    """Two classes differ by about the rounding of float32, so at some nodes their projections are constant."""
    y = np.repeat([0, 1, 2], 20)
    X = (np.array([1.5, 1.5, -3.0])[y] + np.tile([-6e-7, 6e-7], 30))[:, None]
    with pytest.warns(FewUsableNodesWarning, match=r"class 0 has only \d+ usable nodes of the 40 requested"):
        clf = FisherNetworkClassifier(40, 40).fit(X, y)
    constant = np.isneginf(clf.divergences_[0])
    usable = (~constant).sum()
    assert 0 < usable < 40
    assert set(clf.selected_nodes_[0, :usable]) == set(np.flatnonzero(~constant))
    assert (clf.selected_nodes_[:2, usable:] == -1).all()
    assert (clf.selected_nodes_[2] >= 0).all()
    assert clf.predict(X).shape == (60,)


def test_no_usable_node_is_an_error(tmp_path):
    with pytest.raises(InvalidInputError, match="no node separates class"):
        FisherNetworkClassifier(5, 2, store=tmp_path / "m.zarr").fit(np.ones((6, 3)), [0, 0, 0, 1, 1, 1])
    assert not (tmp_path / "m.zarr").exists()


def test_copies_of_an_estimator_do_not_share_its_store(two_blobs, tmp_path):
    clf = FisherNetworkClassifier(50, 3, store=tmp_path / "model.zarr")
    search = GridSearchCV(clf, {"n_selected": [2, 3]}, cv=2, error_score="raise")
    with pytest.raises(InvalidInputError, match="searches, cross-validation and ensembles use store=None"):
        search.fit(*two_blobs)
    assert not any(tmp_path.iterdir())
    own = clone(clf).set_params(store=tmp_path / "other.zarr").fit(*two_blobs)
    assert own.store_ == str(tmp_path / "other.zarr")
    assert search.set_params(estimator__store=None).fit(*two_blobs).best_score_ > 0.5
