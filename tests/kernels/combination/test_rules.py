import math
from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fxdask
from fxdask.kernels.combination.base import ClassNodes, MarginalErrors, Marginals
from fxdask.kernels.combination.sum import SumRule
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.network import DensityOptions, NetworkParameters, SelectedNodes, assemble
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.scorer import DENSITIES, Scorer

OF_DENSITIES = [name for name, rule in COMBINATIONS.items() if not rule.needs_normal_scores]
# Scores of nearly equal size, and of sizes whose exponentials underflow or overflow float64.
SHIFTS = (0.0, -1e4, 1e4)


def drawn_class(rng, n_used, n_samples=5):
    """(used node, sample) log densities, and the class's spread and bandwidth at these nodes, some spreads 0."""
    terms = rng.normal(0, 3, (n_used, n_samples))
    spread = np.where(rng.random(n_used) < 0.3, 0, rng.uniform(0.5, 2, n_used))
    return terms, ClassNodes(spread, rng.uniform(0.1, 1, n_used))


def joined(rule, terms, nodes):
    """``rule.join`` of a copy, because it may overwrite the log densities."""
    return COMBINATIONS[rule].join(Marginals(terms.copy()), nodes).score


def bound_of(rule, terms, nodes, errors):
    """The bound on the error of the joined score, for errors of the log densities."""
    return COMBINATIONS[rule].join(Marginals(terms.copy()), nodes, MarginalErrors(errors, np.zeros_like(errors))).error


def joined_by_loops(rule, terms, nodes):
    """(used node, sample) log densities of one class -> (sample,) log scores, by the formula of the rule."""
    result = []
    for column in terms.T:
        logs = [float(term) for term in column]
        if rule == "scaled":
            widths = [s if s > 0 else h for s, h in zip(nodes.spread, nodes.bandwidth, strict=True)]
            logs = [term + math.log(width) for term, width in zip(logs, widths, strict=True)]
        if rule == "log":
            result.append(math.fsum(logs))
        else:
            top = max(logs)
            result.append(top + math.log(math.fsum(math.exp(term - top) for term in logs)))
    return result


def test_the_table_has_each_rule_under_its_name():
    assert list(COMBINATIONS) == ["sum", "scaled", "log", "joint"]
    assert all(rule.name == name for name, rule in COMBINATIONS.items())


@pytest.mark.parametrize("table", [COMBINATIONS, fxdask.CRITERIA], ids=["combinations", "criteria"])
def test_the_tables_are_read_only(table):
    assert isinstance(table, Mapping)
    name = next(iter(table))
    with pytest.raises(TypeError, match="does not support item assignment"):
        table["new"] = table[name]
    with pytest.raises(TypeError, match="does not support item deletion"):
        del table[name]


@pytest.mark.parametrize("rule", COMBINATIONS)
@given(n_classes=st.integers(2, 4), n_nodes=st.integers(1, 6), seed=st.integers(0, 999))
def test_used_nodes_are_those_of_the_class_or_of_all_classes(rule, n_classes, n_nodes, seed):
    member = np.random.default_rng(seed).random((n_classes, n_nodes)) < 0.5
    used = COMBINATIONS[rule].used_nodes(member)
    want = []
    for k in range(n_classes):
        want.append([u for u in range(n_nodes) if rule in ("log", "joint") or member[k, u]])
    assert used == want


@pytest.mark.parametrize("rule", COMBINATIONS)
@given(n_classes=st.integers(2, 4), n_selected=st.integers(1, 5), n_nodes=st.integers(5, 12), seed=st.integers(0, 999))
def test_n_densities_is_the_largest_number_of_used_nodes_of_all_classes(rule, n_classes, n_selected, n_nodes, seed):
    """Any choice of nodes uses at most so many densities, and choices with the fewest common nodes use all of them."""
    rng = np.random.default_rng(seed)

    def n_used(chosen):
        union = sorted({node for nodes in chosen for node in nodes})
        member = np.array([[node in nodes for node in union] for nodes in chosen])
        return sum(len(nodes) for nodes in COMBINATIONS[rule].used_nodes(member))

    bound = COMBINATIONS[rule].n_densities(n_classes, n_selected, n_nodes)
    assert n_used([rng.choice(n_nodes, n_selected, replace=False).tolist() for _ in range(n_classes)]) <= bound
    in_turn = np.arange(n_classes * n_selected).reshape(n_classes, n_selected) % n_nodes
    assert n_used(in_turn.tolist()) == bound


@pytest.mark.parametrize("rule", OF_DENSITIES)
@pytest.mark.parametrize("shift", SHIFTS)
@given(n_used=st.integers(1, 6), seed=st.integers(0, 999))
def test_join_equals_the_loop(rule, shift, n_used, seed):
    terms, nodes = drawn_class(np.random.default_rng(seed), n_used)
    terms += shift
    np.testing.assert_allclose(joined(rule, terms, nodes), joined_by_loops(rule, terms, nodes), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rule", OF_DENSITIES)
def test_join_of_one_sample_equals_that_sample_among_others(rule):
    terms, nodes = drawn_class(np.random.default_rng(1), 9, 40)
    together = joined(rule, terms, nodes)
    alone = [joined(rule, terms[:, i : i + 1], nodes)[0] for i in range(40)]
    assert together.tolist() == alone


@pytest.mark.parametrize("rule", OF_DENSITIES)
@given(n_used=st.integers(1, 6), seed=st.integers(0, 999))
def test_error_bound_covers_every_error_and_is_reached(rule, n_used, seed):
    rng = np.random.default_rng(seed)
    terms, nodes = drawn_class(rng, n_used)
    errors = rng.uniform(0, 1e-3, n_used)
    exact = joined(rule, terms, nodes)
    bound = bound_of(rule, terms, nodes, errors)
    for sign in (-1, 1):
        wrong = joined(rule, terms + sign * errors[:, None], nodes)
        assert (np.abs(wrong - exact) <= bound + 1e-12).all()
    largest = np.full(n_used, errors.max())
    wrong = joined(rule, terms + largest[:, None], nodes)
    assert wrong - exact == pytest.approx(bound_of(rule, terms, nodes, largest), rel=1e-6)


class CentreRule(SumRule):
    """A made-up rule that learns each class's first value and its mean at every node."""

    name = "centre"
    stored_arrays = ("first_value", "centre")

    def learn(self, values, class_slices):
        self.seen = values.copy()
        return {
            "first_value": np.array([values[:, columns][:, 0] for columns in class_slices]),
            "centre": np.array([values[:, columns].mean(axis=1) for columns in class_slices]),
        }

    def join(self, marginals, nodes, errors=None):
        self.joined_with = nodes
        return super().join(marginals, nodes, errors)


def assembled(rule, values, class_slices):
    """The parameters of a network of three nodes and two classes, with this rule."""
    weights = np.eye(3, dtype=np.float32)
    return assemble(
        Preprocessing(None, np.zeros(3, np.float32), None, 1.0),
        SelectedNodes(
            nodes=np.array([2, 5, 7]),
            weights=weights,
            values=values,
            class_slices=class_slices,
            tolerance=np.zeros((2, 3)),
        ),
        np.array([[2, 5], [7, 5]]),
        np.array([0.25, 0.75]),
        DensityOptions(
            bandwidth="silverman",
            bandwidth_spread="mad",
            location="interquartile_mean",
            spread="mad",
            shrink_spread=False,
            rule=rule,
        ),
    )[0]


def test_a_rule_learns_from_unsorted_values():
    values = np.random.default_rng(2).standard_normal((3, 50)).astype(np.float32)
    class_slices = [slice(0, 20), slice(20, 50)]
    before, rule = values.copy(), CentreRule()
    parameters = assembled(rule, values, class_slices)
    assert isinstance(parameters, NetworkParameters)
    assert np.array_equal(rule.seen, before)
    for columns in class_slices:
        assert np.array_equal(parameters.projections[:, columns], np.sort(before[:, columns], axis=1))
    assert set(parameters.learned) == set(rule.stored_arrays)
    assert np.array_equal(parameters.learned["first_value"], before[:, [0, 20]].T)
    assert np.array_equal(parameters.learned["centre"], [before[:, columns].mean(axis=1) for columns in class_slices])


@pytest.mark.parametrize("density", DENSITIES)
def test_a_rule_gets_its_learned_arrays_of_one_class_when_it_joins(density):
    values = np.random.default_rng(3).standard_normal((3, 50)).astype(np.float32)
    rule = CentreRule()
    parameters = assembled(rule, values, [slice(0, 20), slice(20, 50)])
    Scorer(parameters, density).class_scores(np.zeros((3, 4), np.float32))
    for name in rule.stored_arrays:
        assert np.array_equal(rule.joined_with.learned[name], parameters.learned[name][1])
    assert np.array_equal(rule.joined_with.spread, parameters.spread[1, parameters.member[1]])


@pytest.mark.parametrize("rule", OF_DENSITIES)
def test_the_rules_of_the_table_learn_nothing(rule):
    values = np.random.default_rng(4).standard_normal((3, 50)).astype(np.float32)
    parameters = assembled(COMBINATIONS[rule], values, [slice(0, 20), slice(20, 50)])
    assert COMBINATIONS[rule].stored_arrays == ()
    assert parameters.learned == {}


def test_learned_arrays_change_the_digest():
    values = np.random.default_rng(5).standard_normal((3, 50)).astype(np.float32)
    slices = [slice(0, 20), slice(20, 50)]
    parameters = assembled(CentreRule(), values.copy(), slices)
    reordered = values[:, [*range(19, -1, -1), *range(20, 50)]]
    other = assembled(CentreRule(), reordered, slices)
    assert np.array_equal(parameters.projections, other.projections)
    assert not np.array_equal(parameters.learned["first_value"], other.learned["first_value"])
    assert parameters.digest("table") != other.digest("table")


@given(n_used=st.integers(1, 30), n_samples=st.integers(2, 60), seed=st.integers(0, 999), size=st.floats(1e-9, 1e-2))
def test_the_joint_rules_bound_covers_every_error(n_used, n_samples, seed, size):
    rng = np.random.default_rng(seed)
    rule = COMBINATIONS["joint"]
    values = rng.standard_normal((n_used, n_samples)).astype(np.float32)
    learned = {name: of_classes[0] for name, of_classes in rule.learn(values, [slice(0, n_samples)]).items()}
    nodes = ClassNodes(np.ones(n_used), np.ones(n_used), learned)
    terms, scores = rng.normal(0, 3, (n_used, 9)), rng.normal(0, 2, (n_used, 9))
    errors = MarginalErrors(*(rng.uniform(0, size, (2, n_used))))
    found = rule.join(Marginals(terms.copy(), scores.copy(), 0), nodes, errors)
    for _ in range(20):
        signs = rng.choice([-1, 1], (2, *terms.shape))
        wrong = Marginals(
            terms + signs[0] * errors.log_density[:, None], scores + signs[1] * errors.normal_score[:, None]
        )
        assert (np.abs(rule.join(wrong, nodes).score - found.score) <= found.error + 1e-12).all()
