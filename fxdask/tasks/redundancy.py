"""The tasks of a selection without redundancy: measure some candidates, or sum them where they do not fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.copula import ScoreSums, rank_scores, score_sums
from fxdask.kernels.features import Centring, as_features
from fxdask.kernels.redundancy import Standard, standard_scores, standards_of
from fxdask.kernels.sorted_columns import sort_columns, sorted_statistics
from fxdask.kernels.statistics import shrunk_spread
from fxdask.sizes import NodeBlock
from fxdask.store.columns import ColumnSource, read_part
from fxdask.store.parquet import ParquetAddress
from fxdask.tasks.counted_block import CountedBlock, narrowed
from fxdask.tasks.rank import RankJob, ordered_features
from fxdask.tasks.telemetry import TaskCounters
from fxdask.tasks.threads import one_blas_thread

__all__ = ["Candidates", "LongFeature", "joined_candidates", "measure_features", "standardise", "sum_range"]

SMALLEST_SPREAD = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class Candidates:
    """Scores of some features at all samples, and what a joint selection needs besides."""

    scores: NDArray[np.int16]
    """(feature, sample), samples ordered by class"""
    location: NDArray[np.float64]
    """(class, feature)"""
    spread: NDArray[np.float64]
    """(class, feature), above 0"""


def joined_candidates(parts: Sequence[Candidates]) -> Candidates:
    """Candidates of several tasks in their order."""
    return Candidates(
        np.concatenate([part.scores for part in parts]),
        np.concatenate([part.location for part in parts], axis=1),
        np.concatenate([part.spread for part in parts], axis=1),
    )


def measure_features(job: RankJob, columns: ColumnSource, features: Sequence[int], how: str) -> Candidates:
    """Some features -> standard scores for "mrmr", or normal scores of the ranks within each class for "joint"."""
    measure = _for_mrmr if how == "mrmr" else _for_joint
    return joined_candidates([measure(job, columns, feature) for feature in features])


def _for_mrmr(job: RankJob, columns: ColumnSource, feature: int) -> Candidates:
    gathered, order = ordered_features(job, columns, feature)
    nothing = np.zeros((job.n_classes, 1))
    return Candidates(standard_scores(as_features(gathered, order).columns.values), nothing, nothing)


def _for_joint(job: RankJob, columns: ColumnSource, feature: int) -> Candidates:
    gathered, order = ordered_features(job, columns, feature)
    found = as_features(gathered, order)
    values = found.columns.values
    scores = np.concatenate([rank_scores(values[:, own]) for own in order.slices], axis=1)
    statistics = sorted_statistics(
        sort_columns(found.columns, np.array([feature])), found.tolerance, job.location, job.spread
    )
    spread = shrunk_spread(statistics.spread, job.class_counts) if job.shrink_spread else statistics.spread
    # A class that is constant has a narrow spread, not none, because covariances must have an inverse.
    floor = np.maximum(found.tolerance, max(SMALLEST_SPREAD, 2.0**-23 * float(np.abs(values).max())))
    return Candidates(scores, statistics.location, np.maximum(spread, floor))


# Features that do not fit into memory


@dataclass(frozen=True)
class LongFeature:
    """How the raw values of a feature become standard scores."""

    centring: Centring | None
    standard: Standard


def standardise(job: RankJob, columns: ColumnSource, index: int) -> dict[int, LongFeature]:
    """One block -> how the values of its features become standard scores, by passes over its columns."""
    block = job.plan.block(index)
    counted = CountedBlock(job, columns, block, TaskCounters())
    found = map(LongFeature, counted.centrings, standards_of(counted.moments))
    return dict(zip(range(block.start, block.stop), found, strict=True))


def sum_range(
    job: RankJob, columns: ColumnSource, candidates: Mapping[int, LongFeature], samples: tuple[int, int]
) -> ScoreSums:
    """All candidates at one range of samples -> sums of their standard scores, which can be added in any order."""
    assert not isinstance(columns, ParquetAddress), "Parquet is copied before columns are read in parts"
    scores = np.empty((len(candidates), samples[1] - samples[0]), np.int16)
    blocks: dict[NodeBlock, list[tuple[int, int]]] = {}
    for at, feature in enumerate(candidates):
        blocks.setdefault(job.plan.block_of(feature), []).append((at, feature))
    for block, of_block in blocks.items():
        piece = read_part(columns, block.start, block.stop, samples)
        for at, feature in of_block:
            one = candidates[feature]
            scores[at] = one.standard.scores(narrowed(piece[feature - block.start], job.dtype, one.centring))
        del piece  # before the next one is read
    with one_blas_thread():
        return score_sums(scores)
