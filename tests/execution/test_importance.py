"""The importances of features do not depend on how their nodes are spread over tasks and threads."""

import dask
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fxdask import FisherNetworkClassifier
from fxdask.execution import importance
from fxdask.execution.importance import correlate_features, nodes_per_range
from fxdask.kernels import importance as kernels
from fxdask.kernels.importance import nodes_per_step
from fxdask.kernels.weights import ROWS_PER_DRAW, weight_block
from fxdask.workflows import fit as fits


@given(n_features=st.integers(1, 10**7), n_classes=st.integers(2, 5_000))
def test_ranges_are_whole_draws_of_bounded_size(n_features, n_classes):
    nodes = nodes_per_range(n_features, n_classes)
    assert nodes > 0
    assert nodes % ROWS_PER_DRAW == 0
    assert nodes >= 6 * n_classes, "the sums of a range would be larger than its weights"
    assert nodes % nodes_per_step(n_features, ROWS_PER_DRAW) == 0
    few = nodes - nodes_per_step(n_features, ROWS_PER_DRAW)
    assert few <= max(2**24 // (4 * n_features), 6 * n_classes)
    assert few <= max(2**22 // (8 * n_classes), 6 * n_classes)


@settings(max_examples=settings.default.max_examples // 2)
@given(
    seed=st.integers(0, 2**32),
    n_nodes=st.integers(1, 300),
    n_features=st.integers(1, 9),
    n_classes=st.integers(2, 4),
    sizes=st.sampled_from([(1, 1, 1, 0), (1, 10**6, 1, 0), (1, 1, 1, 2**24), (10**4, 10**4, 2**17, 2**24)]),
)
def test_many_ranges_match_the_oracle(seed, n_nodes, n_features, n_classes, sizes):
    """Small sizes make a range of every draw, graphs of one task, and steps of one draw."""
    divergences = np.random.default_rng(seed).standard_normal((n_classes, n_nodes))
    divergences[0, ::7] = np.inf
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(importance, "WEIGHT_BYTES_PER_RANGE", sizes[0])
        patch.setattr(importance, "SCORE_BYTES_PER_GRAPH", sizes[1])
        patch.setattr(kernels, "WEIGHTS_PER_STEP", sizes[2])
        patch.setattr(importance, "MOST_BYTES_OF_STEPS", sizes[3])
        found = correlate_features(seed, n_features, divergences)
    want = oracles.feature_correlations(weight_block(seed, 0, n_nodes, n_features), divergences)
    np.testing.assert_allclose(found, want, atol=1e-9)


@settings(max_examples=8)
@given(
    n_threads=st.integers(1, 5),
    n_nodes=st.sampled_from([4_000, 6_145]),
    n_classes=st.integers(2, 3),
    scheduler=st.sampled_from(["threads", "synchronous"]),
)
def test_threads_change_no_bit(n_threads, n_nodes, n_classes, scheduler):
    """Ranges of 2,112 nodes, so two or three tasks."""
    n_features = 2_000
    assert nodes_per_range(n_features, n_classes) == 2_112
    divergences = np.random.default_rng(0).standard_normal((n_classes, n_nodes))
    with dask.config.set(num_workers=2):
        want = correlate_features(3, n_features, divergences)
    with dask.config.set(num_workers=n_threads, scheduler=scheduler):
        found = correlate_features(3, n_features, divergences)
    assert found.tobytes() == want.tobytes()


@settings(max_examples=settings.default.max_examples // 4)
@given(
    nodes_per_block=st.sampled_from([64, 100, 384, 450, 1_000]),
    few_at_a_time=st.booleans(),
    lost=st.sampled_from([0, 1, 3]),
)
def test_sums_of_blocks_and_drawn_weights_give_the_same_bits(nodes_per_block, few_at_a_time, lost):
    """Steps that no block holds wholly, and those of blocks that were resumed, are drawn again."""
    rng, y = np.random.default_rng(0), np.arange(60) % 2
    X = rng.standard_normal((60, 5)) * (1 + y[:, None])
    known: list[dict] = []
    measured = fits.measure_importances

    def recorded(*args, **options):
        known.append(options["known"])
        for first in list(options["known"])[:lost]:
            del options["known"][first]
        return measured(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fits, "measure_importances", recorded)
        patch.setattr(importance, "WEIGHT_BYTES_PER_RANGE", 1 if few_at_a_time else 2**24)
        clf = FisherNetworkClassifier(1_000, 2, nodes_per_block=nodes_per_block).fit(X, y)
        found = correlate_features(clf.seed_, 5, clf.divergences_)
    assert clf._model.importances.tobytes() == found.tobytes()
    want = oracles.feature_correlations(clf.weights(np.arange(1_000)), clf.divergences_)
    np.testing.assert_allclose(found, want, atol=1e-9)
    whole_steps = {64: 0, 100: 0, 384: 3, 450: 1, 1_000: 3}[nodes_per_block]
    assert len(known[0]) == max(0, whole_steps - lost)


def test_progress_counts_the_ranges(monkeypatch):
    monkeypatch.setattr(kernels, "WEIGHTS_PER_STEP", 1)
    monkeypatch.setattr(importance, "WEIGHT_BYTES_PER_RANGE", 1)
    monkeypatch.setattr(importance, "SCORE_BYTES_PER_GRAPH", 3 * 64 * 2 * 8)
    seen = []
    correlate_features(0, 2, np.zeros((2, 500)), lambda *counts: seen.append(counts))
    assert seen == [(3, 8), (6, 8), (8, 8)]
