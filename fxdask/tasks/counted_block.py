"""A block of features too long for a task's memory: what several passes over its columns tell about them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.counted_columns import (
    AbsoluteMomentPasses,
    CountedClass,
    MomentPasses,
    robust_statistics,
    wanted_positions,
)
from fxdask.kernels.digit_counts import (
    MergedClasses,
    OrderStatisticPasses,
    Passes,
    Place,
    PrefixRows,
    WideMedianPasses,
    run_passes,
)
from fxdask.kernels.features import (
    Centring,
    ClassOrder,
    gathered_type,
    rounding_tolerance,
    scatter_columns,
    scatter_rows,
)
from fxdask.kernels.moments import Moments
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.sorted_parts import CutColumn, PartedColumns, cut_positions
from fxdask.kernels.statistics import ClassStatistics
from fxdask.sizes import VALUES_PER_COUNT, NodeBlock, row_ranges
from fxdask.store.columns import ColumnSource, read_columns
from fxdask.tasks.cache import job_cache
from fxdask.tasks.rank import RankJob, check_finite, check_length, ranges_of_counts
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["CountedBlock"]

ReadValues = Callable[[], Iterator[ColumnValues]]


class CountedBlock:
    """The features of one block, as float32 values that are read again for each pass.

    The range of every feature is checked, and moments are summed, when the block is made.
    """

    def __init__(self, job: RankJob, columns: ColumnSource, block: NodeBlock, counters: TaskCounters) -> None:
        self._job, self._block, self.rows = job, block, PrefixRows()
        self._reader, self.tolerance = _Reader(job, columns, block, counters), np.zeros((job.n_classes, block.n_nodes))
        self.centrings: list[Centring | None] = [None] * block.n_nodes
        self.read, scan = self._reader.narrow, None
        if gathered_type(np.dtype(job.dtype)) != np.float32:
            scan = _WideScan(block.n_nodes)
            run_passes(self._reader.wide, scan)
            check_finite(job, columns, block.start, scan.ranges)
            self.centrings = _centrings(scan, self._reader)
            self.read = self._reader.centred(self.centrings)
        self.moments, self._absolute = self._summed()
        if scan is None:
            lowest, highest = self.moments.lowest.min(axis=0), self.moments.highest.max(axis=0)
            self.ranges = ranges_of_counts(self.moments.counts, lowest, highest, len(job.codes))
            check_finite(job, columns, block.start, self.ranges)
        else:
            self.ranges = scan.ranges
            self.tolerance = _tolerance(self.read, self.moments.counts, scan.is_rounded, self.rows)

    def _summed(self) -> tuple[Moments, Moments | None]:
        """The moments of all values; and those of their absolute values, which parts of columns go with."""
        scratch, is_parted = job_cache(self._job).scratch, self._job.plan.is_parted
        plain, absolute = MomentPasses(scratch), AbsoluteMomentPasses(scratch)
        run_passes(self.read, plain, *([absolute] if is_parted else []))
        return plain.found, absolute.found if is_parted else None

    def classes(self, *also: Passes[ColumnValues]) -> dict[Place, CountedClass]:
        """Every class that has values, with its order statistics; other passes that are needed read the same values."""
        counts = self.moments.counts
        places = [(int(k), int(column)) for k, column in np.argwhere(counts)]
        values = OrderStatisticPasses({place: wanted_positions(int(counts[place])) for place in places}, self.rows)
        run_passes(self.read, values, *also)
        return {
            place: CountedClass(
                count=int(counts[place]),
                values=values.found[place],
                sums=(self.moments.sums[place], self.moments.squares[place]),
            )
            for place in places
        }

    def statistics(self, classes: Mapping[Place, CountedClass], measures: Sequence[str]) -> ClassStatistics:
        """Names of location and spread -> both for all classes, after the passes that depend on order statistics."""
        scratch = job_cache(self._job).scratch
        return robust_statistics(self.read, classes, self.tolerance, measures, self.rows, scratch)

    # Sorted values

    def cut_passes(self) -> MergedClasses:
        """The passes that find where the columns are cut into parts; for ``classes``, then for ``parted``."""
        per_part, n_values = self._job.plan.values_per_part, self.moments.counts.sum(axis=0).tolist()
        wanted = {(0, column): cut_positions(count, per_part) for column, count in enumerate(n_values)}
        return MergedClasses(OrderStatisticPasses(wanted, self.rows))

    def parts(self, cuts: MergedClasses) -> list[CutColumn]:
        """The columns, sorted, in parts that fit into memory."""
        moments, absolute, found = self.moments, self._absolute, []
        assert absolute is not None, "the plan has parts"
        for column in range(self._block.n_nodes):
            totals = (moments.sums[:, column], moments.squares[:, column], absolute.sums[:, column])
            at = cuts.passes.found[0, column]
            found.append(
                CutColumn(
                    self._block.start + column,
                    moments.counts[:, column],
                    [at[position] for position in sorted(at)],
                    self._job.plan.values_per_part,
                    tuple(of_column.tolist() for of_column in totals),
                    partial(self._reader.coded, column, self.centrings[column]),
                )
            )
        return found

    def parted(
        self, cuts: MergedClasses, classes: Mapping[Place, CountedClass], spread: NDArray[np.float64]
    ) -> PartedColumns:
        """The columns in parts, with the (class, column) spreads by MAD."""
        middles = np.zeros(self.moments.counts.shape)
        for place, one in classes.items():
            middles[place] = one.at(one.count // 2)[0]
        return PartedColumns(
            columns=self.parts(cuts),
            n_samples=np.array(self._job.class_counts),
            spread=spread,
            middle=middles,
            ranges=np.stack([self.moments.lowest, self.moments.highest]).astype(np.float64),
        )


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

    def coded(self, feature: int, centring: Centring | None) -> Iterator[tuple[NDArray[np.float32], NDArray]]:
        """One feature of the block -> (sample,) its values and class codes, some samples at a time."""
        job, block, done = self._job, self._block, 0
        dtype, in_memory = gathered_type(np.dtype(job.dtype)), isinstance(self._columns, np.ndarray)
        self._counters.passes += 1
        for first, piece in read_columns(self._columns, block.start, block.stop):
            codes = job.codes[first : first + piece.shape[1]]
            self._counters.bytes_read += 0 if in_memory else piece.nbytes
            for low, high in row_ranges(piece.shape[1], VALUES_PER_COUNT):
                values = piece[feature, low:high].astype(dtype)
                if centring is not None:
                    values = centring.apply(values)
                yield values.astype(np.float32, copy=False), codes[low:high]
            done += piece.shape[1]
            del piece  # before the next one is read
        check_length(job, done)


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
