"""How a scoring is cut into ranges of samples, and what one of them takes: integer arithmetic, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fxdask.errors import MemoryPlanError
from fxdask.plan import MIB, SHARE_OF_LIMIT, Resources, format_bytes, tile_shape

__all__ = ["ScorePlan", "TestSet", "plan_scores", "rows_per_step"]

BYTES_PER_TASK = 64 * MIB
LANES = 4
LOOKUPS_PER_STEP = 2**18
BYTES_PER_LOOKUP = 9 * 8 + 4


def rows_per_tile(n_inputs: int) -> int:
    """Samples of one product with the few selected rows: half of what is best for many rows, for the cache's sake."""
    return tile_shape(n_inputs).samples // 2


def padded_rows(n_nodes: int) -> int:
    """Selected rows in whole vectors."""
    return -(-n_nodes // LANES) * LANES


def rows_per_step(n_inputs: int, n_used: int) -> int:
    """Samples whose densities are looked up together, at ``n_used`` nodes: enough that a call has much to do."""
    tile = rows_per_tile(n_inputs)
    return tile * max(1, LOOKUPS_PER_STEP // (n_used * tile))


@dataclass(frozen=True)
class TestSet:
    """What a plan must know of the samples to be scored."""

    __test__ = False  # no test, whatever its name may say to a test runner

    n_samples: int
    n_inputs: int
    itemsize: int = 4
    rows_per_chunk: int = 0
    """Samples that can only be read together; 0 where any range can be read by itself."""
    copies: int = 1
    """How often a range is in memory while it is read: encoded, decoded, put together."""
    chunk_bytes: int = 0
    """Memory of the largest chunk that a range is cut from, where that is made whole besides."""
    widened: bool = False
    """Whether preparing a sample goes by way of float64."""


@dataclass(frozen=True)
class ScorePlan:
    """Ranges of samples: each is one task, one read of whole chunks, and one chunk of the result.

    Examples
    --------
    >>> from fxdask.score_plan import TestSet, plan_scores
    >>> plan = plan_scores(TestSet(1_000_000, 784, rows_per_chunk=5_000), n_nodes=20, n_used=10, n_classes=2)
    >>> plan.rows_per_task, plan.n_tasks
    (20000, 50)
    """

    test_set: TestSet
    n_nodes: int
    n_used: int
    """Nodes of the class that uses the most."""
    n_classes: int
    rows_per_task: int
    bytes_allowed: int | None = None

    @property
    def n_tasks(self) -> int:
        """Ranges there are."""
        return -(-self.test_set.n_samples // self.rows_per_task)

    @property
    def task_bytes(self) -> int:
        """The most that one task takes at any time."""
        data, rows = self.test_set, min(self.rows_per_task, self.test_set.n_samples)
        step = min(rows, rows_per_step(data.n_inputs, self.n_used))
        tile = rows_per_tile(data.n_inputs)
        raw = max(data.copies * rows * data.n_inputs * data.itemsize, 2 * data.chunk_bytes)
        prepared = tile * data.n_inputs * (4 + (3 * 8 if data.widened else 0))
        products = 4 * (self.n_nodes * step + padded_rows(self.n_nodes) * tile)
        terms = step * (self.n_used * BYTES_PER_LOOKUP + 6 * 8)
        results = rows * (2 * 8 * self.n_classes + 2 * 8)
        return raw + prepared + products + terms + results

    def with_rows(self, rows_per_task: Any) -> ScorePlan | None:
        """The same with ranges of this length, if that is one, they fit into memory and are whole chunks."""
        if not isinstance(rows_per_task, int):
            return None
        plan = replace(self, rows_per_task=rows_per_task)
        whole = rows_per_task > 0 and rows_per_task % (self.test_set.rows_per_chunk or 1) == 0
        return plan if whole and (self.bytes_allowed is None or plan.task_bytes <= self.bytes_allowed) else None


def plan_scores(
    test_set: TestSet, n_nodes: int, n_used: int, n_classes: int, resources: Resources | None = None
) -> ScorePlan:
    """Choose ranges of whole chunks, up to 64 MiB of raw or prepared samples, that fit into memory.

    Parameters
    ----------
    test_set : TestSet
    n_nodes, n_used, n_classes : int
        Selected nodes, nodes of the class that uses the most, and classes.
    resources : Resources, optional
        Memory and threads; without them nothing is refused.

    Returns
    -------
    ScorePlan

    Examples
    --------
    >>> from fxdask.score_plan import TestSet, plan_scores
    >>> plan_scores(TestSet(1_000_000, 784), n_nodes=20, n_used=10, n_classes=2).rows_per_task
    20736
    """
    unit = test_set.rows_per_chunk or tile_shape(test_set.n_inputs).samples
    wanted = max(1, BYTES_PER_TASK // (max(4, test_set.itemsize) * test_set.n_inputs * unit))
    plan = ScorePlan(
        test_set, n_nodes, n_used, n_classes, unit * wanted, None if resources is None else resources.per_task
    )
    if resources is None:
        return plan
    while plan.task_bytes > resources.per_task and plan.rows_per_task > unit:
        plan = replace(plan, rows_per_task=unit * max(1, plan.rows_per_task // unit // 2))
    if plan.task_bytes > resources.per_task:
        needed = int((plan.task_bytes * resources.threads + resources.baseline) / SHARE_OF_LIMIT)
        what = f"one chunk of X ({unit:,} samples)"
        if not test_set.rows_per_chunk:
            what = "the largest chunk of X" if test_set.chunk_bytes else f"one tile of samples ({unit:,})"
        raise MemoryPlanError(
            f"scoring {what} needs {format_bytes(plan.task_bytes)} but a task may use "
            f"{format_bytes(max(0, resources.per_task))}; give each process at least {format_bytes(needed)} "
            f"(memory_limit, or the worker's own), fewer threads, or X in smaller chunks"
        )
    return plan
