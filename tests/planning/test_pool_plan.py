"""Plans of joint selections: every candidate and sample once, within memory, or refused with both numbers."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import MemoryPlanError
from fxdask.kernels.copula import rank_scores, score_sums
from fxdask.kernels.joint_selection import factor_bytes
from fxdask.planning import pool_plan
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize
from fxdask.planning.machine import Resources
from fxdask.planning.pool_plan import POOL_TILE_NODES, plan_pool, pool_size_for

GIB = 2**30


def planned(counts, n_nodes=2_000, n_features=20, n_selected=5, resources=None):
    size = FitSize(n_nodes=n_nodes, n_features=n_features, class_counts=tuple(counts), n_selected=n_selected)
    return plan_fit(size, resources=resources)


@given(
    counts=st.lists(st.integers(2, 200_000), min_size=2, max_size=6),
    n_candidates=st.integers(1, 2_000),
    gibibytes=st.sampled_from([2, 4, 64]),
    threads=st.integers(1, 8),
)
def test_candidates_and_samples_are_covered_once_within_memory(counts, n_candidates, gibibytes, threads):
    resources = Resources(limit=gibibytes * GIB, baseline=GIB // 8, threads=threads, processes=1)
    try:
        fit = planned(counts, resources=resources)
        plan = plan_pool(fit, 100, n_candidates=n_candidates, in_store=True)
    except MemoryPlanError:
        assert gibibytes < 64  # the most that any of these needs
        return
    blocks = [plan.block(index) for index in range(plan.n_tasks)]
    assert [node for block in blocks for node in range(block.start, block.stop)] == list(range(n_candidates))
    whole_products = plan.candidates_per_task % POOL_TILE_NODES == 0
    assert whole_products or plan.candidates_per_task < POOL_TILE_NODES or plan.n_tasks <= threads
    values = (4 + 2) * plan.candidates_per_task * plan.n_samples
    assert values <= resources.per_task
    fixed, per_sample = plan.sum_bytes(in_store=True)
    assert fixed + plan.samples_per_sum * per_sample <= resources.per_task
    covered = 0
    for k, start, stop in plan.sample_ranges():
        assert start == covered
        assert sum(counts[:k]) <= start < stop <= sum(counts[: k + 1])
        covered = stop
    assert covered == sum(counts)
    assert 1 <= plan.samples_per_chunk <= plan.n_samples


@given(n_classes=st.integers(2, 200), n_selected=st.integers(1, 50))
def test_an_automatic_pool_is_as_large_as_its_factors_allow(n_classes, n_selected):
    found = pool_size_for(n_classes, n_selected)
    assert n_selected <= found <= max(100, 10 * n_selected)
    if found > n_selected:
        assert factor_bytes(n_classes, found * n_classes, n_selected * n_classes) <= GIB
        more = factor_bytes(n_classes, (found + 1) * n_classes, n_selected * n_classes)
        assert found == max(100, 10 * n_selected) or more > GIB


def test_the_plan_counts_the_factors_of_the_selection():
    plan = plan_pool(planned([50] * 10), 100, in_store=True)
    assert plan.caller_bytes >= factor_bytes(10, plan.n_candidates, plan.n_nodes)


@pytest.mark.parametrize("in_store", [True, False])
def test_a_pool_larger_than_memory_is_refused_with_both_numbers(in_store):
    resources = Resources(limit=GIB, baseline=GIB // 8, threads=1, with_caller=True)
    fit = planned([100] * 20, n_nodes=20_000, n_selected=20, resources=resources)
    with pytest.raises(MemoryPlanError, match=r"400 nodes among 20,000 candidates .* needs .*iB but .* may use .*iB"):
        plan_pool(fit, 1_000, in_store=in_store)


@pytest.mark.parametrize(
    ("pool_size", "remedy"), [(10, "; reduce n_selected,"), (11, "; reduce pool_size or n_selected,")]
)
def test_the_refusal_asks_for_fewer_candidates_only_if_there_may_be_fewer(pool_size, remedy):
    resources = Resources(limit=4 * GIB, baseline=GIB // 8, threads=1, with_caller=True)
    fit = planned([2] * 100, n_nodes=1_000, n_selected=10, resources=resources)
    assert pool_size_for(100, 10) == 10
    with pytest.raises(MemoryPlanError, match=remedy):
        plan_pool(fit, pool_size, in_store=True)


def test_one_candidate_of_too_many_samples_is_refused_with_both_numbers(monkeypatch):
    resources = Resources(limit=GIB, baseline=GIB // 8, threads=1, processes=1)
    fit = planned([100, 100], resources=resources)
    monkeypatch.setattr(pool_plan, "RANK_BYTES", GIB)
    with pytest.raises(MemoryPlanError, match=r"one candidate .* needs .*iB but a task may use .*iB"):
        plan_pool(fit, 100, in_store=True)


def test_sums_of_too_many_candidates_are_refused_with_both_numbers():
    resources = Resources(limit=GIB, baseline=GIB // 8, threads=4, processes=1)
    fit = planned([100, 100], n_nodes=9_000, resources=resources)
    with pytest.raises(MemoryPlanError, match=r"correlations of 9,000 candidates need .*iB but a task may use .*iB"):
        plan_pool(fit, 100, n_candidates=9_000, in_store=True)


@pytest.mark.parametrize("n_samples", [1_000, 9_000])
def test_sums_take_the_memory_of_the_plan(n_samples):
    plan = plan_pool(planned([n_samples, 50]), 100, n_candidates=300, in_store=False)
    fixed, per_sample = plan.sum_bytes(in_store=False)
    scores = np.ones((300, n_samples), np.int16)
    tracemalloc.start()
    score_sums(scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert scores.nbytes + peak <= fixed + n_samples * per_sample


def test_candidates_are_ranked_in_the_memory_of_the_plan():
    """The scores of the candidates are counted beside; those of the ranks are computed once for each length."""
    values, n_samples = np.random.default_rng(0).standard_normal((2, 100_001), np.float32), 100_001
    scores = np.empty(values.shape, np.int16)
    rank_scores(values[:, :10])
    tracemalloc.start()
    rank_scores(values, sort=True, out=scores)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak <= 1.01 * pool_plan.RANK_BYTES * n_samples
