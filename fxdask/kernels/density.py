"""Bandwidth rules and the Gaussian kernel density summed, in log space."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.optimize import brentq

from fxdask.kernels.pairs import NEGLIGIBLE, pairs_of

__all__ = [
    "BANDWIDTHS",
    "LOG_SQRT_2PI",
    "bandwidths",
    "log_density",
    "log_density_nearby",
    "scott",
    "sheather_jones",
    "silverman",
]

KERNELS_PER_STEP = 2**19
SHEATHER_JONES_BINS = 2**12
LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)
ROOT_HALF = 0.5**0.5


def silverman(values: NDArray[np.floating], sigma: float) -> float:
    """(sample,) values, their spread -> ``(4 / (3 v))^(1/5) sigma``."""
    return float((4.0 / (3.0 * len(values))) ** 0.2 * sigma)


def scott(values: NDArray[np.floating], sigma: float) -> float:
    """(sample,) values, their spread -> ``v^(-1/5) sigma``."""
    return float(len(values) ** -0.2 * sigma)


def sheather_jones(values: NDArray[np.floating], sigma: float) -> float:
    """(sample,) values, their spread -> the improved Sheather-Jones plug-in bandwidth.

    The bandwidth solves ``t = xi gamma^[5](t)`` (Botev, Grotowski and Kroese, Annals of
    Statistics 38, 2010) on the cosine transform of a histogram over twice the data's range.
    Where the equation has no root up to t = 0.1, as with very few values or values that do not
    vary, Silverman's rule is used instead.
    """
    found = _sheather_jones_root(np.asarray(values, dtype=np.float64))
    return silverman(values, sigma) if found is None else found


def _sheather_jones_root(values: NDArray[np.float64]) -> float | None:
    low, high = values.min(), values.max()
    span = 2.0 * (high - low)
    if not span > 0:
        return None
    edges = np.linspace(low - span / 4, high + span / 4, SHEATHER_JONES_BINS + 1)
    share = np.histogram(values, edges)[0] / len(values)
    power = (dct(share)[1:] / 2) ** 2
    frequency = np.arange(1, SHEATHER_JONES_BINS, dtype=np.float64) ** 2
    n_distinct = len(np.unique(values))

    def excess(t: float) -> float:
        return t - _plug_in(t, n_distinct, frequency, power)

    # The smallest root is the wanted one: a larger one smooths real structure away.
    trial = np.geomspace(1e-12, 0.1, 30)
    signs = np.array([excess(t) for t in trial])
    crossing = np.flatnonzero((signs[:-1] < 0) & (signs[1:] >= 0))
    if not len(crossing):
        return None
    root = brentq(excess, trial[crossing[0]], trial[crossing[0] + 1])
    return float(np.sqrt(root) * span)


def _plug_in(t: float, count: int, frequency: NDArray[np.float64], power: NDArray[np.float64]) -> float:
    """One evaluation of ``xi gamma^[5](t)``, from the seventh derivative's norm down to the second's."""

    def norm(order: int, width: float) -> float:
        weight = np.exp(order * np.log(frequency) - frequency * np.pi**2 * width)
        return float(2 * np.pi ** (2 * order) * np.sum(weight * power))

    estimate = norm(7, t)
    for order in range(6, 1, -1):
        if not estimate > 0:
            return np.inf
        odd = np.prod(np.arange(1, 2 * order, 2)) / np.sqrt(2 * np.pi)
        constant = (1 + 0.5 ** (order + 0.5)) / 3
        width = (2 * constant * odd / (count * estimate)) ** (2 / (3 + 2 * order))
        estimate = norm(order, width)
    if not estimate > 0:
        return np.inf
    return float((2 * count * np.sqrt(np.pi) * estimate) ** -0.4)


BANDWIDTHS: dict[str, Callable[[NDArray[np.floating], float], float]] = {
    "silverman": silverman,
    "scott": scott,
    "sheather_jones": sheather_jones,
}


def bandwidths(
    values: NDArray[np.float32],
    spread: NDArray[np.float64],
    tolerance: NDArray[np.float64],
    rule: str | float,
) -> tuple[NDArray[np.float64], int]:
    """(node, sample) values of one class, (node,) spread and tolerance -> (node,) bandwidth, and fallbacks taken.

    A rule's result is floored at the tolerance, so that a class that is constant at a node
    still has a density; a number is taken as it is.
    """
    if not isinstance(rule, str):
        return np.full(len(values), float(rule)), 0
    chosen = BANDWIDTHS[rule]
    found = np.array([chosen(row, float(sigma)) for row, sigma in zip(values, spread, strict=True)])
    n_fallbacks = 0
    if chosen is sheather_jones:
        # Only the fallback itself gives Silverman's width to the last bit.
        n_fallbacks = sum(
            width == silverman(row, float(s)) for width, row, s in zip(found, values, spread, strict=True)
        )
    return np.maximum(found, tolerance), int(n_fallbacks)


def log_density(points: NDArray[np.floating], ascending: NDArray[np.floating], bandwidth: float) -> NDArray[np.float64]:
    """(point,) and (sample,) ascending values, bandwidth -> (point,) log of the Gaussian kernel density.

    Every kernel is summed, in float64, a bounded number at a time. Exponents are taken relative to
    the nearest sample's, so that a point far from all of them has a finite log density instead of
    the log of zero. A point's result does not depend on the points beside it.
    """
    samples: NDArray[np.float64] = np.asarray(ascending, dtype=np.float64)
    places: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    scale = ROOT_HALF / bandwidth
    top = np.square(_distance_to_nearest(places, samples) * scale)
    result = np.empty(len(points))
    samples_per_step = min(len(samples), KERNELS_PER_STEP)
    points_per_step = max(1, KERNELS_PER_STEP // samples_per_step)
    room = np.empty((min(points_per_step, len(places)), samples_per_step))
    for start in range(0, len(points), points_per_step):
        some = slice(start, start + points_per_step)
        total = np.zeros(len(places[some]))
        for first in range(0, len(samples), samples_per_step):
            part = samples[first : first + samples_per_step]
            exponent = room[: len(total), : len(part)]
            # Differences first: scaled coordinates far from zero would have lost the digits that count.
            np.subtract(places[some, None], part, out=exponent)
            exponent *= scale
            np.square(exponent, out=exponent)
            np.subtract(top[some, None], exponent, out=exponent)
            total += np.exp(exponent, out=exponent).sum(axis=1)
        result[some] = np.log(total) - top[some]
    return result - (LOG_SQRT_2PI + np.log(bandwidth) + np.log(len(samples)))


def log_density_nearby(
    points: NDArray[np.floating], ascending: NDArray[np.floating], bandwidth: float
) -> NDArray[np.float64]:
    """The same, of those samples only that count: the others add less than 3e-20 each of a point's density."""
    samples: NDArray[np.float64] = np.asarray(ascending, dtype=np.float64)
    places: NDArray[np.float64] = np.asarray(points, dtype=np.float64)
    nearest = _distance_to_nearest(places, samples) / bandwidth
    reach = np.sqrt(nearest**2 + 2 * NEGLIGIBLE) * (bandwidth * (1 + 1e-9))
    start = np.searchsorted(samples, places - reach)
    stop = np.searchsorted(samples, places + reach, side="right")
    top = 0.5 * nearest**2
    total = np.empty(len(places))
    for pairs in pairs_of(start, stop):
        distance = (places[pairs.point] - samples[pairs.sample]) / bandwidth
        total[pairs.points] = pairs.totals(np.exp(top[pairs.point] - 0.5 * distance**2))
    return np.log(total) - top - (LOG_SQRT_2PI + np.log(bandwidth) + np.log(len(samples)))


def _distance_to_nearest(points: NDArray[np.float64], ascending: NDArray[np.float64]) -> NDArray[np.float64]:
    right = np.searchsorted(ascending, points).clip(max=len(ascending) - 1)
    left = (right - 1).clip(min=0)
    return np.minimum(np.abs(points - ascending[right]), np.abs(points - ascending[left]))
