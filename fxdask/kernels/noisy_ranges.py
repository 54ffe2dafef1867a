"""A column divided by its deviation, with noise that breaks ties: ranges of rising values that fit into memory.

The noise is far smaller than the values, but it reorders those that are close to each other. So the values of
one part of a column are complete below what the next part begins with, less the largest possible noise, and
the others wait for the next part. If more wait than fit into memory, the larger ones are dropped, and
their parts are read once more afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.moments import UNIT, class_moments
from fxdask.kernels.projection import ColumnValues
from fxdask.kernels.sorted_parts import ColumnParts

__all__ = ["noisy_ranges"]

NOISE = 1e-10
NOISE_STREAM = 1  # another stream than that of the weights, which has one number
LARGEST_DRAW = 16.0  # NumPy's method for normal numbers cannot give one beyond 13.8
DRAWS_PER_STATE = 2**16

NoisyRange = list[NDArray[np.float64]]
"""(value,) ascending values of every class with more than one value."""


@dataclass(frozen=True)
class _Scaling:
    """What is done to the values of a column: divided by the deviation, noise of this scale added."""

    deviation: float
    noise: float

    @property
    def reach(self) -> float:
        """The farthest that noise moves a value."""
        return LARGEST_DRAW * self.noise


def noisy_ranges(column: ColumnParts, seed: int) -> Callable[[], Iterator[NoisyRange]] | None:
    """A column -> the function that reads its ranges from the beginning; None if it is constant.

    Classes with fewer than two values are left out.
    """
    classes = np.flatnonzero(column.counts > 1)
    if not len(classes):
        return None
    scaling = _scaling(column, classes)
    return None if scaling is None else partial(_ranges, column, classes, scaling, seed)


def _scaling(column: ColumnParts, classes: NDArray[np.intp]) -> _Scaling | None:
    """From exact sums, so that it does not depend on the parts; None for a constant column."""
    n = int(column.counts[classes].sum())
    total, square, absolute = (sum(of_class[k] for k in classes.tolist()) for of_class in _totals(column))
    # Python rounds a quotient of two integers once, however long they are.
    deviation = sqrt((n * square - total * total) / (n * n * 2 ** (2 * UNIT)))
    if deviation == 0:
        return None
    return _Scaling(deviation, NOISE * max(1.0, (absolute / 2**UNIT) / n / deviation))


def _totals(column: ColumnParts) -> tuple[list[int], list[int], list[int]]:
    """(class,) exact sums, sums of squares and sums of absolute values, in the units of moments."""
    if column.totals is not None:
        return column.totals
    (piece,) = column.pieces(0)
    sums, squares, absolute = [], [], []
    for values in piece.classes:
        n_negative = int(np.searchsorted(values, 0))
        total, square = _exact(values)
        sums.append(total)
        squares.append(square)
        absolute.append(total - 2 * _exact(values[:n_negative])[0])
    return sums, squares, absolute


def _exact(values: NDArray[np.float32]) -> tuple[int, int]:
    """(value,) values -> exact sum and sum of squares in units."""
    found = class_moments(ColumnValues(values[None], [[slice(0, len(values))]]))
    return found.sums[0, 0], found.squares[0, 0]


def _ranges(column: ColumnParts, classes: NDArray[np.intp], scaling: _Scaling, seed: int) -> Iterator[NoisyRange]:
    """One range after another, each with all values of the column that lie in it."""
    noise = _Noise(column.counts[classes], (seed, column.index))
    waiting, part = _Waiting(len(classes), column.most_waiting), 0
    while part < column.n_parts:
        for piece in column.pieces(part):
            for at, k in enumerate(classes.tolist()):
                values = np.divide(piece.classes[k], scaling.deviation, dtype=np.float64)
                drawn = noise.read(at, piece.first[k], len(values))
                drawn *= scaling.noise
                values += drawn
                waiting.add(at, values)
        part += 1
        is_last = part == column.n_parts
        complete = np.inf if is_last else column.bounds(part)[0] / scaling.deviation - scaling.reach
        found = waiting.take(complete)
        if found is not None:
            yield found
        if waiting.limit <= complete and waiting.limit < np.inf:
            # All values below the limit were given. What was dropped lies above it, in parts that reach beyond it.
            limit, waiting.limit, part = waiting.limit, np.inf, 0
            while column.bounds(part)[1] / scaling.deviation + scaling.reach < limit:
                part += 1


class _Noise:
    """Normal numbers, one for each value of a column, which can be read in any order.

    A state of the generator is kept from time to time, so that reading never draws from the beginning again.
    """

    def __init__(self, counts: NDArray[np.int64], key: tuple[int, int]) -> None:
        sequence = np.random.SeedSequence(key[0], spawn_key=(NOISE_STREAM, key[1]))
        self._bits = np.random.SFC64(sequence)
        self._generator = np.random.Generator(self._bits)
        self._first = np.concatenate([[0], np.cumsum(counts)]).tolist()
        self._states, self._at = [self._bits.state], 0

    def read(self, at: int, rank: int, count: int) -> NDArray[np.float64]:
        """Position of the class among the others, rank of a value in it -> (value,) noise of the values from it on."""
        first = self._first[at] + rank
        if first != self._at:
            nearest = min(first // DRAWS_PER_STATE, len(self._states) - 1)
            self._bits.state, self._at = self._states[nearest], nearest * DRAWS_PER_STATE
            while self._at < first:
                self._draw(np.empty(min(first - self._at, DRAWS_PER_STATE)))
        noise = np.empty(count)
        self._draw(noise)
        return noise

    def _draw(self, out: NDArray[np.float64]) -> None:
        """Draw the next numbers, and keep the states at multiples of so many draws."""
        done = 0
        while done < len(out):
            some = out[done : done + DRAWS_PER_STATE - self._at % DRAWS_PER_STATE]
            self._generator.standard_normal(out=some)
            done += len(some)
            self._at += len(some)
            if self._at == len(self._states) * DRAWS_PER_STATE:
                self._states.append(self._bits.state)


class _Waiting:
    """Values of every class that were read, and not given yet because smaller ones may follow."""

    def __init__(self, n_classes: int, most_values: int | None) -> None:
        self._most_values, self._given_below, self.limit = most_values, -np.inf, np.inf
        """Values at or above the limit were dropped."""
        self._classes: list[list[NDArray[np.float64]]] = [[] for _ in range(n_classes)]

    def add(self, at: int, values: NDArray[np.float64]) -> None:
        """(value,) values of one class, not in order."""
        if self._given_below > -np.inf or self.limit < np.inf:
            values = values[(values >= self._given_below) & (values < self.limit)]
        if len(values):
            self._classes[at].append(values)
        if self._most_values is not None and self._n_values() > self._most_values:
            self._drop_half()

    def _n_values(self) -> int:
        return sum(len(values) for of_class in self._classes for values in of_class)

    def _drop_half(self) -> None:
        """Drop the larger values; of equal ones all or none."""
        together = np.concatenate([values for of_class in self._classes for values in of_class])
        middle, lowest = np.partition(together, len(together) // 2)[len(together) // 2], together.min()
        self.limit = middle if middle > lowest else together.min(initial=self.limit, where=together > lowest)
        self._split(self.limit)

    def _split(self, end: float) -> list[NDArray[np.float64]]:
        """Keep the values below the end; returns the others of each class."""
        others = []
        for at, parts in enumerate(self._classes):
            values = _joined(parts)
            others.append(values[values >= end])
            self._classes[at] = [values[values < end]]
        return others

    def take(self, end: float) -> NoisyRange | None:
        """The values below the end, ascending, if there are any; the others stay."""
        end = max(self._given_below, min(end, self.limit))  # a part that is read again may begin below what was given
        others = self._split(end) if end < np.inf else None
        found = [_joined(parts) for parts in self._classes]
        self._classes = [[values] for values in others] if others else [[] for _ in found]
        self._given_below = end
        for values in found:
            values.sort(kind="stable")  # nearly sorted already, which this kind of sort makes use of
        return found if any(map(len, found)) else None


def _joined(parts: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Arrays -> one array, without a copy if there is one already."""
    return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0), *parts])
