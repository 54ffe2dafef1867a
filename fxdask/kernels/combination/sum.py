"""The paper's rule: the sum of a class's densities over its own selected nodes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.combination.base import ClassNodes, CombinationRule, Joined, MarginalErrors, Marginals

__all__ = ["SumRule"]


class SumRule(CombinationRule):
    """``ln sum_j f_j`` over the nodes that the class selected."""

    name = "sum"

    def used_nodes(self, member: NDArray[np.bool_]) -> list[list[int]]:
        """Each class uses the nodes that it selected."""
        return [np.flatnonzero(of_class).tolist() for of_class in member]

    def n_densities(self, n_classes: int, n_selected: int, n_nodes: int) -> int:
        """Each class uses its own nodes only."""
        return n_classes * n_selected

    def join(self, marginals: Marginals, nodes: ClassNodes, errors: MarginalErrors | None = None) -> Joined:
        """The log of the sum, computed relative to the largest term so that it never underflows.

        The relative error of a sum of densities is at most the largest relative error of its terms.
        """
        terms = marginals.log_densities
        top = terms.max(axis=0)
        terms -= top
        total = sum(np.exp(terms, out=terms), np.zeros_like(top))
        return Joined(np.log(total, out=total) + top, 0.0 if errors is None else float(errors.log_density.max()))

    def rounding_growth(self, n_terms: int) -> int:
        """The largest term alone determines the rounding of the logarithm."""
        return 1
