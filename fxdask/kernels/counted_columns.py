"""Location and spread of columns that do not fit into memory, with the bits that sorted values give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.digit_counts import OrderStatistic, OrderStatisticPasses, Place, PrefixRows, run_passes
from fxdask.kernels.moments import UNIT, Moments, class_moments, merge_moments
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import LOCATIONS, ZERO, ClassStatistics, spread_with_fallback

__all__ = ["AbsoluteMomentPasses", "CountedClass", "MomentPasses", "robust_statistics", "wanted_positions"]

QUARTILES = (0.25, 0.75)


def middle(count: int) -> list[int]:
    """The positions of one or two middle values among so many."""
    return [count // 2] if count % 2 else [count // 2 - 1, count // 2]


def wanted_positions(count: int) -> list[int]:
    """The positions that locations and spreads ask for: the middle, the quartiles, the ends of the trimmed values."""
    below = [int(share * (count - 1)) for share in QUARTILES]
    trimmed = count // 4
    return sorted({*middle(count), *below, *(min(at + 1, count - 1) for at in below), trimmed, count - 1 - trimmed})


@dataclass(frozen=True, kw_only=True)
class CountedClass:
    """One class of one column, through the queries that location and spread need; all answers were found before."""

    count: int
    values: Mapping[int, OrderStatistic]
    """By position: those of ``wanted_positions``."""
    sums: tuple[int, int]
    """Sums of the values and of their squares, in the units of :class:`fxdask.kernels.moments.Moments`."""
    inner_sum: int | None = None
    """Sum of the values between the ends of the trimmed values, without these."""
    distances: Mapping[int, OrderStatistic] | None = None
    """Distances from the median, by their positions: those of ``middle``."""

    def at(self, position: int) -> NDArray[np.float32]:
        """(row,) value at this position of the sorted values; there is one row."""
        return np.array([self.values[position].value])

    def take(self, rows: NDArray[np.intp]) -> CountedClass:
        """These rows only: the one that there is."""
        return self

    @property
    def ends(self) -> tuple[OrderStatistic, OrderStatistic]:
        """The lowest and the highest value that an interquartile mean takes."""
        trimmed = self.count // 4
        return self.values[trimmed], self.values[self.count - 1 - trimmed]

    @property
    def centre(self) -> np.float32:
        """The median, rounded."""
        return LOCATIONS["median"](self).astype(np.float32)[0]

    def median_distance(self, centre: NDArray[np.float32]) -> NDArray[np.float64]:
        """(row,) median -> (row,) median of the distances from it, each distance rounded to float32."""
        assert self.distances is not None, "the distances were counted"
        assert centre[0] == self.centre, "distances were counted from the median"
        found = [np.float64(self.distances[position].value) for position in middle(self.count)]
        return np.array([sum(found) / len(found)])

    def total(self, trimmed: int = 0) -> NDArray[np.float64]:
        """(row,) sum without the ``trimmed`` lowest and the ``trimmed`` highest values, rounded once."""
        if not trimmed:
            return np.array([self.sums[0] / 2**UNIT])
        assert self.inner_sum is not None, "the trimmed values were summed"
        low, high = self.ends
        n_low, n_high = low.upto - trimmed, self.count - trimmed - high.below
        if low.value == high.value:
            n_low, n_high = self.count - 2 * trimmed, 0
        return np.array([(self.inner_sum + n_low * _units(low.value) + n_high * _units(high.value)) / 2**UNIT])

    def moments(self) -> tuple[list[Fraction], list[Fraction]]:
        """(row,) exact sums and exact sums of squares."""
        return [Fraction(self.sums[0], 2**UNIT)], [Fraction(self.sums[1], 2 ** (2 * UNIT))]


def _units(value: np.float32) -> int:
    """A float32 as a whole number of units."""
    return int(Fraction(float(value)) * 2**UNIT)


class MomentPasses:
    """The moments of all columns, by one pass."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch, self.is_done = scratch, False
        self._found: list[Moments] = []

    def absorb(self, values: ColumnValues) -> None:
        """(column, sample) next values."""
        with np.errstate(all="ignore"):  # the caller refuses infinity
            self._found = [merge_moments([*self._found, class_moments(values, self._scratch)])]

    def end_pass(self) -> None:
        """All values have been absorbed."""
        self.is_done = True

    @property
    def found(self) -> Moments:
        """The result of the pass."""
        return self._found[0]


class AbsoluteMomentPasses(MomentPasses):
    """The moments of the absolute values of all columns, by one pass."""

    def absorb(self, values: ColumnValues) -> None:
        """(column, sample) next values."""
        super().absorb(ColumnValues(np.abs(values.values), values.runs))


class TrimmedSumPasses:
    """The sums of all values strictly between two ends of every class and column, by one pass."""

    def __init__(self, ends: Mapping[Place, tuple[OrderStatistic, OrderStatistic]], scratch: Scratch) -> None:
        self._ends, self._moments = ends, MomentPasses(scratch)

    @property
    def is_done(self) -> bool:
        """Whether the sums are known."""
        return self._moments.is_done or not self._ends

    def absorb(self, values: ColumnValues) -> None:
        """(column, sample) next values; each class is one run."""
        inside = values.values.copy()
        for (k, column), (low, high) in self._ends.items():
            (run,) = values.runs[k]
            own = inside[column, run]
            own[~((own > low.value) & (own < high.value))] = np.nan
        self._moments.absorb(ColumnValues(inside, values.runs))

    def end_pass(self) -> None:
        """All values have been absorbed."""
        self._moments.end_pass()

    def found(self, place: Place) -> int:
        """The sum of a class and column, in the units of moments."""
        return self._moments.found.sums[place]


def robust_statistics(
    read: Callable[[], Iterable[ColumnValues]],
    classes: Mapping[Place, CountedClass],
    tolerance: NDArray[np.float64],
    measures: Sequence[str],
    rows: PrefixRows,
    scratch: Scratch,
) -> ClassStatistics:
    """Classes whose order statistics are known -> location and spread, after the passes that depend on these."""
    location, spread = measures
    ends = {place: one.ends for place, one in classes.items()} if location == "interquartile_mean" else {}
    centres = {place: one.centre for place, one in classes.items()} if spread == "mad" else {}
    trimmed = TrimmedSumPasses(ends, scratch)
    distances = OrderStatisticPasses({place: middle(classes[place].count) for place in centres}, rows, centres)
    run_passes(read, trimmed, distances)
    known = {
        place: replace(
            one, inner_sum=trimmed.found(place) if place in ends else None, distances=distances.found.get(place)
        )
        for place, one in classes.items()
    }
    return _counted_statistics(known, tolerance, measures)


def _counted_statistics(
    classes: Mapping[Place, CountedClass], tolerance: NDArray[np.float64], measures: Sequence[str]
) -> ClassStatistics:
    """Classes that have values, (class, column) tolerance, names of location and spread -> (class, column) statistics.

    Location and spread are 0 where a class has no values.
    """
    location, spread = measures
    result = ClassStatistics.empty(*tolerance.shape)
    result.location[...], result.spread[...], result.source[...] = 0.0, 0.0, ZERO
    for place, ordered in classes.items():
        result.location[place] = LOCATIONS[location](ordered)[0]
        found, source = spread_with_fallback(ordered, spread, tolerance[place][None])
        result.spread[place], result.source[place] = found[0], source[0]
    return result
