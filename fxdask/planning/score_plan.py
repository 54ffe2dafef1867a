"""How scoring is split into row ranges, and the memory that one range needs: integer arithmetic only."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from fxdask.errors import MemoryPlanError
from fxdask.planning.machine import SHARE_OF_LIMIT, Resources
from fxdask.sizes import MIB, format_bytes, rows_per_step, scoring_tile, tile_shape

__all__ = ["SamplesToScore", "ScorePlan", "plan_scores"]

BYTES_PER_TASK = 64 * MIB
BYTES_PER_LOOKUP = 2 * 8


@dataclass(frozen=True, kw_only=True)
class SamplesToScore:
    """Size, type and chunks of the samples to score."""

    n_samples: int
    n_features: int
    itemsize: int = 4
    rows_per_chunk: int = 0
    """Rows of a chunk of X; 0 if any row range can be read efficiently."""
    copies: int = 1
    """Copies of a range in memory while it is read: encoded, decoded, concatenated."""
    chunk_bytes: int = 0
    """Memory of the largest chunk of a Dask array, which is computed whole before a range is cut from it."""
    decoded_bytes: int = 0
    """Memory of the largest row group of Parquet, which is decoded whole before a range is cut from it."""
    widened: bool = False
    """Whether preprocessing makes float64 copies."""


@dataclass(frozen=True, kw_only=True)
class ScorePlan:
    """Row ranges of the samples: each is one task, one read of whole chunks, and one chunk of the result.

    Examples
    --------
    >>> from fxdask.planning.score_plan import SamplesToScore, plan_scores
    >>> samples = SamplesToScore(n_samples=1_000_000, n_features=784, rows_per_chunk=5_000)
    >>> plan = plan_scores(samples, n_nodes=20, n_used=10, n_classes=2)
    >>> plan.rows_per_task, plan.n_tasks
    (20000, 50)
    """

    samples: SamplesToScore
    n_nodes: int
    n_used: int
    """Nodes of the class that uses most nodes."""
    n_classes: int
    rows_per_task: int
    bytes_allowed: int | None = None

    @property
    def n_tasks(self) -> int:
        """Number of row ranges; each is one task."""
        return -(-self.samples.n_samples // self.rows_per_task)

    @property
    def task_bytes(self) -> int:
        """Upper estimate of the memory of one task."""
        data, rows = self.samples, min(self.rows_per_task, self.samples.n_samples)
        step = min(rows, rows_per_step(data.n_features, self.n_used))
        tile = scoring_tile(self.n_nodes, data.n_features)
        raw = max(data.copies * rows * data.n_features * data.itemsize, 2 * data.chunk_bytes) + data.decoded_bytes
        preprocessed = tile.samples * data.n_features * (4 + (3 * 8 if data.widened else 0))
        products = 4 * (self.n_nodes * step + tile.nodes * tile.samples)
        terms = step * (self.n_used * BYTES_PER_LOOKUP + 4 * 8 * self.n_classes + 6 * 8)
        results = rows * (2 * 8 * self.n_classes + 6 * 8)  # scores twice; labels; steps of the likelihood
        return raw + preprocessed + products + terms + results

    def with_rows(self, rows_per_task: Any) -> ScorePlan | None:
        """The same plan with ranges of this length, or None if they are not whole chunks or do not fit into memory."""
        if not isinstance(rows_per_task, int):
            return None
        plan = replace(self, rows_per_task=rows_per_task)
        whole = rows_per_task > 0 and rows_per_task % (self.samples.rows_per_chunk or 1) == 0
        return plan if whole and (self.bytes_allowed is None or plan.task_bytes <= self.bytes_allowed) else None


def plan_scores(
    samples: SamplesToScore, n_nodes: int, n_used: int, n_classes: int, resources: Resources | None = None
) -> ScorePlan:
    """Choose row ranges of whole chunks, up to 64 MiB of raw or preprocessed samples, that fit into memory.

    Parameters
    ----------
    samples : SamplesToScore
    n_nodes, n_used, n_classes : int
        Selected nodes, nodes of the class that uses most nodes, and classes.
    resources : Resources, optional
        Memory and threads; if None, memory is not checked.

    Returns
    -------
    ScorePlan

    Examples
    --------
    >>> from fxdask.planning.score_plan import SamplesToScore, plan_scores
    >>> samples = SamplesToScore(n_samples=1_000_000, n_features=784)
    >>> plan_scores(samples, n_nodes=20, n_used=10, n_classes=2).rows_per_task
    20736
    """
    unit = samples.rows_per_chunk or tile_shape(samples.n_features).samples
    wanted = max(1, BYTES_PER_TASK // (max(4, samples.itemsize) * samples.n_features * unit))
    plan = ScorePlan(
        samples=samples,
        n_nodes=n_nodes,
        n_used=n_used,
        n_classes=n_classes,
        rows_per_task=unit * wanted,
        bytes_allowed=None if resources is None else resources.per_task,
    )
    if resources is None:
        return plan
    while plan.task_bytes > resources.per_task and plan.rows_per_task > unit:
        plan = replace(plan, rows_per_task=unit * max(1, plan.rows_per_task // unit // 2))
    if plan.task_bytes > resources.per_task:
        needed = int((plan.task_bytes * resources.threads + resources.baseline) / SHARE_OF_LIMIT)
        pieces = "row groups" if samples.decoded_bytes else "chunks"
        what = f"one chunk of X ({unit:,} samples)"
        if not samples.rows_per_chunk:
            what = "the largest chunk of X" if samples.chunk_bytes else f"one tile of samples ({unit:,})"
            what = "the largest row group of X" if samples.decoded_bytes else what
        raise MemoryPlanError(
            f"scoring {what} needs {format_bytes(plan.task_bytes)} but a task may use "
            f"{format_bytes(max(0, resources.per_task))}; give each process a memory limit of at least "
            f"{format_bytes(needed)} (memory_limit for local threads), or use fewer threads or smaller {pieces} of X"
        )
    return plan
