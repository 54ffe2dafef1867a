"""Statistics of a block whose values do not fit into memory: few passes over the samples, with rare repeats."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.brackets import Brackets, bracket, bracket_all
from fxdask.kernels.counted_columns import CountedClass, MomentPasses, robust_statistics, wanted_positions
from fxdask.kernels.counted_rows import CountedRows, NarrowBrackets
from fxdask.kernels.digit_counts import OrderStatisticPasses, PrefixRows, run_passes
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.statistics import BracketedStatistics, ClassStatistics, bracketed_statistics, sorted_classes
from fxdask.kernels.streamed_rows import StreamedRows, WholeRows
from fxdask.planning.fit_plan import BINS_PER_BRACKET, BRACKET_SLACK
from fxdask.sizes import LANES, row_ranges
from fxdask.tasks.cache import job_cache
from fxdask.tasks.columns import Columns
from fxdask.tasks.job import FitJob
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["streamed_statistics"]

BYTES_PER_ROW_GROUP = 2**20
# Widths of the brackets of each attempt: wider after a miss; at last None, which keeps every value.
SLACKS = (BRACKET_SLACK, 4 * BRACKET_SLACK, None)
BYTES_PER_COUNTED_GROUP = 2**18  # counting has several temporary arrays of this size
MOST_COUNTS = 6


def streamed_statistics(
    job: FitJob, columns: Columns, counters: TaskCounters, slacks: tuple[float | None, ...] = SLACKS
) -> ClassStatistics:
    """Block of columns -> (class, column) location and spread, with the same bits as if all values were in memory."""
    result = ClassStatistics.empty(job.plan.n_classes, columns.n_columns)
    one_pass = _Pass(job, columns)
    ranges = row_ranges(columns.n_columns, job.plan.nodes_per_pass)
    moments = job.location == "mean" or job.spread == "std"
    waiting = [_Part(rows=np.arange(start, stop), moments=moments) for start, stop in ranges]
    while waiting:
        part = waiting.pop()
        if part.attempt == len(slacks) or part.n_counts > MOST_COUNTS:
            result.put(part.rows, _statistics_by_digits(job, columns, part.rows))
            continue
        if part.brackets is None:
            part = replace(part, brackets=one_pass.brackets(part.rows, slacks[part.attempt]))
        again = [] if part.is_narrow else one_pass.split(part)
        if again:
            counters.rows_repeated += sum(len(left.rows) for left in again if left.attempt > part.attempt)
            waiting += again
            continue
        found = one_pass.run(part)
        result.put(part.rows, found.statistics)
        # A spread that falls back to the standard deviation is repeated with the same brackets and with moments.
        for which, left in ((found.without_moments, part), (found.missed, part.missed())):
            if which.any():
                waiting.append(replace(left.take(np.flatnonzero(which)), moments=True))
                counters.rows_repeated += int(which.sum())
    return result


@dataclass(frozen=True, kw_only=True)
class _Part:
    """Some columns of a block that wait for a pass."""

    rows: NDArray[np.intp]
    moments: bool
    """Whether all values and their squares are summed."""
    attempt: int = 0
    brackets: list[Brackets] | None = None
    """By class; None if they are still to be estimated from the probes."""
    n_counts: int = 0
    """How often the brackets were counted."""
    is_narrow: bool = False
    """Whether the values inside the brackets fit into memory."""

    def take(self, which: NDArray[np.intp]) -> _Part:
        """These rows only."""
        brackets = None if self.brackets is None else [of_class.take(which) for of_class in self.brackets]
        return replace(self, rows=self.rows[which], brackets=brackets)

    def missed(self) -> _Part:
        """The same columns for the next attempt, with wider brackets."""
        return replace(self, attempt=self.attempt + 1, brackets=None, n_counts=0, is_narrow=False)


@dataclass(frozen=True)
class _Pass:
    """One pass over the samples for some columns of a block."""

    job: FitJob
    columns: Columns

    def brackets(self, rows: NDArray[np.intp], slack: float | None) -> list[Brackets]:
        """Brackets of the order statistics of these columns, class by class; without slack they hold every value."""
        counts, kept = self.job.plan.class_counts, self.job.plan.kept_counts
        found = [bracket_all(len(rows), count) for count in counts]
        with_brackets = [k for k in range(len(counts)) if kept[k] < counts[k]]
        if slack is None or self.job.probe_codes is None or not with_brackets:
            return found
        parts: dict[int, list[Brackets]] = {k: [] for k in with_brackets}
        scratch = job_cache(self.job).scratch
        for k, _, ordered in sorted_classes(self.columns.probed(rows), scratch, BYTES_PER_ROW_GROUP, with_brackets):
            parts[k].append(bracket(ordered.values, counts[k], slack))
        for k, of_class in parts.items():
            found[k] = Brackets.joined(of_class)
        return found

    def split(self, part: _Part) -> list[_Part]:
        """Parts whose kept values fit into memory, and others that must be counted; none if the part fits itself."""
        if self.job.plan.is_counted:
            return self._counted(part)
        assert part.brackets is not None, "brackets were estimated"
        per_row, n_rows = 4 * sum(of_class.room for of_class in part.brackets), len(part.rows)
        fitting = max(1, self.job.plan.pass_bytes // max(1, per_row))
        if fitting >= n_rows:
            return []
        share = -(-n_rows // -(-n_rows // fitting))
        first, others = (part.take(rows) for rows in np.split(np.arange(n_rows), [share]))
        return [replace(others, brackets=None), replace(first, is_narrow=True)]

    def _counted(self, part: _Part) -> list[_Part]:
        """The columns after a pass that counts: those with narrow brackets, with wide ones, and missed ones."""
        counts, most = self.job.plan.class_counts, self.job.plan.kept_counts
        found = self._narrowed(part, [k for k in range(len(counts)) if most[k] < counts[k]])
        missed, wide = np.zeros((2, len(part.rows)), bool)
        brackets = [bracket_all(len(part.rows), count) for count in counts]
        for k, narrow in found.items():
            missed |= narrow.missed
            wide |= narrow.inside > most[k]
        for k, narrow in found.items():
            fitting = narrow.inside[~(missed | wide)]
            brackets[k] = narrow.brackets.with_room(int(fitting.max(initial=1)))
        counted = replace(part, brackets=brackets, n_counts=part.n_counts + 1)
        parts = [
            part.missed().take(np.flatnonzero(missed)),
            counted.take(np.flatnonzero(wide & ~missed)),
            replace(counted, is_narrow=True).take(np.flatnonzero(~(missed | wide))),
        ]
        return [left for left in parts if len(left.rows)]

    def _narrowed(self, part: _Part, classes: list[int]) -> dict[int, NarrowBrackets]:
        """One pass that counts the values inside the brackets of these classes."""
        assert part.brackets is not None, "brackets were estimated"
        if not classes:
            return {}
        job, bounds = self.job, self.columns.bounds(part.rows)
        counts = job.plan.class_counts
        streams = {k: CountedRows(part.brackets[k], counts[k], bounds, BINS_PER_BRACKET) for k in classes}
        for chunk in self.columns.chunks(part.rows):
            for k, some, ordered in sorted_classes(chunk, job_cache(job).scratch, BYTES_PER_COUNTED_GROUP, streams):
                streams[k].absorb(some, ordered.values)
        return {k: streams.pop(k).narrowed() for k in classes}

    def run(self, part: _Part) -> BracketedStatistics:
        """(class, column) location and spread, and (column,) flags of the columns to repeat."""
        assert part.brackets is not None, "brackets were estimated"
        job, rows, brackets = self.job, part.rows, part.brackets
        bounds = self.columns.bounds(rows)
        trimmed_sums = job.location == "interquartile_mean"
        streams: dict[int, StreamedRows] = {}
        whole: dict[int, WholeRows] = {}
        for k, (of_class, count) in enumerate(zip(brackets, job.plan.class_counts, strict=True)):
            if of_class.room == count:
                whole[k] = WholeRows(len(rows), count)
            else:
                streams[k] = StreamedRows(
                    of_class, count, trimmed_sums=trimmed_sums, moments=part.moments, bounds=bounds
                )
        for chunk in self.columns.chunks(rows):
            for k, all_values in whole.items():
                all_values.absorb(chunk, k)
            for k, some, ordered in sorted_classes(chunk, job_cache(job).scratch, BYTES_PER_ROW_GROUP, streams):
                streams[k].absorb(some, ordered.values)
        settled = [whole[k] if k in whole else streams[k].settle() for k in range(len(brackets))]
        return bracketed_statistics(settled, self.columns.tolerance[:, rows], job.location, job.spread)


def _statistics_by_digits(job: FitJob, columns: Columns, rows: NDArray[np.intp]) -> ClassStatistics:
    """(class, column) location and spread of columns whose brackets hold too many values that are nearly equal.

    Several passes count all values by their leading bits, which takes the same memory for any values.
    """
    result = ClassStatistics.empty(job.plan.n_classes, len(rows))
    prefixes, scratch, counts = PrefixRows(), job_cache(job).scratch, job.plan.class_counts
    for start, stop in row_ranges(len(rows), LANES):
        some = rows[start:stop]

        def read(some: NDArray[np.intp] = some) -> Iterator[ColumnValues]:
            return map(_by_class, columns.chunks(some))

        places = [(k, column) for k in range(len(counts)) for column in range(len(some))]
        moments, values = (
            MomentPasses(scratch),
            OrderStatisticPasses({(k, column): wanted_positions(counts[k]) for k, column in places}, prefixes),
        )
        run_passes(read, moments, values)
        sums = moments.found
        classes = {
            place: CountedClass(
                count=counts[place[0]], values=values.found[place], sums=(sums.sums[place], sums.squares[place])
            )
            for place in places
        }
        measures = (job.location, job.spread)
        found = robust_statistics(read, classes, columns.tolerance[:, some], measures, prefixes, scratch)
        result.put(np.arange(start, stop), found)
    return result


def _by_class(values: ColumnValues) -> ColumnValues:
    """The same values with the columns of each class next to each other."""
    edges = np.cumsum([0, *(values.count(k) for k in range(len(values.runs)))]).tolist()
    runs = [slice(start, stop) for start, stop in pairwise(edges)]
    ordered = np.empty((len(values.values), edges[-1]), np.float32)
    for k, run in enumerate(runs):
        values.gather(k, out=ordered[:, run])
    return ColumnValues(ordered, [[run] for run in runs])
