"""The sum of log densities over the selected nodes of all classes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.combination.base import ClassNodes, CombinationRule, Joined, MarginalErrors, Marginals

__all__ = ["LogRule"]


class LogRule(CombinationRule):
    """``sum_j ln f_j`` over the nodes that at least one class selected."""

    name = "log"
    adds_log_densities = True

    def used_nodes(self, member: NDArray[np.bool_]) -> list[list[int]]:
        """Each class uses all nodes."""
        return [list(range(member.shape[1])) for _ in member]

    def n_densities(self, n_classes: int, n_selected: int, n_nodes: int) -> int:
        """Every class uses the selected nodes of all classes."""
        return n_classes * min(n_nodes, n_selected * n_classes)

    def join(self, marginals: Marginals, nodes: ClassNodes, errors: MarginalErrors | None = None) -> Joined:
        """The sum of the logarithms; their errors add up."""
        terms = marginals.log_densities
        total = sum(terms, np.zeros(terms.shape[1]))
        return Joined(total, 0.0 if errors is None else float(errors.log_density.sum()))

    def rounding_growth(self, n_terms: int) -> int:
        """The rounding of all terms adds up."""
        return n_terms
