"""The interface of a combination rule: which densities a class uses, and how they become its score."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClassNodes", "CombinationRule", "Joined", "MarginalErrors", "Marginals", "without_own_kernel"]

SMALLEST_REST = 1e-6


@dataclass(frozen=True)
class ClassNodes:
    """The parameters of one class at the nodes that it uses."""

    spread: NDArray[np.float64]
    """(used node,)"""
    bandwidth: NDArray[np.float64]
    """(used node,)"""
    learned: Mapping[str, NDArray] = field(default_factory=dict)
    """Arrays that the rule learned from the training values, by name, already indexed by this class."""


@dataclass(frozen=True)
class Marginals:
    """What one class's densities at its nodes tell of some samples; a rule may overwrite it."""

    log_densities: NDArray[np.float64]
    """(used node, sample), or (1, sample) their sum for a rule that adds them up"""
    normal_scores: NDArray[np.float64] | None = None
    """(used node, sample) normal scores of the distribution functions, for the rules that need them"""
    start: int | None = None
    """Index of the first sample in its set, if the samples are consecutive: matrix products then use tiles
    anchored at absolute indices. Without it they go row by row, so that a sample's result depends on it alone."""


@dataclass(frozen=True)
class MarginalErrors:
    """(used node,) bounds on the errors of one class's marginals, except rounding in proportion to their size."""

    log_density: NDArray[np.float64]
    normal_score: NDArray[np.float64]


@dataclass(frozen=True)
class Joined:
    """(sample,) log score without the prior, and a bound on its error: one for all samples, or (sample,)."""

    score: NDArray[np.float64]
    error: float | NDArray[np.float64] = 0.0


def without_own_kernel(log_densities: NDArray[np.float64], nodes: ClassNodes, n_kernels: int) -> NDArray[np.float64]:
    """(used node, sample) log densities of so many kernels -> the same without one kernel that lies at the sample.

    What is left is at least a millionth of the kernel, which is as far as densities from tables are exact.
    """
    own = 1 / (np.sqrt(2 * np.pi) * nodes.bandwidth[:, None])
    left = np.maximum(n_kernels * np.exp(log_densities) - own, SMALLEST_REST * own)
    return np.log(left / max(1, n_kernels - 1))


class CombinationRule(ABC):
    """One way to combine the log densities of a class's nodes into its log score."""

    name: ClassVar[str]
    adds_log_densities: ClassVar[bool] = False
    """Whether :meth:`join` only needs the sum of the log densities."""
    needs_normal_scores: ClassVar[bool] = False
    """Whether :meth:`join` needs normal scores; the densities then include a wide normal, whose tails are heavier."""
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

    def learned_bytes(self, n_classes: int, n_nodes: int) -> int:
        """Memory of the arrays that :meth:`learn` returns, for this number of nodes in all; for the plan."""
        return 0

    @abstractmethod
    def join(self, marginals: Marginals, nodes: ClassNodes, errors: MarginalErrors | None = None) -> Joined:
        """One class's marginals, which may be overwritten -> log scores; with errors also a bound on theirs.

        The result of a sample must not depend on the other samples. So an implementation adds row by
        row, because NumPy's sum along the first axis may round differently for a single sample.
        """

    def join_held_out(self, marginals: Marginals, nodes: ClassNodes, n_samples: int) -> NDArray[np.float64]:
        """A class's marginals at some of its own training samples -> log scores as if each had been left out.

        Only the sample's own kernel is taken away; bandwidths stay those of all samples.
        """
        return self.join(Marginals(without_own_kernel(marginals.log_densities, nodes, n_samples)), nodes).score

    @abstractmethod
    def rounding_growth(self, n_terms: int) -> int:
        """Number of log densities -> the rounding of their log score as a multiple of the rounding of one."""
