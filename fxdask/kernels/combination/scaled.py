"""The sum of a class's densities, each multiplied by the class's spread at the node."""

from __future__ import annotations

import numpy as np

from fxdask.kernels.combination.base import ClassNodes, Joined, MarginalErrors, Marginals
from fxdask.kernels.combination.sum import SumRule

__all__ = ["ScaledRule"]


class ScaledRule(SumRule):
    """``ln sum_j sigma_j f_j`` over the nodes that the class selected; the scaled densities have no unit."""

    name = "scaled"

    def join(self, marginals: Marginals, nodes: ClassNodes, errors: MarginalErrors | None = None) -> Joined:
        """The log of the sum of the scaled densities."""
        # The spread of a class that is constant at a node is 0, so its bandwidth is used instead.
        width = np.where(nodes.spread > 0, nodes.spread, nodes.bandwidth)
        terms = marginals.log_densities
        terms += np.log(width)[:, None]
        return super().join(marginals, nodes, errors)
