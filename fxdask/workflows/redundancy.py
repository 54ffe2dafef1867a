"""Choose features that do not repeat each other: by mRMR, or together by the overlap that they leave."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.execution.rank import measure_candidates, sum_candidates
from fxdask.kernels.copula import score_sums, shrunk_correlation
from fxdask.kernels.joint_selection import Pool, factor_bytes, select_jointly
from fxdask.kernels.redundancy import correlations_of, scaled_relevance, select_mrmr
from fxdask.planning.machine import Resources
from fxdask.sizes import format_bytes
from fxdask.store.columns import ColumnSource
from fxdask.tasks.rank import RankJob
from fxdask.tasks.redundancy import Candidates
from fxdask.tasks.threads import one_blas_thread
from fxdask.workflows.ranked import RankedFeatures

__all__ = ["REDUNDANCIES", "Redundancy", "candidates", "choose_features"]

REDUNDANCIES = ("mrmr", "joint")
CANDIDATES_PER_FEATURE = 10
FEWEST_CANDIDATES = 100
MOST_CANDIDATES = 2000
SCORES_PER_TASK = 2**22
WIDENED_BYTES = 32  # per raw value, while it becomes a score


@dataclass(frozen=True)
class Redundancy:
    """How features are chosen that do not repeat each other."""

    how: str
    n_features: int
    pool_size: int | None = None
    """The best features by the criterion that are candidates; None: ten for each feature to choose, at least 100."""

    @property
    def n_candidates(self) -> int:
        """Number of candidates."""
        if self.pool_size is not None:
            return self.pool_size
        return max(
            self.n_features, min(MOST_CANDIDATES, max(FEWEST_CANDIDATES, CANDIDATES_PER_FEATURE * self.n_features))
        )


def candidates(wanted: Redundancy, found: RankedFeatures, criterion: str) -> NDArray[np.int64]:
    """(candidate,) features that may be chosen, ascending, so that ties go to the lower feature.

    A feature with -inf is never chosen. Missing values are refused where whole samples are compared.
    """
    pool = np.sort(found.order(criterion)[: wanted.n_candidates])
    pool = pool[found.score(criterion)[pool] > -np.inf]
    incomplete = pool[found.missing[pool] > 0]
    if wanted.how == "joint" and len(incomplete):
        name, n_missing = str(found.names[incomplete[0]]), int(found.missing[incomplete[0]])
        raise InvalidInputError(
            f'redundancy="joint" compares whole samples, but feature {name!r} has {n_missing:,} missing values; '
            'fill them, or choose redundancy="mrmr"'
        )
    return pool


def choose_features(
    wanted: Redundancy,
    job: RankJob,
    columns: ColumnSource,
    scores: NDArray[np.float64],
    pool: NDArray[np.int64],
    resources: Resources,
) -> NDArray[np.int64]:
    """(feature,) scores, (candidate,) features -> (rank,) chosen features in the order of the choice."""
    if not len(pool):
        return pool
    _check_memory(wanted, len(pool), job, resources)
    if wanted.how == "joint":
        found = measure_candidates(job, columns, pool, wanted.how)
        with one_blas_thread():  # so that the last bits do not depend on the number of cores
            return pool[_jointly(found, job, wanted.n_features)]
    if job.plan.is_counted:
        sums = sum_candidates(job, columns, pool, _rows_per_task(job, len(pool)))
    else:
        with one_blas_thread():
            sums = score_sums(measure_candidates(job, columns, pool, wanted.how).scores)
    correlation = correlations_of(sums, len(job.codes))
    return pool[select_mrmr(scaled_relevance(scores[pool]), correlation, wanted.n_features)]


def _rows_per_task(job: RankJob, n_candidates: int) -> int:
    """Samples at which one task adds up the candidates' scores: those of one range of the copies, if there are any."""
    return job.plan.rows_per_range or max(1, SCORES_PER_TASK // n_candidates)


def _jointly(found: Candidates, job: RankJob, n_features: int) -> NDArray[np.intp]:
    """The candidates that leave the smallest overlap together; fewer than wanted if the others repeat them."""
    edges = np.concatenate([[0], np.cumsum(job.class_counts)])
    correlation = [
        shrunk_correlation(score_sums(found.scores[:, edges[k] : edges[k + 1]]), count)[0]
        for k, count in enumerate(job.class_counts)
    ]
    pool = Pool(
        location=found.location,
        spread=found.spread,
        correlation=np.array(correlation),
        counts=np.array(job.class_counts),
        priors=job.priors,
    )
    return select_jointly(pool, n_features).candidates


def _check_memory(wanted: Redundancy, n_candidates: int, job: RankJob, resources: Resources) -> None:
    """Refuse candidates whose values do not fit into the caller's memory, or whose sums do not fit into a task's."""
    n_classes = job.n_classes if wanted.how == "joint" else 1
    n_samples, matrices = len(job.codes), 3 * 8 * n_classes * n_candidates**2
    if job.plan.is_counted:
        rows = min(n_samples, _rows_per_task(job, n_candidates))
        piece = rows * min(n_candidates, job.plan.features_per_block) * (job.plan.size.itemsize + WIDENED_BYTES)
        needed, allowed, who = 2 * n_candidates * rows + piece + matrices, resources.per_task, "a task"
    else:
        needed = 2 * 2 * n_candidates * n_samples + matrices
        needed += factor_bytes(n_classes, n_candidates, min(wanted.n_features, n_candidates))
        allowed, who = resources.per_task * resources.threads, "this process"
        if not resources.with_caller:
            return
    if needed > allowed:
        raise MemoryPlanError(
            f"a selection without redundancy among {n_candidates:,} candidates and {n_samples:,} samples needs "
            f"{format_bytes(needed)} but {who} may use {format_bytes(max(0, allowed))}; "
            "reduce pool_size or k, or raise memory_limit"
        )
