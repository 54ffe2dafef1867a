"""One more sample of a kernel density, spread out as a wide normal distribution: it makes the tails heavier.

A kernel density falls off like its kernels, far too quickly for a product of a hundred of them. With
v samples the mixture is ``(sum_q K(z - z_q) + g(z)) / (v + 1)``, g a normal density.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

__all__ = ["WIDTH_IN_SPREADS", "WideNormal"]

WIDTH_IN_SPREADS = 3.0


@dataclass(frozen=True)
class WideNormal:
    """A normal distribution that is at least as wide as the kernels."""

    location: float
    scale: float

    @classmethod
    def of_class(cls, location: float, spread: float, bandwidth: float) -> WideNormal:
        """Three spreads wide; as wide as the kernels if these are wider."""
        return cls(location, max(WIDTH_IN_SPREADS * spread, bandwidth))

    def in_units(self, origin: float, unit: float) -> WideNormal:
        """The same distribution in coordinates with this origin and unit."""
        return WideNormal((self.location - origin) / unit, self.scale / unit)

    def log_density(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """(point,) -> (point,) log density."""
        return -0.5 * ((points - self.location) / self.scale) ** 2 - np.log(np.sqrt(2 * np.pi) * self.scale)

    def share_below(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """(point,) -> (point,) distribution function."""
        return ndtr((points - self.location) / self.scale)

    def share_above(self, points: NDArray[np.float64]) -> NDArray[np.float64]:
        """(point,) -> (point,) one minus the distribution function, without cancellation."""
        return ndtr((self.location - points) / self.scale)

    def kernel_sums(self, centres: NDArray[np.float64], order: int) -> NDArray[np.float64]:
        """(centre,) -> (centre, power) means of d^j exp(-d^2 / 2) up to this power, d = t - centre.

        In units of the bandwidth. The density is that of t + e with a standard normal e, so t itself
        has the variance scale^2 - 1; exp(-d^2 / 2) times its density is again a normal density.
        """
        variance, difference = self.scale**2 - 1, self.location - centres
        mean, of_product = difference / self.scale**2, variance / self.scale**2
        sums = np.empty((len(centres), order + 1))
        sums[:, 0] = np.exp(-0.5 * (difference / self.scale) ** 2) / self.scale
        sums[:, 1] = mean * sums[:, 0]
        for power in range(1, order):
            sums[:, power + 1] = mean * sums[:, power] + power * of_product * sums[:, power - 1]
        return sums
