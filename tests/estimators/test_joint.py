"""Classifiers with the joint rule, and with both selections: scores, labels, few samples, scikit-learn's tools."""

import pickle
import warnings

import dask.array as da
import joblib
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import FewUsableNodesWarning, ZeroSpreadWarning

SELECTIONS = ["top", "joint"]


@pytest.mark.full
@parametrize_with_checks([FisherNetworkClassifier(n_nodes=300, n_selected=5, selection="joint")])
def test_scikit_learn_conventions(estimator, check):
    """All checks run; none is marked as an expected failure. The joint rule alone is checked as the default."""
    assert estimator.combine == "joint"
    check(estimator)


# Scores against the oracle


@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("per_class", [2, 8, 30])
def test_scores_of_a_fit_equal_the_oracle(selection, per_class):
    """The oracle gets the training values as they were projected, and computes everything else."""
    rng = np.random.default_rng(per_class)
    y = np.repeat([0, 1, 2], per_class)
    X = (rng.standard_normal((len(y), 4)) @ rng.standard_normal((4, 4)) + 1.5 * y[:, None]).astype(np.float32)
    clf = FisherNetworkClassifier(40, 2, selection=selection, normalize=None, density="exact").fit(X, y)
    net, test = clf.network_, X[::3] * 1.1
    z = _projected(clf, X)
    own = [z[:, y == k] for k in range(3)]
    correlations, shrinkages = zip(*map(oracles.shrunk_correlations, own), strict=True)
    location = np.array([[oracles.interquartile_mean(row) for row in values] for values in own])
    spread = np.array([[oracles.mad(row) for row in values] for values in own])
    np.testing.assert_allclose(net.learned["shrinkage"], shrinkages, rtol=1e-9)
    shrunk = np.array([oracles.shrunk_spreads(of_node, [per_class] * 3) for of_node in spread.T]).T
    np.testing.assert_allclose(net.spread, shrunk, rtol=1e-5)
    widths = [[oracles.silverman(own[k][u], spread[k, u]) for u in range(len(z))] for k in range(3)]
    want = oracles.joint_log_scores(_projected(clf, test), z, y, correlations, widths, location, shrunk, clf.priors_)
    np.testing.assert_allclose(clf.decision_function(test), want, rtol=1e-4, atol=2e-2)
    assert np.array_equal(clf.predict(test), want.argmax(axis=1))
    np.testing.assert_allclose(clf.score_samples(test), np.logaddexp.reduce(want, axis=1), rtol=1e-4, atol=2e-2)


def _projected(clf, X):
    """(u, sample) projections in float64, rounded once."""
    shifted = X.astype(np.float64) - clf.network_.preprocessing.shift
    return (clf.network_.weights.astype(np.float64) @ shifted.T).astype(np.float32)


def test_one_feature_has_one_node(two_blobs):
    """All nodes are multiples of each other, so after the first one all others repeat what is known."""
    X, y = two_blobs
    clf = FisherNetworkClassifier(50, 3, selection="joint").fit(X[:, :1], y)
    assert clf.selected_nodes_.shape == (1, 1)
    assert clf.network_.learned["shrinkage"].tolist() == [1, 1]
    assert not clf.network_.learned["precision"].any()
    assert clf.score(X[:, :1], y) > 0.6


# Labels from tables and from exact sums


def between(clf, X, rng, n_pairs=30):
    """Points on both sides of a change of the label, found by bisection between samples of different labels."""
    a, b = X[rng.integers(0, len(X), (2, n_pairs))]
    label = clf.predict(a)
    a, b, label = (part[label != clf.predict(b)] for part in (a, b, label))
    for _ in range(30 if len(a) else 0):
        middle = (a + b) / 2
        same = clf.predict(middle) == label
        a[same], b[~same] = middle[same], middle[~same]
    return np.concatenate([a, b])


def assert_labels_are_exact(clf, X, borders):
    """At the samples, at these points on borders of the classes, far away; probabilities agree with the labels."""
    largest = np.abs(X).max()
    far = [X[:5] * size for size in (1e3, 1e6, 1e15, 1e30) if largest * size < 1e37]
    points = np.concatenate([X, borders, *far, np.zeros((1, X.shape[1]))])
    labels = clf.set_params(density="table").predict(points)
    probabilities, likelihood = clf.predict_proba(points), clf.score_samples(points)
    assert np.array_equal(clf.set_params(density="exact").predict(points), labels)
    assert np.isfinite(likelihood).all()
    assert np.isfinite(probabilities).all()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-12)
    chosen = np.take_along_axis(probabilities, np.searchsorted(clf.classes_, labels)[:, None], axis=1)[:, 0]
    assert np.array_equal(chosen, probabilities.max(axis=1))
    return labels


@pytest.mark.parametrize("selection", [pytest.param("top", marks=pytest.mark.full), "joint"])
def test_labels_of_digits_are_those_of_exact_sums(selection):
    X, y = load_digits(return_X_y=True)
    clf = FisherNetworkClassifier(500, 5, selection=selection).fit(X[::2], y[::2])
    labels = assert_labels_are_exact(clf, X[1::2], between(clf, X[1::2], np.random.default_rng(0)))
    assert (labels[: len(X[1::2])] == y[1::2]).mean() > 0.95


HARD = {
    "duplicated samples": lambda X, y: X[np.arange(len(X)) // 4 * 4],
    "few values": lambda X, y: np.round(X),
    "a constant feature": lambda X, y: np.where(np.arange(4) == 1, 2.0, X),
    "a constant class": lambda X, y: np.where(y[:, None] == 0, 0.25, X),
    "classes of two samples": lambda X, y: X,
    "two equal classes": lambda X, y: np.where(y[:, None] == 1, np.roll(X, -1, axis=0), X),
    "an outlier": lambda X, y: np.where(np.arange(len(X))[:, None] == 4, 1e9, X),
    "heavy tails": lambda X, y: np.sinh(4 * X),
    "tiny": lambda X, y: 1e-20 * X,
    "huge": lambda X, y: 1e20 * X,
    "other scales": lambda X, y: X * [1e-9, 1e-3, 1, 1e9],
}


@pytest.mark.filterwarnings("ignore::fxdask.errors.ZeroSpreadWarning", "ignore::fxdask.errors.FewUsableNodesWarning")
@pytest.mark.parametrize("selection", SELECTIONS)
@pytest.mark.parametrize("kind", HARD)
def test_labels_of_hard_samples_are_those_of_exact_sums(kind, selection):
    rng = np.random.default_rng(4)
    y = np.arange(150) % 3 if kind != "classes of two samples" else np.repeat(np.arange(4), [2, 60, 2, 86])
    X = HARD[kind](rng.standard_normal((150, 4)) * (1 + y[:, None] % 3) + 0.5 * y[:, None], y)
    clf = FisherNetworkClassifier(60, 2, selection=selection).fit(X, y)
    assert_labels_are_exact(clf, X, between(clf, X, rng))


# Few samples


def few_samples(rng, n_classes, per_class, n_features, kind):
    y = np.repeat(np.arange(n_classes), per_class)
    X = rng.standard_normal((len(y), n_features)) + 3 * rng.standard_normal((n_classes, n_features))[y]
    if kind == "integers":
        X = np.round(X)
    if kind == "repeated":
        X = X[rng.integers(0, len(X), len(X))]
    return X, y


@given(
    seed=st.integers(0, 9999),
    n_classes=st.integers(2, 8),
    per_class=st.sampled_from([2, 3, 5, 8]),
    n_features=st.integers(1, 9),
    n_selected=st.integers(1, 6),
    kind=st.sampled_from(["normal", "integers", "repeated"]),
    selection=st.sampled_from(SELECTIONS),
)
def test_small_classes_give_finite_scores(seed, n_classes, per_class, n_features, n_selected, kind, selection):
    """More nodes than samples, and no warning of NumPy."""
    X, y = few_samples(np.random.default_rng(seed), n_classes, per_class, n_features, kind)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for expected in (ZeroSpreadWarning, FewUsableNodesWarning):
            warnings.simplefilter("ignore", expected)
        try:
            clf = FisherNetworkClassifier(40, n_selected, selection=selection, random_state=seed).fit(X, y)
        except fxdask.errors.InvalidInputError as error:
            if "no node separates class" not in str(error):
                raise
            return
        assert_labels_are_exact(clf, X, (X[1:] + X[:-1]) / 2)
    assert 0 < clf.temperature_ < np.inf
    assert np.isfinite(clf.network_.learned["precision"]).all()


@pytest.mark.parametrize(
    ("n_classes", "per_class", "selection"),
    [
        pytest.param(100, 2, "joint", marks=pytest.mark.full),
        (30, 2, "joint"),
        pytest.param(40, 3, "top", marks=pytest.mark.full),
        (10, 5, "joint"),
        (3, 8, "top"),
    ],
)
def test_many_small_classes_are_saved_and_loaded(n_classes, per_class, selection, tmp_path):
    X, y = few_samples(np.random.default_rng(0), n_classes, per_class, 10, "normal")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        store = tmp_path / "model.zarr"
        clf = FisherNetworkClassifier(40, 1, selection=selection, pool_size=2, store=store).fit(X, y)
        loaded = fxdask.load(store)
    points = np.concatenate([X, X + 0.1, 1e3 * X])
    for method in ("decision_function", "predict_proba", "score_samples", "predict"):
        assert np.array_equal(getattr(loaded, method)(points), getattr(clf, method)(points)), method
    assert np.isfinite(clf.score_samples(points)).all()
    np.testing.assert_allclose(clf.predict_proba(points).sum(axis=1), 1, rtol=1e-12)
    for name in ("selected_nodes_", "overlaps_", "temperature_", "normalize_"):
        assert np.array_equal(getattr(loaded, name), getattr(clf, name)), name


# Other tools


@pytest.fixture(scope="module", params=SELECTIONS)
def fitted(request, three_blobs):
    return FisherNetworkClassifier(100, 3, selection=request.param).fit(*three_blobs)


def test_pickles_and_joblib_files_score_the_same(fitted, three_blobs, tmp_path):
    X, _ = three_blobs
    joblib.dump(fitted, tmp_path / "model.joblib")
    copies = [
        pickle.loads(pickle.dumps(fitted)),
        joblib.load(tmp_path / "model.joblib"),
        joblib.load(tmp_path / "model.joblib", mmap_mode="r"),
    ]
    for copy in copies:
        for method in ("decision_function", "predict_proba", "score_samples"):
            assert np.array_equal(getattr(copy, method)(X), getattr(fitted, method)(X))
        assert copy.temperature_ == fitted.temperature_
        assert np.array_equal(copy.selected_nodes_, fitted.selected_nodes_)


def test_a_clone_is_not_fitted_and_fits_the_same(fitted, three_blobs):
    copy = clone(fitted)
    assert not hasattr(copy, "temperature_")
    assert copy.get_params() == fitted.get_params()
    X, y = three_blobs
    assert np.array_equal(copy.fit(X, y).decision_function(X), fitted.decision_function(X))


def test_chunks_of_test_samples_change_no_bit(fitted, three_blobs):
    X, _ = three_blobs
    methods = ("decision_function", "predict_proba", "score_samples")
    expected = {method: getattr(fitted, method)(X) for method in methods}

    @settings(max_examples=5)
    @given(chunk=st.integers(7, 300), columns=st.integers(1, 5))
    def chunked(chunk, columns):
        lazy = da.from_array(X, chunks=(chunk, columns))
        for method in methods:
            found = getattr(fitted, method)(lazy)
            assert found.shape == expected[method].shape
            assert np.array_equal(found.compute(), expected[method])

    chunked()


def test_a_grid_search_over_rules_and_selections(three_blobs):
    X, y = three_blobs
    grid = {"combine": ["sum", "scaled", "log", "joint"], "selection": SELECTIONS}
    search = GridSearchCV(FisherNetworkClassifier(60, 3), grid, cv=3, scoring="neg_log_loss", error_score="raise")
    search.fit(X, y)
    assert len(search.cv_results_["params"]) == 8
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert (search.cv_results_["mean_test_score"] > -np.log(3)).all(), "better than guessing"
    assert search.best_estimator_.score(X, y) > 0.6
