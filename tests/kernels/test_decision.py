import tracemalloc

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from fxdask.kernels.decision import COMBINATIONS, FittedNetwork, class_probabilities
from fxdask.kernels.preparation import Preparation


def network(rng, n_classes, n_nodes, counts, combine):
    slices = [slice(a, a + c) for a, c in zip(np.cumsum([0, *counts[:-1]]).tolist(), counts, strict=True)]
    member = rng.random((n_classes, n_nodes)) < 0.6
    member[:, 0] = True
    member[rng.integers(0, n_classes, n_nodes), np.arange(n_nodes)] = True  # a kept node is somebody's
    priors = rng.uniform(0.2, 1, n_classes)
    return FittedNetwork(
        Preparation(None, np.zeros(3, np.float32), None, 1.0),
        np.arange(n_nodes),
        rng.standard_normal((n_nodes, 3)).astype(np.float32),
        rng.standard_normal((n_nodes, sum(counts))).astype(np.float32),
        slices,
        rng.uniform(0.05, 1, (n_classes, n_nodes)),
        rng.uniform(0.5, 2, (n_classes, n_nodes)),
        member,
        np.log(priors / priors.sum()),
        combine,
    )


@pytest.mark.parametrize("combine", COMBINATIONS)
@given(
    seed=st.integers(0, 9999),
    n_classes=st.integers(2, 4),
    n_nodes=st.integers(1, 4),
    far=st.sampled_from([1, 1e3, 1e6]),
)
def test_scores_and_labels_equal_the_oracle(combine, seed, n_classes, n_nodes, far):
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 9, n_classes).tolist()
    net = network(rng, n_classes, n_nodes, counts, combine)
    points = (far * rng.standard_normal((n_nodes, 5))).astype(np.float32)
    got = net.class_scores(points)
    codes = np.repeat(np.arange(n_classes), counts)
    selected = [np.flatnonzero(row).tolist() for row in net.member]
    want = oracles.log_scores(
        points, net.projections, codes, selected, net.bandwidth, net.spread, np.exp(net.log_priors), combine
    )
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9)
    assert np.array_equal(got.argmax(axis=1), want.argmax(axis=1))


def test_a_far_outlier_still_has_a_class():
    """Every density underflows to zero, yet the wider class is the right one."""
    rng = np.random.default_rng(0)
    net = network(rng, 2, 1, [50, 50], "sum")
    net.bandwidth[:] = [[0.1], [1.0]]
    scores = net.class_scores(np.array([[1e4]], np.float32))
    assert np.isfinite(scores).all()
    assert np.exp(scores).max() == 0
    assert scores.argmax() == 1
    assert class_probabilities(scores)[0, 1] == 1


def test_memory_does_not_grow_with_the_square_of_the_classes():
    """All classes' densities at all nodes at once would be 390 MB here."""
    rng = np.random.default_rng(1)
    net = network(rng, 80, 800, [2] * 80, "sum")
    net.member[:] = np.repeat(np.eye(80, dtype=bool), 10, axis=1)
    points = rng.standard_normal((800, 768)).astype(np.float32)
    tracemalloc.start()
    scores = net.class_scores(points)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.shape == (768, 80)
    assert peak < 40e6


@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_probabilities_are_the_softmax(rows):
    scores = np.array(rows)
    np.testing.assert_allclose(class_probabilities(scores), softmax(scores, axis=1), atol=1e-15)
