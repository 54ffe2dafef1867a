"""Features of the data as columns to rank: raw values of any numeric type -> float32 values, ordered by class.

A type that float32 represents is taken as it is. Other columns are taken as they are if float32 represents
each of their values. Else the median is subtracted and the rest divided by a power of two before rounding,
so that neither a large offset nor a large scale uses up the digits of float32. No criterion depends on
the origin or on the scale of a column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.projection import ColumnValues

__all__ = [
    "Centring",
    "ClassOrder",
    "FeatureValues",
    "as_features",
    "gathered_type",
    "rounding_tolerance",
    "scatter_columns",
    "scatter_rows",
]

NOISE = 8.0 * float(np.finfo(np.float32).eps)
SMALLEST_SHARE = 2.0**-29
ROWS_PER_TILE = 1024

Positions = NDArray[np.uintp]
"""Unsigned, because compiled code checks whether signed indices are negative."""


@dataclass(frozen=True)
class ClassOrder:
    """Where every sample stands if the samples are ordered by class: (sample,) positions, (class + 1,) edges."""

    positions: Positions
    edges: NDArray[np.int64]

    @classmethod
    def of(cls, codes: NDArray[np.integer], n_classes: int) -> ClassOrder:
        """(sample,) class codes -> the order that keeps the order of the samples within each class."""
        order = np.argsort(codes, kind="stable")
        positions = np.empty(len(codes), np.uintp)
        positions[order] = np.arange(len(codes))
        return cls(positions, np.searchsorted(codes[order], np.arange(n_classes + 1)).astype(np.int64))

    @property
    def slices(self) -> list[slice]:
        """The samples of each class in this order."""
        return [slice(first, last) for first, last in pairwise(self.edges.tolist())]


@dataclass(frozen=True)
class FeatureValues:
    """(feature, sample) float32 values ordered by class, and (class, feature) spreads that rounding can make."""

    columns: ColumnValues
    tolerance: NDArray[np.float64]


def gathered_type(dtype: np.dtype) -> np.dtype:
    """The type in which all values of a column are gathered: float32 if it represents them, else float64."""
    return np.dtype(np.float32 if np.can_cast(dtype, np.float32, casting="safe") else np.float64)


def scatter_rows(rows: NDArray, positions: Positions, out: NDArray[np.floating]) -> None:
    """(sample, feature) values, (sample,) positions -> these positions of the (feature, sample) array ``out``."""
    _compiled()[0](_native(rows), positions, out)


def scatter_columns(columns: NDArray, positions: Positions, out: NDArray[np.floating]) -> None:
    """(feature, sample) values, (sample,) positions -> these positions of the (feature, sample) array ``out``."""
    _compiled()[1](_native(columns), positions, out)


def _native(values: NDArray) -> NDArray:
    """Values of a type that numba knows, in the byte order of the machine."""
    if values.dtype == np.float16 or not values.dtype.isnative:
        return values.astype(gathered_type(values.dtype))
    return values


def as_features(gathered: NDArray[np.floating], order: ClassOrder) -> FeatureValues:
    """(feature, sample) values ordered by class, NaN where one is missing -> float32 values and their tolerance.

    float64 values are overwritten. The tolerance is zero for values that were not rounded.
    """
    tolerance = np.zeros((len(order.edges) - 1, len(gathered)))
    runs = [[run] for run in order.slices]
    if gathered.dtype == np.float32:
        return FeatureValues(ColumnValues(gathered, runs), tolerance)
    with np.errstate(over="ignore"):
        values = gathered.astype(np.float32)
    for feature, (wide, narrow) in enumerate(zip(gathered, values, strict=True)):
        if not np.array_equal(wide, narrow, equal_nan=True):
            narrow[...] = _centred(wide)
            tolerance[:, feature] = _rounding(narrow, order)
    return FeatureValues(ColumnValues(values, runs), tolerance)


@dataclass(frozen=True)
class Centring:
    """What is done to a column of float64 before it is rounded: scaled, its median subtracted, scaled again."""

    exponent: int
    median: float
    second_exponent: int

    @classmethod
    def of(cls, lowest: float, highest: float, median: float) -> Centring:
        """For a column with this range and this median; the result has values from -1 to 1 and a median of 0."""
        exponent = int(np.frexp(max(abs(lowest), abs(highest)))[1])
        lowest, highest, median = (float(np.ldexp(value, -exponent)) for value in (lowest, highest, median))
        return cls(exponent, median, int(np.frexp(max(abs(lowest - median), abs(highest - median)))[1]))

    def apply(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """(sample,) values, some of them NaN -> the same, centred; they are overwritten."""
        np.ldexp(values, -self.exponent, out=values)
        values -= self.median
        return np.ldexp(values, -self.second_exponent, out=values)


def _centred(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample,) values, some of them NaN -> values from -1 to 1 with a median of 0; they are overwritten."""
    present = values[~np.isnan(values)]
    median = np.partition(present, len(present) // 2)[len(present) // 2]
    return Centring.of(float(present.min()), float(present.max()), float(median)).apply(values)


def _rounding(values: NDArray[np.float32], order: ClassOrder) -> NDArray[np.float64]:
    """(sample,) rounded values -> (class,) spread at or below which a class may be constant but for rounding."""
    sizes = np.zeros(len(order.edges) - 1)
    for k, own in enumerate(order.slices):
        present = np.abs(values[own])
        present = present[~np.isnan(present)]
        sizes[k] = np.partition(present, len(present) // 2)[len(present) // 2] if len(present) else 0.0
    return rounding_tolerance(sizes)


def rounding_tolerance(sizes: NDArray[np.float64]) -> NDArray[np.float64]:
    """(class,) medians of absolute rounded values -> (class,) spread that rounding alone can make."""
    return NOISE * np.maximum(sizes, SMALLEST_SHARE * sizes.max())


def _scatter_rows(rows: NDArray, positions: Positions, out: NDArray[np.floating]) -> None:
    """Four features at a time, of a tile of rows that stays in the CPU cache while its values are written."""
    in_fours = rows.shape[1] // 4 * 4
    for first in range(0, rows.shape[0], ROWS_PER_TILE):
        tile, places = rows[first : first + ROWS_PER_TILE], positions[first : first + ROWS_PER_TILE]
        for feature in range(0, in_fours, 4):
            a, b, c, d = out[feature], out[feature + 1], out[feature + 2], out[feature + 3]
            for sample in range(len(places)):
                place, four = places[sample], tile[sample, feature : feature + 4]
                a[place], b[place], c[place], d[place] = four[0], four[1], four[2], four[3]
        for feature in range(in_fours, rows.shape[1]):
            a = out[feature]
            for sample in range(len(places)):
                a[places[sample]] = tile[sample, feature]


def _scatter_columns(columns: NDArray, positions: Positions, out: NDArray[np.floating]) -> None:
    for feature in range(columns.shape[0]):
        values, into = columns[feature], out[feature]
        for sample in range(len(values)):
            into[positions[sample]] = values[sample]


@cache
def _compiled() -> tuple[Callable[..., None], Callable[..., None]]:
    """Both loops compiled to machine code on first use."""
    njit = import_module("numba").njit(nogil=True, cache=True)
    return njit(_scatter_rows), njit(_scatter_columns)
