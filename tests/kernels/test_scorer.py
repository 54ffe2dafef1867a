import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from threading import Barrier

import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax

from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.density.cells import LARGEST_ERROR
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.network import NetworkParameters
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.scorer import (
    DENSITIES,
    Scorer,
    class_probabilities,
    forget_received,
    log_likelihood,
    merge_scored,
)


def network(rng, n_classes, n_nodes, counts, combine):
    slices = [slice(a, a + c) for a, c in zip(np.cumsum([0, *counts[:-1]]).tolist(), counts, strict=True)]
    member = rng.random((n_classes, n_nodes)) < 0.6
    member[:, 0] = True
    member[rng.integers(0, n_classes, n_nodes), np.arange(n_nodes)] = True  # every node is selected by a class
    priors = rng.uniform(0.2, 1, n_classes)
    weights = rng.standard_normal((n_nodes, 3)).astype(np.float32)
    values = np.concatenate([rng.standard_normal((n_nodes, c)).astype(np.float32) for c in counts], axis=1)
    learned = COMBINATIONS[combine].learn(values, slices)
    for columns in slices:
        values[:, columns].sort(axis=1)
    return NetworkParameters(
        preprocessing=Preprocessing(None, np.zeros(3, np.float32), None, 1.0),
        nodes=np.arange(n_nodes),
        weights=weights,
        projections=values,
        class_slices=slices,
        bandwidth=rng.uniform(0.05, 1, (n_classes, n_nodes)),
        location=0.3 * rng.standard_normal((n_classes, n_nodes)),
        spread=rng.uniform(0.5, 2, (n_classes, n_nodes)),
        member=member,
        log_priors=np.log(priors / priors.sum()),
        rule=COMBINATIONS[combine],
        learned=learned,
    )


def with_values(net, values, scale):
    """The same network with other (node, sample) training values, from which its rule has learned."""
    projections = (scale * values).astype(np.float32)
    learned = net.rule.learn(projections, net.class_slices)
    for columns in net.class_slices:
        projections[:, columns].sort(axis=1)
    widths = {"bandwidth": 0.3 * net.bandwidth, "location": net.location, "spread": net.spread}
    scaled = {name: scale * of_unit for name, of_unit in widths.items()}
    return replace(net, projections=projections, learned=learned, **scaled)


def table_error(combine, n_nodes):
    """Bound on the error of a score from tables; the joint rule's is checked against its own bound elsewhere."""
    return {"log": n_nodes * LARGEST_ERROR, "joint": 1e-4}.get(combine, LARGEST_ERROR)


@pytest.mark.parametrize("combine", COMBINATIONS)
@pytest.mark.parametrize("density", DENSITIES)
@given(
    seed=st.integers(0, 9999),
    n_classes=st.integers(2, 4),
    n_nodes=st.integers(1, 4),
    far=st.sampled_from([1, 1e3, 1e6]),
)
def test_scores_and_labels_equal_the_oracle(combine, density, seed, n_classes, n_nodes, far):
    rng = np.random.default_rng(seed)
    counts = rng.integers(2, 9, n_classes).tolist()
    net = network(rng, n_classes, n_nodes, counts, combine)
    points = (far * rng.standard_normal((n_nodes, 5))).astype(np.float32)
    got = Scorer(net, density).class_scores(points).scores
    codes = np.repeat(np.arange(n_classes), counts)
    selected = [np.flatnonzero(row).tolist() for row in net.member]
    widths, priors = (net.bandwidth, net.location, net.spread), np.exp(net.log_priors)
    if combine == "joint":
        correlations = [np.linalg.inv(one + np.eye(n_nodes)) for one in net.learned["precision"]]
        want = oracles.joint_log_scores(points, net.projections, codes, correlations, *widths, priors)
    else:
        want = oracles.log_scores(points, net.projections, codes, selected, *widths[::2], priors, combine)
    # A sum of densities keeps their relative error, but the errors of a sum of logarithms add up.
    error = 1e-9 if density == "exact" else table_error(combine, n_nodes)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=error)
    assert np.array_equal(got.argmax(axis=1), want.argmax(axis=1))


def hard_points(rng, net):
    """(node, point) values that are difficult for tables: at samples and edges, in gaps, in tails, far away."""
    low, high = net.projections.min(axis=1), net.projections.max(axis=1)
    width = net.bandwidth.max(axis=0)
    kinds = [
        net.projections[:, rng.integers(0, net.projections.shape[1], 40)],
        np.linspace(low - 9 * width, high + 9 * width, 60, axis=1),
        high[:, None] + width[:, None] * np.geomspace(0.1, 1e12, 40),
        low[:, None] - width[:, None] * np.geomspace(0.1, 1e12, 40),
    ]
    return np.concatenate([rng.permuted(kind, axis=1) for kind in kinds], axis=1).astype(np.float32)


KINDS_OF_VALUES = {
    "normal": lambda rng, shape: rng.standard_normal(shape),
    "heavy tails": lambda rng, shape: rng.standard_cauchy(shape),
    "repeated": lambda rng, shape: rng.integers(-2, 3, shape) * 0.7,
    "outlier": lambda rng, shape: np.where(np.arange(shape[1]) == 0, 1e4, rng.standard_normal(shape)),
    "clusters": lambda rng, shape: rng.standard_normal(shape) + 40 * rng.integers(0, 2, shape),
    "constant": lambda rng, shape: np.ones(shape),
}


@pytest.mark.parametrize("kind", KINDS_OF_VALUES)
@pytest.mark.parametrize("scale", [1e-20, 1.0, 1e20])
@pytest.mark.parametrize("combine", COMBINATIONS)
def test_labels_from_tables_equal_labels_from_exact_sums(kind, scale, combine):
    rng = np.random.default_rng(5)
    net = network(rng, 3, 4, [60, 90, 40], combine)
    net = with_values(net, KINDS_OF_VALUES[kind](rng, net.projections.shape), scale)
    points = hard_points(rng, net)
    looked_up, exact = Scorer(net).class_scores(points), Scorer(net, "exact").class_scores(points)
    assert np.array_equal(looked_up.scores.argmax(axis=1), exact.scores.argmax(axis=1))
    np.testing.assert_allclose(looked_up.scores, exact.scores, rtol=1e-13, atol=table_error(combine, 4))
    assert looked_up.n_exact < points.shape[1] / 4
    assert exact.n_exact == points.shape[1]


def test_tied_samples_are_scored_by_exact_sums():
    """Two classes have the same samples, so all scores are equal up to the last bits, and every sample is summed."""
    rng = np.random.default_rng(6)
    net = network(rng, 2, 3, [50, 50], "sum")
    net.projections[:, 50:] = net.projections[:, :50]
    net.bandwidth[1], net.member[1], net.log_priors[:] = net.bandwidth[0], net.member[0], np.log(0.5)
    points = hard_points(rng, net)
    looked_up = Scorer(net).class_scores(points)
    assert looked_up.n_exact == points.shape[1]
    assert np.array_equal(looked_up.scores, Scorer(net, "exact").class_scores(points).scores)


@pytest.mark.parametrize("combine", ["sum", "joint"])
def test_labels_at_the_boundary_between_two_classes_are_exact(combine):
    """Thousands of neighbouring float32 values around a point where both scores are equal."""
    rng = np.random.default_rng(7)
    net = network(rng, 2, 1, [400, 300], combine)
    net.projections[0, :400] -= 1
    exact = Scorer(net, "exact")
    low, high = np.float32(-2), np.float32(2)
    while np.nextafter(low, high) < high:
        middle = np.float32((low + high) / 2)
        is_second = exact.class_scores(np.array([[middle]])).scores.argmax()
        low, high = (low, middle) if is_second else (middle, high)
    near = low + np.spacing(low) * np.arange(-4_000, 4_000, dtype=np.float32)
    want = exact.class_scores(near[None]).scores.argmax(axis=1)
    got = Scorer(net).class_scores(near[None])
    assert np.array_equal(got.scores.argmax(axis=1), want)
    assert len(np.unique(want)) == 2
    assert 0 < got.n_exact < 8_000


@pytest.mark.parametrize("combine", ["sum", "joint"])
@given(seed=st.integers(0, 999), count=st.integers(1, 9))
def test_a_score_does_not_depend_on_other_samples(combine, seed, count):
    rng = np.random.default_rng(seed)
    for density in DENSITIES:
        scorer = Scorer(network(rng, 3, 4, [30, 2, 5], combine), density)
        points = rng.standard_normal((4, count)).astype(np.float32)
        together = scorer.class_scores(points).scores
        for i in range(count):
            assert np.array_equal(scorer.class_scores(points[:, i : i + 1], i).scores[0], together[i])


@pytest.mark.parametrize("combine", ["sum", "joint"])
@given(seed=st.integers(0, 999), cuts=st.lists(st.integers(0, 3_000), max_size=4), n_nodes=st.sampled_from([3, 17]))
def test_scores_do_not_depend_on_how_samples_are_split(combine, seed, cuts, n_nodes):
    rng = np.random.default_rng(seed)
    net = Scorer(network(rng, 2, n_nodes, [30, 40], combine))
    samples = rng.standard_normal((3_000, 3)).astype(np.float32)
    parts = [net.log_scores(samples[low:high], low) for low, high in pairwise([0, *sorted(cuts), 3_000])]
    assert np.array_equal(merge_scored(parts, 2).scores, net.log_scores(samples).scores)


def test_no_samples_give_no_scores():
    net = network(np.random.default_rng(0), 3, 2, [4, 4, 4], "sum")
    for density in DENSITIES:
        assert Scorer(net, density).log_scores(np.empty((0, 3), np.float32)).scores.shape == (0, 3)


def test_an_unknown_density_is_refused():
    net = network(np.random.default_rng(0), 2, 1, [4, 4], "sum")
    with pytest.raises(ValueError, match="density='tables' is not known; choose one of 'table', 'exact'"):
        Scorer(net, "tables")


def test_a_pickled_scorer_has_no_tables():
    rng = np.random.default_rng(2)
    scorer = Scorer(network(rng, 2, 2, [40, 30], "log"))
    points = rng.standard_normal((2, 50)).astype(np.float32)
    bare = len(pickle.dumps(scorer))
    scores = scorer.class_scores(points).scores
    assert len(pickle.dumps(scorer)) == bare
    assert np.array_equal(pickle.loads(pickle.dumps(scorer)).class_scores(points).scores, scores)


def test_a_scorer_that_is_received_again_has_its_tables():
    rng = np.random.default_rng(3)
    net = network(rng, 2, 2, [40, 30], "joint")
    points = rng.standard_normal((2, 50)).astype(np.float32)
    sent = pickle.dumps(Scorer(net))
    received = pickle.loads(sent)
    bare = received.n_bytes
    scores = received.class_scores(points).scores
    assert received.n_bytes > bare
    again = pickle.loads(sent)
    assert again is received
    assert np.array_equal(again.class_scores(points).scores, scores)
    tables = id(next(iter(received._tables.values())))
    del received, again
    assert id(next(iter(pickle.loads(sent)._tables.values()))) == tables, "kept although nothing used it"
    forget_received()
    assert not pickle.loads(sent)._tables


@pytest.mark.parametrize("part", ["nodes", "weights", "projections", "location", "bandwidth", "log_priors", "density"])
def test_a_scorer_that_differs_in_any_part_is_another_one(part):
    net = network(np.random.default_rng(4), 2, 2, [40, 30], "sum")
    if part == "density":
        other = Scorer(net, "exact")
    else:
        array = getattr(net, part)
        other = Scorer(replace(net, **{part: array + array.dtype.type(1)}))
    first, second = pickle.loads(pickle.dumps(Scorer(net))), pickle.loads(pickle.dumps(other))
    assert first.key() == Scorer(net).key() != second.key() == other.key()
    assert second.density == other.density
    if part != "density":
        assert np.array_equal(getattr(second.parameters, part), getattr(other.parameters, part))


def test_threads_build_each_table_once(monkeypatch):
    rng = np.random.default_rng(5)
    scorer = Scorer(network(rng, 3, 4, [40, 30, 20], "joint"))
    points, barrier, built = rng.standard_normal((4, 50)).astype(np.float32), Barrier(4), []
    many = DensityTable.many.__func__
    monkeypatch.setattr(
        DensityTable, "many", classmethod(lambda cls, densities: built.extend(densities) or many(cls, densities))
    )

    def scores(_):
        barrier.wait()
        return scorer.class_scores(points).scores

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(scores, range(4)))
    assert all(np.array_equal(found[0], other) for other in found[1:])
    assert len(built) == sum(map(len, scorer.used_nodes))


def test_a_far_outlier_is_labelled_although_its_densities_underflow():
    """Every density underflows to zero, but the class with the larger bandwidth still has the larger score."""
    rng = np.random.default_rng(0)
    net = network(rng, 2, 1, [50, 50], "sum")
    net.bandwidth[:] = [[0.1], [1.0]]
    scores = Scorer(net).class_scores(np.array([[1e4]], np.float32)).scores
    assert np.isfinite(scores).all()
    assert np.exp(scores).max() == 0
    assert scores.argmax() == 1
    assert class_probabilities(scores)[0, 1] == 1


def test_memory_does_not_grow_with_the_square_of_the_classes():
    """The densities of all classes at all nodes together would take 390 MB."""
    rng = np.random.default_rng(1)
    net = network(rng, 80, 800, [2] * 80, "sum")
    net.member[:] = np.repeat(np.eye(80, dtype=bool), 10, axis=1)
    points = rng.standard_normal((800, 768)).astype(np.float32)
    scorer = Scorer(net)
    tracemalloc.start()
    scores = scorer.class_scores(points).scores
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert scores.shape == (768, 80)
    assert peak < 40e6


@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_probabilities_are_the_softmax_of_the_scores(rows):
    scores = np.array(rows)
    np.testing.assert_allclose(class_probabilities(scores), softmax(scores, axis=1), atol=1e-15)


@given(st.lists(st.lists(st.floats(-1e9, 1e9), min_size=3, max_size=3), min_size=1, max_size=5))
def test_the_likelihood_is_the_sum_of_all_scores(rows):
    expected = oracles.evaluation(rows, [0] * len(rows), range(3))["score_samples"]
    scores = np.array(rows)
    np.testing.assert_allclose(log_likelihood(scores), expected, rtol=1e-14, atol=1e-14)
    assert np.array_equal(scores, rows), "the scores are not changed"
    assert [float(log_likelihood(row[None])[0]) for row in scores] == log_likelihood(scores).tolist()
