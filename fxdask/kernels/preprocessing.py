"""From raw samples to what is multiplied: normalisation, and an origin near the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError

__all__ = [
    "LARGEST_PRODUCT",
    "NORMALIZATIONS",
    "FeatureSummary",
    "Preprocessing",
    "checked_rows",
    "merge_summaries",
    "preprocessing_from",
    "summarize",
]

NORMALIZATIONS = (None, "sample", "feature")

# Weights beyond six standard deviations do not occur; a product with more must still fit float32.
LARGEST_PRODUCT = float(np.finfo(np.float32).max) / 8


@dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """Count, mean, sum of squared deviations, minimum and maximum of every input."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]

    @property
    def is_finite(self) -> bool:
        """Whether no sample held NaN or infinity: both survive a minimum and a maximum."""
        return bool(np.isfinite(self.minimum).all() and np.isfinite(self.maximum).all())


@dataclass(frozen=True)
class Preprocessing:
    """What happens to a sample before the product, at fit and again at predict.

    A fixed vector is subtracted from every sample so that a large common offset does not eat
    the digits of float32. It moves each node's values by a constant, to which locations'
    differences, spreads and densities are blind.
    """

    normalize: str | None
    shift: NDArray[np.floating]
    scale: NDArray[np.floating] | None
    largest: float
    """The largest absolute value of any prepared training sample."""

    @property
    def is_small_shift(self) -> bool:
        """Whether all that is done is to subtract a vector no larger than the samples' own reach.

        Then a product with raw samples has nearly as many good digits as one with prepared ones.
        """
        narrow = self.normalize is None and self.shift.dtype == np.float32
        return narrow and bool(np.abs(self.shift).max() <= self.largest)

    def __call__(self, samples: NDArray, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(sample, input) raw samples -> (sample, input) float32."""
        if out is None:
            out = np.empty(samples.shape, np.float32)
        # A float32 origin means narrow training data: then one float32 subtraction loses nothing.
        if self.normalize != "sample" and _is_narrow(samples.dtype) and self.shift.dtype == np.float32:
            return np.subtract(samples, self.shift, dtype=np.float32, out=out)
        if self.normalize == "sample":
            prepared = _standardize_rows(samples)
            prepared -= self.shift
        else:
            prepared = np.subtract(samples, self.shift, dtype=np.float64)
            if self.scale is not None:
                prepared *= self.scale
        out[...] = prepared
        return out

    def of_new(self, samples: NDArray, out: NDArray[np.float32] | None = None, start: int = 0) -> NDArray[np.float32]:
        """(sample, input) raw samples that no survey has seen -> (sample, input) float32, finite.

        NaN and infinity are refused, by their place counted from ``start``. A sample so far out that
        its products would leave float32 is drawn nearer along its own direction: it stays farther out
        than anything else, and keeps its class.
        """
        bound = LARGEST_PRODUCT / samples.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            prepared = self(samples, out)
            # One look at all of them, which nearly always is enough.
            if -bound <= prepared.min(initial=0) and prepared.max(initial=0) <= bound:
                return prepared
            far = np.flatnonzero(~(np.abs(prepared).max(axis=1, initial=0) <= bound))
        if len(far):
            checked_rows(samples, start)
            wide = samples[far].astype(np.float64)
            # Quarters, and a largest value of one before scaling, keep every step within float64.
            rows = wide / 4 - self.shift / 4
            rows /= np.abs(rows).max(axis=1, keepdims=True)
            if self.scale is not None:
                rows *= self.scale
            prepared[far] = rows * (bound / np.abs(rows).max(axis=1, keepdims=True))
        return prepared


def checked_rows(rows: NDArray, start: int = 0) -> NDArray:
    """(sample, input) raw samples, unchanged; NaN and infinity are refused with their place."""
    if rows.dtype.kind == "f" and not _has_finite_sum(rows) and not np.isfinite(rows).all():
        sample, feature = np.argwhere(~np.isfinite(rows))[0]
        what = "NaN" if np.isnan(rows[sample, feature]) else "infinity"
        raise InvalidInputError(f"Input X contains {what}, first in sample {start + sample}, feature {feature}")
    return rows


def _has_finite_sum(rows: NDArray) -> bool:
    """Whether the sum is finite, so that every value is: a quick look that takes no memory."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(rows, axis=None)))


def summarize(samples: NDArray, normalize: str | None) -> FeatureSummary:
    """(sample, input) raw samples -> summary of every input, after per-sample normalisation if asked."""
    if normalize == "sample":
        # A row with NaN or infinity must reach the minimum and maximum, not a warning.
        with np.errstate(invalid="ignore"):
            samples = _standardize_rows(samples)
    with np.errstate(invalid="ignore", over="ignore"):
        minimum = samples.min(axis=0).astype(np.float64)
        maximum = samples.max(axis=0).astype(np.float64)
        mean = np.add.reduce(samples, axis=0, dtype=np.float64) / len(samples)
        squares = np.zeros_like(mean)
        if normalize == "feature":
            deviations = np.subtract(samples, mean, dtype=np.float64)
            squares = np.add.reduce(np.square(deviations, out=deviations), axis=0)
    return FeatureSummary(count=len(samples), mean=mean, squares=squares, minimum=minimum, maximum=maximum)


def merge_summaries(summaries: Iterable[FeatureSummary]) -> FeatureSummary:
    """Summaries of consecutive ranges -> the summary of all, always combined in this order."""
    return reduce(_merge_two, summaries)


def _merge_two(first: FeatureSummary, second: FeatureSummary) -> FeatureSummary:
    count = first.count + second.count
    step = second.mean - first.mean
    return FeatureSummary(
        count=count,
        mean=first.mean + step * (second.count / count),
        squares=first.squares + second.squares + step**2 * (first.count * second.count / count),
        minimum=np.minimum(first.minimum, second.minimum),
        maximum=np.maximum(first.maximum, second.maximum),
    )


def preprocessing_from(summary: FeatureSummary, normalize: str | None, dtype: np.dtype) -> Preprocessing:
    """Summary of the training samples -> what to do to every sample."""
    # Clipping makes the origin of a constant input exact: its prepared value is zero, not rounding noise.
    origin = np.clip(summary.mean, summary.minimum, summary.maximum)
    shift: NDArray[np.floating] = origin
    scale = None
    if normalize == "feature":
        deviation = np.sqrt(summary.squares / summary.count)
        varies = (summary.minimum < summary.maximum) & (deviation > 0)
        scale = 1.0 / np.where(varies, deviation, 1.0)
    elif normalize is None and _is_narrow(dtype):
        shift = origin.astype(np.float32)
    reach = np.maximum(summary.maximum - shift, shift - summary.minimum)
    if scale is not None:
        reach = reach * scale
    return Preprocessing(normalize, shift, scale, float(reach.max()))


def _standardize_rows(samples: NDArray) -> NDArray[np.float64]:
    """(sample, input) -> each sample with mean 0 and standard deviation 1; a constant sample becomes 0."""
    rows = samples.astype(np.float64)
    lowest, highest = rows.min(axis=1), rows.max(axis=1)
    constant = lowest == highest
    reach = np.maximum(np.abs(lowest), np.abs(highest))
    extreme = np.flatnonzero((reach > 1e100) | (reach < 1e-100))
    if len(extreme):
        # By a power of two, which changes no digit: squares must neither overflow nor vanish.
        rows[extreme] = np.ldexp(rows[extreme], -np.frexp(reach[extreme])[1][:, None])
    rows -= (np.add.reduce(rows, axis=1) / rows.shape[1])[:, None]
    deviation = np.sqrt(np.add.reduce(np.square(rows), axis=1) / rows.shape[1])
    rows[constant] = 0.0
    deviation[constant] = 1.0
    rows /= deviation[:, None]
    return rows


def _is_narrow(dtype: np.dtype) -> bool:
    """Whether every value of this type is a float32 too."""
    return np.can_cast(dtype, np.float32, casting="safe")
