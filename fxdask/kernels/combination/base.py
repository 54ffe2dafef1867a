"""What a combination rule is: which densities a class uses, and how they become its score."""

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
    """What a rule may know of one class at the nodes that the class uses."""

    spread: NDArray[np.float64]
    """(used node,)"""
    bandwidth: NDArray[np.float64]
    """(used node,)"""
    learned: Mapping[str, NDArray] = field(default_factory=dict)
    """What the rule learned from the training values, by name; the first axis is the class's."""


class CombinationRule(ABC):
    """One way to combine the log densities of a class's nodes into its log score."""

    name: ClassVar[str]
    stored_arrays: ClassVar[tuple[str, ...]] = ()
    """Names of what :meth:`learn` gives; a store keeps them under ``selected/``, see ``store/layout.py``."""

    @abstractmethod
    def used_nodes(self, member: NDArray[np.bool_]) -> list[list[int]]:
        """(class, u) which class selected which node -> of each class the nodes whose densities it uses."""

    @abstractmethod
    def n_densities(self, n_classes: int, n_selected: int, n_nodes: int) -> int:
        """How many densities, each of one class at one node, labelling looks up at most: for the plan."""

    def learn(self, values: NDArray[np.float32], class_slices: Sequence[slice]) -> dict[str, NDArray]:
        """(u, sample) training values by class, in the order of the samples -> what joining needs, by name."""
        return {}

    @abstractmethod
    def join(self, terms: NDArray[np.float64], nodes: ClassNodes) -> NDArray[np.float64]:
        """(used node, sample) log densities of one class, which may be overwritten -> (sample,) log score.

        The prior is not in it. Rows are added one after the other, because a sum along the first
        axis would be rounded differently for one sample alone.
        """

    @abstractmethod
    def error_bound(self, errors: Sequence[float]) -> float:
        """Bounds on the errors of one class's log densities -> bound on the error of its log score."""

    @abstractmethod
    def rounding_growth(self, n_terms: int) -> int:
        """How many times the rounding of one log density a log score of so many of them may have."""
