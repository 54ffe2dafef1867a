"""Rules for the bandwidth of a Gaussian kernel density."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.fft import dct
from scipy.optimize import brentq

__all__ = [
    "BANDWIDTHS",
    "BY_COUNT",
    "bandwidth_floor",
    "bandwidths",
    "bandwidths_of_counts",
    "scott",
    "sheather_jones",
    "silverman",
]

SHEATHER_JONES_BINS = 2**12


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
    If the equation has no root up to t = 0.1, as with very few values or constant values,
    Silverman's rule is used instead.
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

    # The smallest root is used, because a larger one would smooth real structure away.
    trial = np.geomspace(1e-12, 0.1, 30)
    signs = np.array([excess(t) for t in trial])
    crossing = np.flatnonzero((signs[:-1] < 0) & (signs[1:] >= 0))
    if not len(crossing):
        return None
    root = brentq(excess, trial[crossing[0]], trial[crossing[0] + 1])
    return float(np.sqrt(root) * span)


def _plug_in(t: float, count: int, frequency: NDArray[np.float64], power: NDArray[np.float64]) -> float:
    """``xi gamma^[5](t)``, from the norm of the seventh derivative down to that of the second."""

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


BY_COUNT = ("silverman", "scott")
"""Rules that need the number of the values and their spread, not the values themselves."""


def bandwidth_floor(
    spread: NDArray[np.float64], own_tolerance: NDArray[np.float64], tolerance: NDArray[np.float64]
) -> NDArray[np.float64]:
    """(node,) spread and tolerance of one class, (class, node) tolerance -> (node,) smallest bandwidth.

    A class that is constant at a node gets the largest tolerance of all classes, because a new
    sample of it may be rounded differently.
    """
    return np.where(spread == 0, tolerance.max(axis=0), own_tolerance)


def bandwidths(
    values: NDArray[np.float32],
    spread: NDArray[np.float64],
    tolerance: NDArray[np.float64],
    rule: str | float,
) -> tuple[NDArray[np.float64], int]:
    """(node, sample) values of one class, (node,) spread and tolerance -> (node,) bandwidth, number of fallbacks.

    The result of a rule is at least the tolerance, so that a class that is constant at a node still
    has a density; a bandwidth given as a number is used unchanged.
    """
    if not isinstance(rule, str):
        return np.full(len(values), float(rule)), 0
    chosen = BANDWIDTHS[rule]
    found = np.array([chosen(row, float(sigma)) for row, sigma in zip(values, spread, strict=True)])
    n_fallbacks = 0
    if chosen is sheather_jones:
        # A width equal to Silverman's to the last bit can only come from the fallback.
        n_fallbacks = sum(
            width == silverman(row, float(s)) for width, row, s in zip(found, values, spread, strict=True)
        )
    return np.maximum(found, tolerance), int(n_fallbacks)


def bandwidths_of_counts(
    counts: Sequence[int], spread: NDArray[np.float64], floor: NDArray[np.float64], rule: str | float
) -> NDArray[np.float64]:
    """(class,) numbers of values, (class, node) spread and smallest bandwidth -> (class, node) bandwidth by count."""
    found = np.empty(spread.shape)
    for k, count in enumerate(counts):
        # A view of one value in place of all, because only their number is used.
        values = np.broadcast_to(np.float32(0), (spread.shape[1], count))
        found[k], _ = bandwidths(values, spread[k], floor[k], rule)
    return found
