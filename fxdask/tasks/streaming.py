"""Statistics of a block whose values do not fit into memory: one pass over the samples, with rare repeats."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.brackets import Brackets, bracket, bracket_all
from fxdask.kernels.statistics import BracketedStatistics, ClassStatistics, bracketed_statistics, sorted_classes
from fxdask.kernels.streamed_rows import StreamedRows, WholeRows
from fxdask.planning.fit_plan import BRACKET_SLACK
from fxdask.sizes import row_ranges
from fxdask.tasks.cache import job_cache
from fxdask.tasks.columns import Columns
from fxdask.tasks.job import FitJob
from fxdask.tasks.telemetry import TaskCounters

__all__ = ["streamed_statistics"]

BYTES_PER_ROW_GROUP = 2**20
# Widths of the brackets of each attempt: wider after a miss; at last None, which keeps every value.
SLACKS = (BRACKET_SLACK, 4 * BRACKET_SLACK, None)


def streamed_statistics(
    job: FitJob, columns: Columns, counters: TaskCounters, slacks: tuple[float | None, ...] = SLACKS
) -> ClassStatistics:
    """Block of columns -> (class, column) location and spread, with the same bits as if all values were in memory."""
    result = ClassStatistics.empty(job.plan.n_classes, columns.n_columns)
    one_pass = _Pass(job, columns)
    ranges = row_ranges(columns.n_columns, job.plan.nodes_per_pass)
    moments = job.location == "mean" or job.spread == "std"
    waiting = [(np.arange(start, stop), 0, moments) for start, stop in ranges]
    while waiting:
        rows, attempt, moments = waiting.pop()
        brackets = one_pass.brackets(rows, slacks[attempt])
        fitting = one_pass.rows_that_fit(brackets)
        if fitting < len(rows):
            share = -(-len(rows) // -(-len(rows) // fitting))
            waiting.append((rows[share:], attempt, moments))
            rows, brackets = rows[:share], [of_class.first(share) for of_class in brackets]
        found = one_pass.run(rows, brackets, moments=moments)
        result.put(rows, found.statistics)
        # A spread that falls back to the standard deviation is repeated with the same brackets and with moments.
        for left, next_attempt in ((found.without_moments, attempt), (found.missed, attempt + 1)):
            if left.any():
                waiting.append((rows[left], next_attempt, True))
                counters.rows_repeated += int(left.sum())
    return result


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

    def rows_that_fit(self, brackets: list[Brackets]) -> int:
        """How many columns, at least one, have kept values that fit into the memory of a pass."""
        per_row = 4 * sum(of_class.room for of_class in brackets)
        return max(1, self.job.plan.pass_bytes // max(1, per_row))

    def run(self, rows: NDArray[np.intp], brackets: list[Brackets], *, moments: bool) -> BracketedStatistics:
        """(class, column) location and spread, and (column,) flags of the columns to repeat."""
        job, bounds = self.job, self.columns.bounds(rows)
        trimmed_sums = job.location == "interquartile_mean"
        streams: dict[int, StreamedRows] = {}
        whole: dict[int, WholeRows] = {}
        for k, (of_class, count) in enumerate(zip(brackets, job.plan.class_counts, strict=True)):
            if of_class.room == count:
                whole[k] = WholeRows(len(rows), count)
            else:
                streams[k] = StreamedRows(of_class, count, trimmed_sums=trimmed_sums, moments=moments, bounds=bounds)
        for chunk in self.columns.chunks(rows):
            for k, all_values in whole.items():
                all_values.absorb(chunk, k)
            for k, some, ordered in sorted_classes(chunk, job_cache(job).scratch, BYTES_PER_ROW_GROUP, streams):
                streams[k].absorb(some, ordered.values)
        settled = [whole[k] if k in whole else streams[k].settle() for k in range(len(brackets))]
        return bracketed_statistics(settled, self.columns.tolerance[:, rows], job.location, job.spread)
