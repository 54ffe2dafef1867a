"""How the candidates of a joint selection are split into tasks, and the memory that they need."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from fxdask.errors import MemoryPlanError
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.rank_plan import RankSize, ReliefPlan, plan_relief
from fxdask.sizes import NodeBlock, format_bytes, padded_length

__all__ = ["POOL_TILE_NODES", "PoolPlan", "plan_pool", "plan_pool_relief", "pool_size_for"]

POOL_TILE_NODES = 96
"""Candidates in one product; part of what a result depends on, like the tile shape of a fit."""

CANDIDATES_PER_NODE = 10
FEWEST_CANDIDATES = 100
FACTOR_BYTES = 2**30
SAMPLES_PER_SUM = 2**15
SMALLEST_SCORE_CHUNK = 2**14
MOST_SCORE_CHUNKS = 64
CHUNKS_AT_A_TIME = 10  # that Zarr decodes
RANK_BYTES = 20  # of one value of the row that is ranked: float64 and int16 scores of all ranks, two for each value


def pool_size_for(n_classes: int, n_selected: int) -> int:
    """Candidates of each class: ten for every node to select, at least 100, fewer where the factors would exceed 1 GiB.

    Never fewer than the nodes to select, so with very many classes the factors may still exceed it. It
    depends on the number of classes and nodes alone, because the result depends on it.
    """
    per_candidate = _factor_bytes(n_classes, 1, n_selected * n_classes)
    wanted = max(FEWEST_CANDIDATES, CANDIDATES_PER_NODE * n_selected)
    return max(n_selected, min(wanted, FACTOR_BYTES // per_candidate // n_classes))


def _factor_bytes(n_classes: int, n_candidates: int, n_nodes: int) -> int:
    """One column of every factor for each node, for all candidates; a factor for each class and each pair of them."""
    return 8 * n_candidates * n_nodes * n_classes * (n_classes + 1) // 2


@dataclass(frozen=True, kw_only=True)
class PoolPlan:
    """How the candidates of a joint selection are measured: some candidates a task, then some samples a task."""

    n_candidates: int
    n_nodes: int
    """The largest number of nodes to select."""
    class_counts: tuple[int, ...]
    candidates_per_task: int
    samples_per_sum: int = SAMPLES_PER_SUM
    """Samples of one task that sums products of scores."""

    @property
    def n_samples(self) -> int:
        """Number of training samples."""
        return sum(self.class_counts)

    @property
    def n_tasks(self) -> int:
        """Number of tasks that measure candidates."""
        return -(-self.n_candidates // self.candidates_per_task)

    def block(self, index: int) -> NodeBlock:
        """The candidates of one task, as positions in the pool."""
        start = index * self.candidates_per_task
        return NodeBlock(index, start, min(start + self.candidates_per_task, self.n_candidates))

    @property
    def samples_per_chunk(self) -> int:
        """Samples in one chunk of the stored scores."""
        return min(self.n_samples, max(SMALLEST_SCORE_CHUNK, -(-self.n_samples // MOST_SCORE_CHUNKS)))

    def sample_ranges(self) -> list[tuple[int, int, int]]:
        """(class, start, stop) of each task that sums products of scores, in samples sorted by class."""
        edges = pairwise([0, *accumulate(self.class_counts)])
        return [
            (k, low, min(low + self.samples_per_sum, stop))
            for k, (start, stop) in enumerate(edges)
            for low in range(start, stop, self.samples_per_sum)
        ]

    @property
    def score_bytes(self) -> int:
        """Size of the normal scores of all candidates."""
        return 2 * self.n_candidates * self.n_samples

    def sum_bytes(self, *, in_store: bool) -> tuple[int, int]:
        """Memory of a task that sums products: a fixed part, and that of one sample."""
        chunks = min(self.n_candidates, CHUNKS_AT_A_TIME * self.candidates_per_task) * self.samples_per_chunk
        # The sums, the products of some samples, and sums that are added to them; then scores, also as float64.
        return 3 * 8 * self.n_candidates**2 + 2 * chunks * in_store, (2 + 8) * self.n_candidates

    @property
    def caller_bytes(self) -> int:
        """Memory of the selection itself: the factors, and sums and correlations of all classes."""
        n_classes = len(self.class_counts)
        sums = 2 * 8 * n_classes * self.n_candidates**2
        return _factor_bytes(n_classes, self.n_candidates, self.n_nodes) + sums


def plan_pool(fit: FitPlan, pool_size: int, *, n_candidates: int | None = None, in_store: bool) -> PoolPlan:
    """The pool of a fit: at most ``pool_size`` candidates of each class, or exactly ``n_candidates`` in all.

    A pool that needs more memory than the caller has is refused; ``in_store`` tells that the scores
    of all candidates are written to a store instead of returned to the caller.
    """
    n_candidates = n_candidates or min(fit.n_nodes, pool_size * fit.n_classes)
    n_nodes = min(n_candidates, fit.n_selected * fit.n_classes)
    per_task = POOL_TILE_NODES if fit.resources is None else _candidates_that_fit(fit, n_candidates)
    plan = PoolPlan(
        n_candidates=n_candidates, n_nodes=n_nodes, class_counts=fit.class_counts, candidates_per_task=per_task
    )
    if fit.resources is not None and fit.resources.with_caller:
        allowed = fit.resources.per_task * fit.resources.threads
        needed = plan.caller_bytes + (0 if in_store else plan.score_bytes)
        if needed > allowed:
            smaller = "pool_size or " if pool_size > fit.n_selected else ""
            raise MemoryPlanError(
                f"the joint selection of {n_nodes:,} nodes among {n_candidates:,} candidates for {fit.n_classes} "
                f"classes needs {format_bytes(needed)} but this process may use {format_bytes(max(0, allowed))}; "
                f'reduce {smaller}n_selected, raise memory_limit, or choose selection="top"'
            )
    return replace(plan, samples_per_sum=_samples_that_fit(fit, plan, in_store=in_store))


def _samples_that_fit(fit: FitPlan, plan: PoolPlan, *, in_store: bool) -> int:
    """Samples of one task that sums products: sums are exact, so their number changes no result."""
    if fit.resources is None:
        return SAMPLES_PER_SUM
    fixed, per_sample = plan.sum_bytes(in_store=in_store)
    fitting = (fit.resources.per_task - fixed) // per_sample
    if fitting < 1:
        raise MemoryPlanError(
            f"the correlations of {plan.n_candidates:,} candidates need {format_bytes(fixed + per_sample)} but a task "
            f"may use {format_bytes(max(0, fit.resources.per_task))}; reduce pool_size, give workers more memory or "
            'fewer threads each, raise memory_limit for local threads, or choose selection="top"'
        )
    return min(SAMPLES_PER_SUM, fitting)


def plan_pool_relief(fit: FitPlan, n_candidates: int, n_anchors: int, n_neighbours: int) -> ReliefPlan:
    """How ReliefF compares the projections onto the candidates; they are projected again for each range of rows."""
    size = RankSize(n_samples=fit.n_samples, n_features=n_candidates)
    plan = plan_relief(size, n_anchors, fit.n_classes, n_neighbours, fit.resources, remedy="reduce pool_size")
    return replace(plan, rows_per_task=fit.samples_per_projection(n_candidates))


def _candidates_that_fit(fit: FitPlan, n_candidates: int) -> int:
    """Candidates of one task: whole products if their values of all samples fit into memory, else as many as fit."""
    assert fit.resources is not None, "the caller checked it"
    in_chunk = padded_length(fit.samples_per_chunk or fit.n_samples)
    fixed = fit.reading_bytes + 4 * POOL_TILE_NODES * in_chunk
    per_candidate = (4 + 2) * fit.n_samples + 4 * in_chunk + 8 * fit.n_features
    left = fit.resources.per_task - fixed - RANK_BYTES * max(fit.class_counts)
    fitting = left // per_candidate
    if fitting < 1:
        needed = fit.resources.per_task - left + per_candidate
        raise MemoryPlanError(
            f"one candidate of the joint selection needs {format_bytes(needed)} but a task may use "
            f"{format_bytes(max(0, fit.resources.per_task))}; give workers more memory or fewer threads each, "
            'raise memory_limit for local threads, or choose selection="top"'
        )
    # Every task reads and preprocesses all samples, so few large tasks are better, up to one for each thread.
    shared = -(-n_candidates // max(1, fit.tasks_at_a_time))
    if POOL_TILE_NODES <= shared <= fitting - POOL_TILE_NODES:  # the products of both ends may be in part for others
        return shared
    wanted = min(fitting, POOL_TILE_NODES) if shared < POOL_TILE_NODES else fitting
    return wanted if wanted < POOL_TILE_NODES else wanted - wanted % POOL_TILE_NODES
