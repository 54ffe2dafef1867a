"""The task of a ranking that measures features too long for its memory: it reads them in several passes and counts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.counted_columns import CountedClass, MomentPasses, robust_statistics, wanted_positions
from fxdask.kernels.counted_distances import DistancePasses, Distances
from fxdask.kernels.criteria.base import Measurements, Need
from fxdask.kernels.digit_counts import OrderStatisticPasses, PrefixRows, WideMedianPasses, run_passes
from fxdask.kernels.features import (
    Centring,
    ClassOrder,
    gathered_type,
    rounding_tolerance,
    scatter_columns,
    scatter_rows,
)
from fxdask.kernels.moments import Moments, moment_statistics
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.statistics import ClassStatistics
from fxdask.sizes import VALUES_PER_COUNT, NodeBlock, bins_per_count, row_ranges
from fxdask.store.columns import ColumnSource, read_columns
from fxdask.tasks.cache import job_cache
from fxdask.tasks.rank import (
    RankJob,
    RankParts,
    check_finite,
    check_length,
    criteria_results,
    measured_block,
    ranges_of_counts,
    with_shrunk_spread,
)
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["count_block", "probed_classes"]

ReadValues = Callable[[], Iterator[ColumnValues]]


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
    reader, rows = _Reader(job, columns, block, counters), PrefixRows()
    shape = (job.n_classes, block.n_nodes)
    ranges, tolerance, read = None, np.zeros(shape), reader.narrow
    if gathered_type(np.dtype(job.dtype)) != np.float32:
        scan = _WideScan(block.n_nodes)
        run_passes(reader.wide, scan)
        ranges = scan.ranges
        check_finite(job, columns, block.start, ranges)
        read = reader.centred(_centrings(scan, reader))
    moments = _moments(job, read)
    if ranges is None:
        lowest, highest = moments.lowest.min(axis=0), moments.highest.max(axis=0)
        ranges = ranges_of_counts(moments.counts, lowest, highest, len(job.codes))
        check_finite(job, columns, block.start, ranges)
    else:
        tolerance = _tolerance(read, moments.counts, scan.is_rounded, rows)
    statistics, distances = _measured(job, read, moments, tolerance, rows)
    measured = Measurements(
        priors=job.priors,
        tolerance=tolerance,
        statistics=statistics,
        moments=moments,
        distances=distances,
        seed=job.seed,
    )
    return np.concatenate([ranges, criteria_results(job, measured)])


def _moments(job: RankJob, read: ReadValues) -> Moments:
    passes = MomentPasses(job_cache(job).scratch)
    run_passes(read, passes)
    return passes.found


def _measured(
    job: RankJob, read: ReadValues, moments: Moments, tolerance: NDArray[np.float64], rows: PrefixRows
) -> tuple[ClassStatistics | None, Distances | None]:
    """What the criteria need besides moments: location and spread, and distances of distribution functions."""
    counts = moments.counts
    places = [(int(k), int(column)) for k, column in np.argwhere(counts)] if job.needs_order_statistics else []
    values = OrderStatisticPasses({place: wanted_positions(int(counts[place])) for place in places}, rows)
    per_pass = bins_per_count(counts.shape[1], job.n_classes)
    distances = DistancePasses(counts, rows, per_pass) if Need.DISTANCES in job.needs else None
    run_passes(read, values, *([distances] if distances else []))
    statistics = None
    if job.needs_order_statistics:
        classes = {
            place: CountedClass(
                count=int(counts[place]), values=values.found[place], sums=(moments.sums[place], moments.squares[place])
            )
            for place in places
        }
        measures, scratch = (job.location, job.spread), job_cache(job).scratch
        statistics = with_shrunk_spread(job, robust_statistics(read, classes, tolerance, measures, rows, scratch))
    elif Need.LOCATION_AND_SPREAD in job.needs:
        statistics = with_shrunk_spread(job, moment_statistics(moments, tolerance))
    return statistics, distances.found if distances else None


# Reading


class _Reader:
    """Reads the columns of a block from the beginning, some samples at a time, ordered by class."""

    def __init__(self, job: RankJob, columns: ColumnSource, block: NodeBlock, counters: TaskCounters) -> None:
        self._job, self._columns, self._block, self._counters = job, columns, block, counters

    def _steps(self) -> Iterator[tuple[NDArray[np.floating], ClassOrder]]:
        """(feature, sample) raw values and their order; the next step overwrites them."""
        job, block, done = self._job, self._block, 0
        per_step = max(1, VALUES_PER_COUNT // block.n_nodes)
        in_memory = isinstance(self._columns, np.ndarray)
        self._counters.passes += 1
        for first, piece in read_columns(self._columns, block.start, block.stop):
            done += piece.shape[1]
            check_length(job, max(done, len(job.codes)))
            codes = job.codes[first : first + piece.shape[1]]
            self._counters.bytes_read += 0 if in_memory else piece.nbytes
            for low, high in row_ranges(piece.shape[1], per_step):
                order = ClassOrder.of(codes[low:high], job.n_classes)
                shape = (block.n_nodes, high - low)
                gathered = job_cache(job).scratch("values", shape, gathered_type(np.dtype(job.dtype)))
                if in_memory:
                    scatter_rows(piece.T[low:high], order.positions, gathered)
                else:
                    scatter_columns(np.ascontiguousarray(piece[:, low:high]), order.positions, gathered)
                yield gathered, order
            del piece  # before the next one is read
        check_length(job, done)

    def wide(self) -> Iterator[NDArray[np.float64]]:
        """(feature, sample) values that float32 may not represent."""
        return (gathered.view(np.float64) for gathered, _ in self._steps())

    def narrow(self) -> Iterator[ColumnValues]:
        """(feature, sample) values that float32 represents."""
        for gathered, order in self._steps():
            yield ColumnValues(gathered, [[run] for run in order.slices])

    def centred(self, centrings: Sequence[Centring | None]) -> ReadValues:
        """A function that reads float64 values and rounds them, after what is to be done to each feature."""

        def read() -> Iterator[ColumnValues]:
            for gathered, order in self._steps():
                values = job_cache(self._job).scratch("rounded values", gathered.shape)
                for own, wide, centring in zip(values, gathered, centrings, strict=True):
                    own[...] = wide if centring is None else centring.apply(wide)
                yield ColumnValues(values, [[run] for run in order.slices])

        return read


# Values that float32 does not represent


class _WideScan:
    """The range of every feature, and whether float32 represents each of its values, by one pass."""

    def __init__(self, n_features: int) -> None:
        self.is_done = False
        self.is_rounded = np.zeros(n_features, bool)
        self.ranges = np.full((3, n_features), np.nan)
        """(3, feature) missing values, lowest and highest value"""
        self.ranges[0] = 0
        self.n_samples = 0

    def absorb(self, values: NDArray[np.float64]) -> None:
        """(feature, sample) next values."""
        self.ranges[0] += np.count_nonzero(np.isnan(values), axis=1)
        self.ranges[1] = np.fmin(self.ranges[1], np.fmin.reduce(values, axis=1))
        self.ranges[2] = np.fmax(self.ranges[2], np.fmax.reduce(values, axis=1))
        with np.errstate(over="ignore"):
            for feature, own in enumerate(values):
                self.is_rounded[feature] |= not np.array_equal(own, own.astype(np.float32), equal_nan=True)
        self.n_samples += values.shape[1]

    def end_pass(self) -> None:
        """All values have been absorbed."""
        self.is_done = True


def _centrings(scan: _WideScan, reader: _Reader) -> list[Centring | None]:
    """What is done to each feature before it is rounded; None if float32 represents all its values."""
    missing, lowest, highest = scan.ranges
    rounded = np.flatnonzero(scan.is_rounded).tolist()
    medians = WideMedianPasses({feature: (scan.n_samples - int(missing[feature])) // 2 for feature in rounded})
    run_passes(reader.wide, medians)
    found: list[Centring | None] = [None] * len(missing)
    for feature in rounded:
        found[feature] = Centring.of(float(lowest[feature]), float(highest[feature]), medians.value(feature))
    return found


def _tolerance(
    read: ReadValues, counts: NDArray[np.int64], is_rounded: NDArray[np.bool_], rows: PrefixRows
) -> NDArray[np.float64]:
    """(class, feature) counts, (feature,) whether it is rounded -> (class, feature) spreads that rounding can make."""
    places = [(int(k), int(feature)) for k, feature in np.argwhere((counts > 0) & is_rounded)]
    wanted = {place: [int(counts[place]) // 2] for place in places}
    sizes = OrderStatisticPasses(wanted, rows, dict.fromkeys(places, np.float32(0)))
    run_passes(read, sizes)
    medians = np.zeros(counts.shape)
    for place in places:
        (middle_size,) = sizes.found[place].values()
        medians[place] = middle_size.value
    tolerance = np.zeros(counts.shape)
    for feature in np.flatnonzero(is_rounded).tolist():
        tolerance[:, feature] = rounding_tolerance(medians[:, feature])
    return tolerance
