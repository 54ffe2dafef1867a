"""The task of a ranking that measures features too long for its memory: it reads them in several passes and counts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.counted_distances import DistancePasses
from fxdask.kernels.criteria.base import Measurements, Need
from fxdask.kernels.digit_counts import run_passes
from fxdask.kernels.moments import moment_statistics
from fxdask.sizes import NodeBlock, bins_per_count
from fxdask.store.columns import ColumnSource, read_columns
from fxdask.tasks.counted_block import CountedBlock
from fxdask.tasks.rank import RankJob, RankParts, criteria_results, measured_block, with_shrunk_spread
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["count_block", "probed_classes"]


def count_block(job: RankJob, columns: ColumnSource, index: int) -> RankParts:
    """Columns of raw samples, one block of features -> its results; with a store they are written and marked.

    A block that is marked is not computed again, so a task may run twice.
    """
    return measured_block(job, columns, index, _counted_results)


def probed_classes(job: RankJob, columns: ColumnSource, feature: int, probed: NDArray[np.int64]) -> list[NDArray]:
    """(probe,) ascending samples -> the values of one feature at these, by class."""
    values, codes, block = [], [], job.plan.block_of(feature)
    for first, piece in read_columns(columns, block.start, block.stop):
        low, high = np.searchsorted(probed, [first, first + piece.shape[1]])
        values.append(piece[feature - block.start, probed[low:high] - first])
        codes.append(job.codes[first : first + piece.shape[1]][probed[low:high] - first])
    of_probes = np.concatenate(codes)
    return [np.concatenate(values)[of_probes == k] for k in range(job.n_classes)]


def _counted_results(
    job: RankJob, columns: ColumnSource, block: NodeBlock, counters: TaskCounters
) -> NDArray[np.float64]:
    """(result, feature) results of a block, from several passes over its columns."""
    counted = CountedBlock(job, columns, block, counters)
    return np.concatenate([counted.ranges, criteria_results(job, _measured(job, counted))])


def _measured(job: RankJob, counted: CountedBlock) -> Measurements:
    """What the criteria need of a block: all that they can share is found in the same passes."""
    counts, sorts = counted.moments.counts, Need.SORTED_COLUMNS in job.needs
    distances = cuts = parts = None
    if Need.DISTANCES in job.needs:
        distances = DistancePasses(counts, counted.rows, bins_per_count(counts.shape[1], job.n_classes))
    if sorts:
        cuts = counted.cut_passes()
    also = [passes for passes in (distances, cuts) if passes is not None]
    if job.needs_order_statistics or sorts:
        classes = counted.classes(*also)
    else:
        run_passes(counted.read, *also)
    statistics = None
    if job.needs_order_statistics:
        statistics = counted.statistics(classes, (job.location, job.spread))
    elif Need.LOCATION_AND_SPREAD in job.needs:
        statistics = moment_statistics(counted.moments, counted.tolerance)
    if cuts is not None:
        by_mad = statistics
        if by_mad is None or not job.needs_order_statistics or job.spread != "mad":
            by_mad = counted.statistics(classes, ("median", "mad"))
        parts = counted.parted(cuts, classes, by_mad.spread)
    return Measurements(
        priors=job.priors,
        tolerance=counted.tolerance,
        statistics=with_shrunk_spread(job, statistics) if statistics else None,
        moments=counted.moments,
        distances=distances.found if distances else None,
        parts=parts,
        seed=job.seed,
    )
