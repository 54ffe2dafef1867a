"""The numbers of a model's report."""

from dataclasses import replace

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.reporting import model_facts
from fxdask.reporting.model_facts import divergence_counts, facts_of, nearest_classes


@pytest.fixture(scope="module")
def fitted(three_blobs):
    return FisherNetworkClassifier(200, 4, normalize="feature", combine="sum").fit(*three_blobs)


@pytest.fixture(scope="module")
def facts(fitted):
    return facts_of(fitted._fitted_model())


def test_the_facts_are_those_of_the_estimator(fitted, facts):
    assert facts.class_names == ["ash", "birch", "cedar"]
    assert np.array_equal(facts.sample_counts, fitted.sample_counts_)
    assert np.array_equal(facts.priors, fitted.priors_)
    assert (facts.n_features, facts.n_nodes, facts.seed, facts.store) == (5, 200, 0, None)
    assert facts.n_used == len(fitted.network_.nodes)
    assert np.array_equal(facts.selected, fitted.selected_nodes_)
    assert facts.parameters["criterion"] == "extended_fisher"
    assert facts.normalization.startswith("each feature is scaled")
    assert facts.density_error == np.nanmax(fitted.density_error_)
    for k in range(3):
        assert np.array_equal(facts.divergences_of_selected[k], fitted.divergences_[k, fitted.selected_nodes_[k]])


def test_models_without_optional_facts_have_none(facts):
    assert facts.overlaps is None
    assert facts.correlations is None
    assert not facts.is_shared


def test_curves_are_the_densities_of_the_best_nodes(fitted, facts):
    network = fitted.network_
    assert [curves.of_class for curves in facts.curves] == [0, 1, 2]
    for k, curves in enumerate(facts.curves):
        assert curves.node == fitted.selected_nodes_[k, 0]
        assert curves.divergence == fitted.divergences_[k, curves.node]
        assert curves.classes == [k, *(j for j in range(3) if j != k)]
        assert curves.densities.shape == (3, 200)
        assert (np.diff(curves.points) >= 0).all()
        u = int(np.searchsorted(network.nodes, curves.node))
        assert curves.points[0] < network.projections[u].min()
        assert curves.points[-1] > network.projections[u].max()
        for row, j in enumerate(curves.classes):
            for i in (0, 60, 100, 199):
                expected = oracles.log_density(curves.points[i], network.ascending(j, u), network.bandwidth[j, u])
                assert curves.densities[row, i] == pytest.approx(np.exp(expected), rel=1e-9)
            assert np.trapezoid(curves.densities[row], curves.points) == pytest.approx(1, abs=0.02)


def test_of_many_classes_the_nearest_are_drawn():
    rng = np.random.default_rng(0)
    y = np.arange(400) % 8
    X = rng.standard_normal((400, 1)) + 10 * y[:, None]
    clf = FisherNetworkClassifier(5, 2).fit(X, y)
    for k, expected in ((0, {1, 2, 3, 4}), (4, {2, 3, 5, 6}), (7, {3, 4, 5, 6})):
        found = nearest_classes(clf.network_, 0, k)
        assert found[0] == k
        assert set(found[1:]) == expected
    curves = facts_of(clf._fitted_model()).curves
    assert all(found.densities.shape == (5, 200) for found in curves)


def test_many_samples_are_thinned_without_a_visible_change(monkeypatch):
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((4_000, 3)), np.arange(4_000) % 2
    X[y == 1] *= 3
    model = FisherNetworkClassifier(20, 2).fit(X, y)._fitted_model()
    whole = facts_of(model).curves
    monkeypatch.setattr(model_facts, "MOST_KERNELS", 400)
    for exact, thinned in zip(whole, facts_of(model).curves, strict=True):
        assert np.abs(exact.densities - thinned.densities).max() < 0.01 * exact.densities.max()


def test_far_outliers_do_not_stretch_the_curves():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3_000, 2)), np.arange(3_000) % 2
    X[y == 1] *= 3
    X[0] = 1e6
    curves = facts_of(FisherNetworkClassifier(20, 2).fit(X, y)._fitted_model()).curves
    assert all(np.abs(found.points).max() < 100 for found in curves)


def test_shared_nodes_are_shown_once_and_the_best_of_each_class_is_drawn(fitted):
    """A joint selection gives one row of nodes for all classes."""
    model = fitted._fitted_model()
    shared = np.array([[*model.selected_nodes[2][:2], *model.selected_nodes[0][:2]]])
    found = facts_of(replace(model, selected_nodes=shared))
    assert found.is_shared
    assert found.divergences_of_selected.shape == (3, 4)
    for k, curves in enumerate(found.curves):
        assert curves.node == shared[0, np.argmax(model.divergences[k, shared[0]])]


def test_optional_facts_of_a_model_are_found(fitted):
    model = fitted._fitted_model()
    network, n_nodes = model.scorer.parameters, len(model.scorer.parameters.nodes)
    correlations = np.full((3, n_nodes, n_nodes), 0.3) + 0.7 * np.eye(n_nodes)
    learned = {"precision": np.linalg.inv(correlations) - np.eye(n_nodes), "shrinkage": np.array([0.1, 0.2, 0.3])}
    scorer = type(model.scorer)(replace(network, learned=learned))
    found = facts_of(replace(model, scorer=scorer, overlaps=np.array([0.5, 0.2, 0.1])))
    np.testing.assert_allclose(found.correlations, correlations, atol=1e-12)
    assert found.shrinkage.tolist() == [0.1, 0.2, 0.3]
    assert found.overlaps.tolist() == [0.5, 0.2, 0.1]
    assert np.array_equal(found.importances, fitted.feature_importances_)


def test_a_model_of_an_older_format_has_no_importances(fitted):
    assert facts_of(replace(fitted._fitted_model(), importances=None)).importances is None


def test_missing_nodes_are_left_out(fitted):
    """A class with too few usable nodes has -1 instead of nodes at its end."""
    model = fitted._fitted_model()
    fewer = model.selected_nodes.copy()
    fewer[1, 2:] = -1
    found = facts_of(replace(model, selected_nodes=fewer))
    assert np.isnan(found.divergences_of_selected[1, 2:]).all()
    assert [len(row) for row in found.divergences.selected] == [4, 2, 4]
    assert found.curves[1].node == fewer[1, 0]


@given(
    seed=st.integers(0, 50),
    n_nodes=st.integers(1, 300),
    scale=st.sampled_from([1, 1e6]),
    n_infinite=st.integers(0, 3),
)
def test_every_finite_divergence_is_in_a_bin(seed, n_nodes, scale, n_infinite):
    rng = np.random.default_rng(seed)
    divergences = rng.standard_normal((4, n_nodes))
    divergences[:, : n_nodes // 50] *= scale
    divergences[1, :n_infinite] = np.inf
    n_infinite = min(n_infinite, n_nodes)
    at_selected = np.sort(divergences, axis=1)[:, ::-1][:, :3]
    found = divergence_counts(divergences, at_selected, [1, 3])
    assert found.classes == [1, 3]
    assert (np.diff(found.edges) > 0).all()
    assert found.n_infinite.tolist() == [n_infinite, 0]
    assert found.counts.sum(axis=1).tolist() == [n_nodes - n_infinite, n_nodes]
    for i, k in enumerate((1, 3)):
        finite = divergences[k][np.isfinite(divergences[k])]
        if found.linear_width is None and len(finite):
            assert np.array_equal(found.counts[i], np.histogram(finite, found.edges)[0])
        assert np.isfinite(found.selected[i]).all()


@pytest.mark.parametrize("value", [0.0, 2.5])
def test_equal_or_no_divergences_have_a_range_too(value):
    found = divergence_counts(np.full((2, 10), value), np.full((2, 1), value), [0, 1])
    assert found.edges[0] < value < found.edges[-1] or found.edges[0] == value
    assert found.counts.sum() == 20
    infinite = divergence_counts(np.full((2, 10), np.inf), np.full((2, 1), np.inf), [0, 1])
    assert infinite.counts.sum() == 0
    assert infinite.n_infinite.tolist() == [10, 10]


def test_of_very_many_classes_the_hardest_are_drawn(monkeypatch):
    monkeypatch.setattr(model_facts, "MOST_PANELS", 3)
    rng = np.random.default_rng(0)
    y = np.arange(300) % 6
    X = rng.standard_normal((300, 2)) * (1 + y[:, None] % 3) + 3 * y[:, None]
    clf = FisherNetworkClassifier(50, 2).fit(X, y)
    found = facts_of(clf._fitted_model())
    best = clf.divergences_.max(axis=1)
    expected = sorted(np.argsort(best)[:3].tolist())
    assert [curves.of_class for curves in found.curves] == expected
    assert found.divergences.classes == expected


def test_feature_names_are_kept(three_blobs):
    pandas = pytest.importorskip("pandas")
    X, y = three_blobs
    frame = pandas.DataFrame(X, columns=list("abcde"))
    clf = FisherNetworkClassifier(50, 2).fit(frame, y)
    assert facts_of(clf._fitted_model()).feature_names == list("abcde")


@pytest.mark.parametrize(("scale", "words"), [(1, "none; one constant vector"), (1_000, "each feature is scaled")])
def test_a_normalisation_that_was_chosen_is_told(three_blobs, scale, words, tmp_path):
    X, y = three_blobs
    clf = FisherNetworkClassifier(50, 2, normalize="auto", store=tmp_path / "m.zarr").fit(X * [1, 1, 1, 1, scale], y)
    for model in (clf, fxdask.load(tmp_path / "m.zarr")):
        told = facts_of(model._fitted_model()).normalization
        assert told.startswith(words)
        assert told.endswith(" (chosen by 'auto')")
    requested = FisherNetworkClassifier(50, 2, normalize=clf.normalize_).fit(X * [1, 1, 1, 1, scale], y)
    assert "chosen" not in facts_of(requested._fitted_model()).normalization
