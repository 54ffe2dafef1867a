"""Activations are planned: tasks and results stay below the memory that they may use, or are refused."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import MemoryPlanError
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.machine import Resources
from fxdask.planning.respond_plan import plan_responses

MIB = 2**20


def fitted(n_samples=10_000, n_nodes=10_000, nodes_per_block=2_000):
    return FitPlan(
        n_nodes=n_nodes,
        n_features=50,
        class_counts=(n_samples // 2, n_samples - n_samples // 2),
        n_selected=10,
        nodes_per_block=nodes_per_block,
    )


@given(
    n_points=st.integers(0, 10**6),
    limit=st.integers(100 * MIB, 64 * 2**30),
    caller=st.integers(MIB, 64 * 2**30),
    threads=st.integers(1, 8),
    from_store=st.booleans(),
    nodes_per_block=st.integers(1, 10_000),
)
def test_plans_fit_into_memory(n_points, limit, caller, threads, from_store, nodes_per_block):
    resources = Resources(limit=limit, baseline=0, threads=threads)
    fit = fitted(nodes_per_block=nodes_per_block)
    try:
        plan = plan_responses(fit, n_points, resources, caller, from_store=from_store)
    except MemoryPlanError:
        least = plan_responses(fit, 1, Resources(limit=2**50, baseline=0, threads=1), 2**50, from_store=from_store)
        smallest = fitted(nodes_per_block=min(nodes_per_block, fit.tile.nodes)).task_bytes
        assert max(least.task_bytes, smallest) > resources.per_task or least.result_bytes > caller
        return
    assert plan.task_bytes <= resources.per_task
    assert plan.result_bytes <= caller
    assert 1 <= plan.points_at_a_time <= max(1, n_points)
    assert plan.fit.nodes_per_block == nodes_per_block or not from_store


def test_refusals_tell_both_numbers():
    with pytest.raises(MemoryPlanError, match=r"384 nodes at one sample need .* but a task may use 6.0 MiB; give each"):
        plan_responses(fitted(), 5, Resources(limit=10 * MIB, baseline=0, threads=1), 2**40, from_store=False)
    with pytest.raises(MemoryPlanError, match=r"one sample take 312.5 KiB but 1.0 KiB are free"):
        plan_responses(fitted(), 5, Resources(limit=2**40, baseline=0, threads=1), 1024, from_store=False)
