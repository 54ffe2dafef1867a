"""How the densities of selected nodes are tabulated on the workers, and the memory that this needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fxdask.errors import MemoryPlanError
from fxdask.planning.fit_plan import BINS_PER_BRACKET, BYTES_PER_BIN, COUNTING_SCRATCH, N_BRACKETS, FitPlan
from fxdask.planning.fit_search import REMEDY
from fxdask.sizes import format_bytes, rows_per_read

__all__ = ["TABLES_ABOVE", "TablePlan", "plan_tables"]

TABLES_ABOVE = 2**31
"""Bytes of all selected projections above which a model keeps tables instead, where its rule allows it."""
BYTES_OF_SUMS = 5 * 2**18  # of one class at one node, while its values are summed
BYTES_PER_SUMMED_SAMPLE = 48  # positions of one class's values of a read, and their bins


@dataclass(frozen=True, kw_only=True)
class TablePlan:
    """How the selected nodes are split into tasks."""

    fit: FitPlan
    """The plan of a fit of so many nodes per task, with counted brackets and one chunk for each read."""
    nodes_per_task: int
    task_bytes: int

    def groups(self, n_nodes: int) -> list[list[int]]:
        """The nodes of each task."""
        return [
            list(range(first, min(first + self.nodes_per_task, n_nodes)))
            for first in range(0, n_nodes, self.nodes_per_task)
        ]


def plan_tables(plan: FitPlan, n_nodes: int) -> TablePlan:
    """Split so many selected nodes into tasks that fit into memory; it does not grow with the number of samples."""
    per_read = min(plan.n_samples, rows_per_read(plan.n_features))
    streamed = replace(plan, samples_per_chunk=per_read, is_counted=True)
    fixed = streamed.reading_bytes + 8 * n_nodes * (8 * plan.tile.samples + 2 * plan.n_features)
    fixed += BYTES_PER_SUMMED_SAMPLE * per_read + COUNTING_SCRATCH
    bins = N_BRACKETS * BINS_PER_BRACKET * BYTES_PER_BIN
    kept = sum(max(4 * count, bins) for count in streamed.kept_counts)
    per_node = 8 * per_read + 4 * sum(streamed.probe_counts) + plan.n_classes * BYTES_OF_SUMS + kept
    per_task = -(-n_nodes // plan.tasks_at_a_time)
    if plan.resources is not None:
        allowed = plan.resources.per_task
        if fixed + per_node > allowed:
            raise MemoryPlanError(
                f"a task that tabulates one selected node needs {format_bytes(fixed + per_node)} but may use "
                f"{format_bytes(max(0, allowed))}; {REMEDY}"
            )
        per_task = max(1, min(per_task, (allowed - fixed) // per_node))
    return TablePlan(
        fit=replace(streamed, nodes_per_block=per_task, nodes_per_pass=per_task),
        nodes_per_task=per_task,
        task_bytes=fixed + per_task * per_node,
    )
