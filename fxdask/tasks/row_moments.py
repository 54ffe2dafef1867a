"""The task that sums the moments of all features over one range of rows, for criteria that need no order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import NotFiniteError
from fxdask.kernels.moments import Moments, merge_moments
from fxdask.kernels.preprocessing import checked_rows
from fxdask.kernels.row_moments import moments_of_rows
from fxdask.store.sources import Source
from fxdask.tasks.rank import RankJob, read_rows
from fxdask.tasks.telemetry import TaskCounters, WorkerStats, merge_worker_stats, this_worker

__all__ = ["RangeMoments", "add_range_moments", "range_moments"]


@dataclass(frozen=True)
class RangeMoments:
    """Moments of all features over some rows, and the probed rows among them by the number of their range."""

    moments: Moments
    probes: dict[int, NDArray]
    workers: dict[str, WorkerStats]


def add_range_moments(parts: Sequence[RangeMoments]) -> RangeMoments:
    """Parts of disjoint ranges, in any order -> one part."""
    return RangeMoments(
        merge_moments([part.moments for part in parts]),
        {index: rows for part in parts for index, rows in part.probes.items()},
        merge_worker_stats(part.workers for part in parts),
    )


def range_moments(
    job: RankJob, samples: Source, index: int, probed: NDArray[np.int64], given: bool = False
) -> RangeMoments:
    """One range of raw samples, rows in it to return -> its moments; ``given`` if the samples are the range alone."""
    rows, start = read_rows(job, samples, index, given=given)
    moments = moments_of_rows(rows, job.codes[start : start + len(rows)], job.n_classes)
    if not job.omits_missing and moments.counts.sum() < rows.size:
        checked_rows(rows, start)
    has_values = moments.counts > 0
    if (has_values & (np.isinf(moments.lowest) | np.isinf(moments.highest))).any():
        sample, feature = np.argwhere(np.isinf(rows))[0]
        raise NotFiniteError("infinity", start + int(sample), int(feature))
    return RangeMoments(moments, {index: rows[probed - start]}, this_worker(TaskCounters(bytes_read=rows.nbytes)))
