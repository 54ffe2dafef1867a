"""The interface of a combination rule: which densities a class uses, and how they become its score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassNodes", "CombinationRule"]


@dataclass(frozen=True)
class ClassNodes:
    """The parameters of one class at the nodes that it uses."""

    spread: NDArray[np.float64]
    """(used node,)"""
    bandwidth: NDArray[np.float64]
    """(used node,)"""
    learned: Mapping[str, NDArray] = field(default_factory=dict)
    """Arrays that the rule learned from the training values, by name, already indexed by this class."""


class CombinationRule(ABC):
    """One way to combine the log densities of a class's nodes into its log score."""

    name: ClassVar[str]
    stored_arrays: ClassVar[tuple[str, ...]] = ()
    """Names of the arrays that :meth:`learn` returns; a store keeps them under ``selected/`` (``store/layout.py``)."""

    @abstractmethod
    def used_nodes(self, member: NDArray[np.bool_]) -> list[list[int]]:
        """(class, u) whether a class selected a node -> for each class the indices u whose densities it uses."""

    @abstractmethod
    def n_densities(self, n_classes: int, n_selected: int, n_nodes: int) -> int:
        """The largest number of densities, each of one class at one node, that labelling may look up; for the plan."""

    def learn(self, values: NDArray[np.float32], class_slices: Sequence[slice]) -> dict[str, NDArray]:
        """(u, sample) training values ordered by class, not sorted by value -> (class, ...) arrays by name."""
        return {}

    @abstractmethod
    def join(self, terms: NDArray[np.float64], nodes: ClassNodes) -> NDArray[np.float64]:
        """(used node, sample) log densities of one class, may be overwritten -> (sample,) log score without the prior.

        An implementation must add row by row, because NumPy's sum along the first axis may round
        differently for a single sample.
        """

    @abstractmethod
    def error_bound(self, errors: Sequence[float]) -> float:
        """Error bounds of one class's log densities -> error bound of its log score."""

    @abstractmethod
    def rounding_growth(self, n_terms: int) -> int:
        """Number of log densities -> the rounding of their log score as a multiple of the rounding of one."""
