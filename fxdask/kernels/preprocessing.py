"""Raw samples -> float32 samples for the product with the weights: normalised, with an origin near the data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import NotFiniteError
from fxdask.sizes import row_ranges

__all__ = [
    "LARGEST_PRODUCT",
    "NORMALIZATIONS",
    "FeatureSummary",
    "Preprocessing",
    "checked_rows",
    "chosen_normalization",
    "merge_summaries",
    "norm_exponents",
    "origin_probes",
    "origin_quartiles",
    "preprocessing_from",
    "summarize",
    "typical_norms",
]

NORMALIZATIONS = (None, "sample", "feature")
LARGEST_SCALE_RATIO = 10.0
IQR_OF_NORMAL = 1.349
SHARE_OF_OUTLIER = 0.25

# Weights beyond six standard deviations do not occur; the factor 8 keeps even larger products within float32.
LARGEST_PRODUCT = float(np.finfo(np.float32).max) / 8
FEWEST_ORIGIN_PROBES, MOST_ORIGIN_PROBES, ORIGIN_PROBE_VALUES = 16, 512, 2**21
GOLDEN_FRACTION = 40503  # of 2**16: its multiples spread evenly
# Norms of float32 vectors have exponents from -149 to some 150.
N_EXPONENTS, ZERO_EXPONENT = 512, 256
SMALLEST_SHARE_OF_NORM = 2.0**-29
FEATURES_PER_SUMMARY = 512
FEATURES_PER_QUARTILE = 4096


@dataclass(frozen=True, kw_only=True)
class FeatureSummary:
    """Count, mean, sum of squared deviations, minimum and maximum of every feature."""

    count: int
    mean: NDArray[np.float64]
    squares: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]

    @property
    def is_finite(self) -> bool:
        """Whether no sample contains NaN or infinity, since the minimum or maximum would then contain it too."""
        return bool(np.isfinite(self.minimum).all() and np.isfinite(self.maximum).all())


@dataclass(frozen=True)
class Preprocessing:
    """The transformation of a sample before the product, the same in fit and predict.

    A fixed vector is subtracted from every sample so that a large common offset does not use up
    the digits of float32. This shifts all values of a node by one constant, which changes neither
    differences of locations nor spreads nor densities.
    """

    normalize: str | None
    shift: NDArray[np.floating]
    scale: NDArray[np.floating] | None
    largest: float
    """The largest absolute value of any preprocessed training sample."""

    @property
    def is_small_shift(self) -> bool:
        """Whether preprocessing only subtracts a float32 vector no larger than the largest preprocessed value.

        Then a product with raw samples has nearly as many correct digits as one with preprocessed samples.
        """
        only_shifts = self.normalize is None and self.shift.dtype == np.float32
        # As a Python number, because NumPy would compare in float32, which may not hold the largest value.
        return only_shifts and float(np.abs(self.shift).max()) <= self.largest

    def __call__(self, samples: NDArray, out: NDArray[np.float32] | None = None) -> NDArray[np.float32]:
        """(sample, feature) raw samples -> (sample, feature) preprocessed float32 samples."""
        if out is None:
            out = np.empty(samples.shape, np.float32)
        # The shift is float32 only if float32 represents the training data, so one float32 subtraction is enough.
        if self.normalize != "sample" and _fits_float32(samples.dtype) and self.shift.dtype == np.float32:
            return np.subtract(samples, self.shift, dtype=np.float32, out=out)
        if self.normalize == "sample":
            preprocessed = _standardize_rows(samples)
            preprocessed -= self.shift
        else:
            preprocessed = np.subtract(samples, self.shift, dtype=np.float64)
            if self.scale is not None:
                preprocessed *= self.scale
        out[...] = preprocessed
        return out

    def apply_checked(
        self, samples: NDArray, out: NDArray[np.float32] | None = None, start: int = 0
    ) -> NDArray[np.float32]:
        """(sample, feature) raw samples that no scan has checked -> (sample, feature) finite float32 samples.

        NaN and infinity are refused; ``start`` is the index of the first sample in its set. A sample so
        large that its products would overflow float32 is scaled down, in the same direction: it stays
        larger than all other samples, so it keeps its class.
        """
        bound = LARGEST_PRODUCT / samples.shape[1]
        with np.errstate(over="ignore", invalid="ignore"):
            preprocessed = self(samples, out)
            # One check of all samples together is fast and nearly always sufficient.
            if -bound <= preprocessed.min(initial=0) and preprocessed.max(initial=0) <= bound:
                return preprocessed
            far = np.flatnonzero(~(np.abs(preprocessed).max(axis=1, initial=0) <= bound))
        if len(far):
            checked_rows(samples, start)
            wide = samples[far].astype(np.float64)
            # Dividing by 4, and scaling rows whose largest value is 1, cannot overflow float64.
            rows = wide / 4 - self.shift / 4
            rows /= np.abs(rows).max(axis=1, keepdims=True)
            if self.scale is not None:
                rows *= self.scale
            preprocessed[far] = rows * (bound / np.abs(rows).max(axis=1, keepdims=True))
        return preprocessed


def checked_rows(rows: NDArray, start: int = 0) -> NDArray:
    """(sample, feature) raw samples -> the same samples; NaN and infinity are refused with their index."""
    if rows.dtype.kind == "f" and not _has_finite_sum(rows) and not np.isfinite(rows).all():
        sample, feature = np.argwhere(~np.isfinite(rows))[0]
        bad_value = "NaN" if np.isnan(rows[sample, feature]) else "infinity"
        raise NotFiniteError(bad_value, int(start + sample), int(feature))
    return rows


def _has_finite_sum(rows: NDArray) -> bool:
    """Whether the sum is finite, which implies that every value is; this check is fast and needs no memory."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(np.add.reduce(rows, axis=None)))


def summarize(samples: NDArray, normalize: str | None) -> FeatureSummary:
    """(sample, feature) raw samples -> summary of every feature, after per-sample normalisation if requested."""
    if normalize == "sample":
        # NaN and infinity are detected later in the minimum and maximum, so NumPy must not warn of them.
        with np.errstate(invalid="ignore"):
            samples = _standardize_rows(samples)
    minimum, maximum, mean, squares = np.zeros((4, samples.shape[1]))
    n_parts = -(-samples.shape[1] // FEATURES_PER_SUMMARY)
    with np.errstate(invalid="ignore", over="ignore"):
        # Some features at a time, because wide samples are read several times and do not stay in the CPU cache.
        for some in (slice(*edges) for edges in row_ranges(samples.shape[1], -(-samples.shape[1] // n_parts))):
            part = samples[:, some]
            minimum[some], maximum[some] = part.min(axis=0), part.max(axis=0)
            mean[some] = np.add.reduce(part, axis=0, dtype=np.float64) / len(part)
            if normalize == "feature":
                deviations = np.subtract(part, mean[some], dtype=np.float64)
                squares[some] = np.add.reduce(np.square(deviations, out=deviations), axis=0)
    return FeatureSummary(count=len(samples), mean=mean, squares=squares, minimum=minimum, maximum=maximum)


def merge_summaries(summaries: Iterable[FeatureSummary]) -> FeatureSummary:
    """Summaries of consecutive ranges -> summary of all samples, always combined in this order."""
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


def chosen_normalization(summary: FeatureSummary, quartiles: NDArray[np.float64]) -> str | None:
    """Summary of the raw training samples, (3, feature) quartiles -> "feature" if scales are very different, else None.

    A feature whose deviation is more than ten times the median one rules every random projection.
    Features without any deviation do not count.
    """
    deviation = _deviation_without_outliers(summary, quartiles)
    varying = deviation[(summary.minimum < summary.maximum) & (deviation > 0)]
    differs = len(varying) and varying.max() > LARGEST_SCALE_RATIO * np.median(varying)
    return "feature" if differs else None


def _deviation_without_outliers(summary: FeatureSummary, quartiles: NDArray[np.float64]) -> NDArray[np.float64]:
    """(feature,) standard deviation; the smaller one of the quartiles where it is mostly that of a single value.

    The quartiles of a feature with many equal values may be equal too; they tell nothing then.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        deviation = np.sqrt(summary.squares / summary.count)
        farthest = np.maximum(summary.maximum - summary.mean, summary.mean - summary.minimum)
        of_quartiles = (quartiles[2] - quartiles[0]) / IQR_OF_NORMAL
        is_of_one_value = farthest**2 > SHARE_OF_OUTLIER * summary.squares
    robust = is_of_one_value & (of_quartiles > 0)
    return np.where(robust, np.minimum(deviation, of_quartiles), deviation)


def preprocessing_from(
    summary: FeatureSummary, quartiles: NDArray[np.float64], normalize: str | None, dtype: np.dtype
) -> Preprocessing:
    """Summary of the training samples, (3, feature) quartiles of a few of them -> the preprocessing of every sample."""
    low, middle, high = quartiles
    # One far outlier moves a mean so far that float32 has no digits left for the other samples.
    origin = np.where((low <= summary.mean) & (summary.mean <= high), summary.mean, middle)
    # A rounded mean may differ from a constant feature; clipping makes its preprocessed value exactly zero.
    origin = np.clip(origin, summary.minimum, summary.maximum)
    shift: NDArray[np.floating] = origin
    scale = None
    if normalize == "feature":
        deviation = np.sqrt(summary.squares / summary.count)
        varies = (summary.minimum < summary.maximum) & (deviation > 0)
        scale = 1.0 / np.where(varies, deviation, 1.0)
    elif normalize is None and _fits_float32(dtype):
        shift = origin.astype(np.float32)
    reach = np.maximum(summary.maximum - shift, shift - summary.minimum)
    if scale is not None:
        reach = reach * scale
    return Preprocessing(normalize, shift, scale, float(reach.max()))


def origin_quartiles(probes: NDArray, normalize: str | None) -> NDArray[np.float64]:
    """(probe, feature) raw samples -> (3, feature) lower quartile, median, upper quartile, normalised by sample."""
    if normalize == "sample":
        probes = _standardize_rows(probes)
    found = np.empty((3, probes.shape[1]))
    # Some features at a time, whose copies need little memory.
    for first in range(0, probes.shape[1], FEATURES_PER_QUARTILE):
        some = slice(first, first + FEATURES_PER_QUARTILE)
        found[:, some] = _quartiles(np.sort(np.ascontiguousarray(probes[:, some].T), axis=1))
    return found


def _quartiles(ascending: NDArray) -> NDArray[np.float64]:
    """(feature, probe) sorted values -> (3, feature) quartiles, the same bits as np.quantile, which takes longer."""
    last = ascending.shape[1] - 1
    found = []
    for share in (0.25, 0.5, 0.75):
        index = int(share * last)
        low, high = (ascending[:, i].astype(np.float64) for i in (index, min(index + 1, last)))
        beyond = share * last - index
        step = high - low
        found.append(low + step * beyond if beyond < 0.5 else high - step * (1 - beyond))
    return np.stack(found)


def origin_probes(n_samples: int, n_features: int) -> NDArray[np.intp]:
    """(probe,) ascending indices of the samples whose quartiles check the origin: by the shape alone.

    One from each of as many sections of equal length, at offsets of the golden ratio, which repeat in no period.
    """
    count = min(n_samples, max(FEWEST_ORIGIN_PROBES, min(MOST_ORIGIN_PROBES, ORIGIN_PROBE_VALUES // n_features)))
    edges = np.arange(count + 1, dtype=np.int64) * n_samples // count
    fraction = np.arange(count, dtype=np.int64) * GOLDEN_FRACTION % 2**16
    return (edges[:-1] + fraction * np.diff(edges) // 2**16).astype(np.intp)


def norm_exponents(samples: NDArray[np.float32], codes: NDArray[np.integer], n_classes: int) -> NDArray[np.int64]:
    """(sample, feature) preprocessed samples, (sample,) class codes -> (class, exponent) counts of their norms.

    Counts of whole numbers can be added in any order. Samples of norm zero are not counted.
    """
    squares = np.add.reduce(np.square(samples, dtype=np.float64), axis=1)
    found = np.flatnonzero(squares)
    # A norm between 2**e and 2**(e + 1) has a square between 2**(2 e) and 2**(2 e + 2).
    exponents = (np.frexp(squares[found])[1] - 1) // 2 + ZERO_EXPONENT
    index = codes[found].astype(np.intp) * N_EXPONENTS + exponents
    return np.bincount(index, minlength=n_classes * N_EXPONENTS).reshape(n_classes, N_EXPONENTS)


def typical_norms(counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """(class, exponent) counts -> (class,) two to the power of the median exponent, at least 2^-29 of the largest."""
    middle = (counts.sum(axis=1) - 1) // 2
    exponents = (np.cumsum(counts, axis=1) <= middle[:, None]).sum(axis=1) - ZERO_EXPONENT
    norms = np.where(middle >= 0, np.ldexp(1.0, exponents), 0.0)
    # A class at the origin itself has norms of zero, or of rounding noise, which must not pass for its size.
    return np.maximum(norms, SMALLEST_SHARE_OF_NORM * norms.max())


def _standardize_rows(samples: NDArray) -> NDArray[np.float64]:
    """(sample, feature) -> (sample, feature) with mean 0 and deviation 1 per sample; constant samples become 0."""
    rows = samples.astype(np.float64)
    lowest, highest = rows.min(axis=1), rows.max(axis=1)
    constant = lowest == highest
    reach = np.maximum(np.abs(lowest), np.abs(highest))
    extreme = np.flatnonzero((reach > 1e100) | (reach < 1e-100))
    if len(extreme):
        # A power of two changes no digit, and keeps the squares from overflow and underflow.
        rows[extreme] = np.ldexp(rows[extreme], -np.frexp(reach[extreme])[1][:, None])
    rows -= (np.add.reduce(rows, axis=1) / rows.shape[1])[:, None]
    deviation = np.sqrt(np.add.reduce(np.square(rows), axis=1) / rows.shape[1])
    rows[constant] = 0.0
    deviation[constant] = 1.0
    rows /= deviation[:, None]
    return rows


def _fits_float32(dtype: np.dtype) -> bool:
    """Whether float32 represents every value of this type."""
    return np.can_cast(dtype, np.float32, casting="safe")
