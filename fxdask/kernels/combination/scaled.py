"""The sum of a class's densities, each multiplied by the class's spread at the node."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.combination.base import ClassNodes
from fxdask.kernels.combination.sum import SumRule

__all__ = ["ScaledRule"]


class ScaledRule(SumRule):
    """``ln sum_j sigma_j f_j`` over the nodes that the class selected; the scaled densities have no unit."""

    name = "scaled"

    def join(self, terms: NDArray[np.float64], nodes: ClassNodes) -> NDArray[np.float64]:
        """The log of the sum of the scaled densities."""
        # The spread of a class that is constant at a node is 0, so its bandwidth is used instead.
        width = np.where(nodes.spread > 0, nodes.spread, nodes.bandwidth)
        terms += np.log(width)[:, None]
        return super().join(terms, nodes)
