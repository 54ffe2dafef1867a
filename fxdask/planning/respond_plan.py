"""What the activations of all nodes take: nodes for each task, samples at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fxdask.errors import MemoryPlanError
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.machine import SHARE_OF_LIMIT, Resources
from fxdask.sizes import format_bytes

__all__ = ["ResponsePlan", "plan_responses"]

TASK_SCRATCH = 48 * 2**20
"""Bytes of a task that depend neither on the samples nor on the nodes: sorted rows, bins, transforms."""
SCRATCH_PER_POINT = 2**16
"""Bytes of interpolation for each sample, at the rows that are interpolated together."""


@dataclass(frozen=True, kw_only=True)
class ResponsePlan:
    """How activations are computed: in blocks of nodes, for some samples at a time."""

    fit: FitPlan
    """The plan of the fit, with the nodes for each task of this job."""
    n_points: int
    points_at_a_time: int
    from_store: bool
    """Whether the training values are read from the store, in its own blocks."""

    @property
    def task_bytes(self) -> int:
        """Upper estimate of the memory of one task, in addition to the baseline of its process."""
        fit = self.fit
        values = 8 * fit.nodes_per_block * fit.n_samples if self.from_store else fit.task_bytes
        return (
            values
            + TASK_SCRATCH
            + self.points_at_a_time * (8 * fit.nodes_per_block * (fit.n_classes + 2) + SCRATCH_PER_POINT)
        )

    @property
    def result_bytes(self) -> int:
        """The activations of the samples that are computed together, in parts and as a whole."""
        return 2 * 8 * self.points_at_a_time * self.fit.n_classes * self.fit.n_nodes


def plan_responses(
    fit: FitPlan, n_points: int, resources: Resources, caller_bytes: int, *, from_store: bool
) -> ResponsePlan:
    """Choose nodes and samples so that tasks and their result fit into memory.

    Fewer nodes cost little. Fewer samples at a time mean that all training samples are read again, so that
    is the last resort. ``caller_bytes`` is the memory for the result.
    """
    whole = replace(fit, nodes_per_pass=fit.nodes_per_block, samples_per_chunk=0, is_counted=False, kept=())
    plan = ResponsePlan(fit=whole, n_points=n_points, points_at_a_time=max(1, n_points), from_store=from_store)
    while plan.task_bytes > resources.per_task and not from_store and plan.fit.nodes_per_block > fit.tile.nodes:
        nodes = max(fit.tile.nodes, plan.fit.nodes_per_block // 2 // fit.tile.nodes * fit.tile.nodes)
        plan = replace(plan, fit=replace(plan.fit, nodes_per_block=nodes, nodes_per_pass=nodes))
    while (plan.task_bytes > resources.per_task or plan.result_bytes > caller_bytes) and plan.points_at_a_time > 1:
        plan = replace(plan, points_at_a_time=plan.points_at_a_time // 2)
    if plan.task_bytes > resources.per_task:
        needed = int((plan.task_bytes * resources.threads + resources.baseline) / SHARE_OF_LIMIT)
        raise MemoryPlanError(
            f"the activations of {plan.fit.nodes_per_block:,} nodes at one sample need {format_bytes(plan.task_bytes)} "
            f"but a task may use {format_bytes(max(0, resources.per_task))}; give each process a memory limit of at "
            f"least {format_bytes(needed)} (memory_limit for local threads), or use fewer threads"
        )
    if plan.result_bytes > caller_bytes:
        raise MemoryPlanError(
            f"the activations of one sample take {format_bytes(plan.result_bytes)} but {format_bytes(caller_bytes)} "
            "are free; free some memory, or raise memory_limit"
        )
    return plan
