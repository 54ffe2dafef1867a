"""The sum of log densities over the selected nodes of all classes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.combination.base import ClassNodes, CombinationRule

__all__ = ["LogRule"]


class LogRule(CombinationRule):
    """``sum_j ln f_j`` over the nodes that at least one class selected."""

    name = "log"

    def used_nodes(self, member: NDArray[np.bool_]) -> list[list[int]]:
        """Each class uses all nodes."""
        return [list(range(member.shape[1])) for _ in member]

    def n_densities(self, n_classes: int, n_selected: int, n_nodes: int) -> int:
        """Every class uses the selected nodes of all classes."""
        return n_classes * min(n_nodes, n_selected * n_classes)

    def join(self, terms: NDArray[np.float64], nodes: ClassNodes) -> NDArray[np.float64]:
        """The sum of the logarithms."""
        return sum(terms, np.zeros(terms.shape[1]))

    def error_bound(self, errors: Sequence[float]) -> float:
        """The errors of the logarithms add up."""
        return sum(errors)

    def rounding_growth(self, n_terms: int) -> int:
        """The rounding of all terms adds up."""
        return n_terms
