"""The task that draws one feature: the density of every class, smooth enough to be looked at."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fxdask.store.columns import ColumnSource
from fxdask.tasks.rank import RankJob, ordered_features
from fxdask.tasks.rank_counted import probed_classes

__all__ = ["N_POINTS", "class_curves", "density_curves", "probed_samples"]

MOST_PROBES = 4096
MOST_DRAWN = 2**16  # values of a class; more would not change the figure
N_POINTS = 240
OUTSIDE = 0.005  # share of the values on either side that the figure leaves out
NARROWEST = 2.0  # points
LARGEST_EXPONENT = 400  # of two; squares of smaller values are far from the ends of the range of float64
LARGEST = 1e300  # a figure needs some room beyond the points


def density_curves(job: RankJob, columns: ColumnSource, feature: int) -> NDArray[np.float64]:
    """One feature -> (1 + class, point) points, and the density of every class at each of them.

    Of features that do not fit into memory some samples are drawn.
    """
    if job.plan.is_counted:
        return class_curves(probed_classes(job, columns, feature, probed_samples(len(job.codes))))
    values, order = ordered_features(job, columns, feature)
    return class_curves([values[0, own] for own in order.slices])


def probed_samples(n_samples: int) -> NDArray[np.int64]:
    """(probe,) ascending samples that are drawn if not all can be."""
    return np.unique(np.linspace(0, n_samples - 1, MOST_PROBES).astype(np.int64))


def class_curves(classes: Sequence[NDArray]) -> NDArray[np.float64]:
    """(value,) values of each class, with missing ones -> (1 + class, point) points, and the density of every class.

    Counts in narrow bins are smoothed by a Gaussian of Silverman's bandwidth. Of very many values some are drawn.
    """
    some = [of_class[:: max(1, len(of_class) // MOST_DRAWN)] for of_class in classes]
    wide = [of_class[~np.isnan(of_class)].astype(np.float64) for of_class in some]
    largest = max((float(np.abs(of_class).max(initial=0.0)) for of_class in wide), default=0.0)
    # Values near the ends of the range of float64 are drawn in another unit, a power of two, and then scaled back.
    exponent = int(np.frexp(largest)[1])
    exponent = exponent if abs(exponent) > LARGEST_EXPONENT else 0
    curves = _curves_of_present([np.ldexp(of_class, -exponent) for of_class in wide])
    with np.errstate(over="ignore"):
        scaled = np.concatenate([np.ldexp(curves[:1], exponent), np.ldexp(curves[1:], -exponent)])
    return np.clip(scaled, -LARGEST, LARGEST)


def _curves_of_present(wide: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """(value,) values of each class -> (1 + class, point) points, and the density of every class."""
    present = np.concatenate(wide)
    low, high = np.quantile(present, [OUTSIDE, 1 - OUTSIDE]) if len(present) else (0.0, 1.0)
    margin = 0.15 * (high - low) or max(1e-3 * abs(low), 1e-300)
    edges = np.linspace(low - margin, high + margin, N_POINTS + 1)
    width = edges[1] - edges[0]
    heights = [_smoothed(np.histogram(of_class, edges)[0], of_class, width) for of_class in wide]
    return np.stack([(edges[1:] + edges[:-1]) / 2, *heights])


def _smoothed(counts: NDArray[np.int64], values: NDArray[np.float64], width: float) -> NDArray[np.float64]:
    """(point,) counts, (value,) values of a class -> (point,) density."""
    if not len(values):
        return np.zeros(len(counts))
    spread = min(float(np.std(values)), float(np.subtract(*np.quantile(values, [0.75, 0.25]))) / 1.349 or np.inf)
    bandwidth = max(NARROWEST, (4 / (3 * len(values))) ** 0.2 * spread / width)
    reach = np.arange(-N_POINTS, N_POINTS + 1)
    kernel = np.exp(-0.5 * (reach / bandwidth) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum())[N_POINTS : 2 * N_POINTS]
    return smooth / (len(values) * width)
