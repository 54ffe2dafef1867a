"""The parameters of a fitted network: the selected nodes with their training values, bandwidths and priors."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.combination.base import ClassNodes, CombinationRule
from fxdask.kernels.density.bandwidth import bandwidth_floor, bandwidths
from fxdask.kernels.density.cells import Density, Tabulated
from fxdask.kernels.density.summed import SummedDensity, as_arrays
from fxdask.kernels.density.wide_normal import WideNormal
from fxdask.kernels.order_statistics import SortedRows
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.statistics import LOCATIONS, SPREAD_SOURCES, shrunk_spread, spread_with_fallback

__all__ = ["DensityOptions", "ExactDensities", "NetworkParameters", "SelectedNodes", "assemble", "class_members"]


class ExactDensities(Protocol):
    """Sums all kernels of a model that does not keep its training values."""

    def __call__(
        self, values: NDArray[np.float32], used: list[list[int]], bandwidth: NDArray[np.float64]
    ) -> list[NDArray[np.float64]]:
        """(u, point) values, nodes of each class, (class, u) widths -> (used node, point) log densities by class."""


@dataclass(frozen=True, kw_only=True)
class NetworkParameters:
    """The parameters that labelling needs.

    ``u`` is the index of a node in the union of all classes' selected nodes; ``member[k, u]`` is
    whether class k selected node u.
    """

    preprocessing: Preprocessing
    nodes: NDArray[np.int64]  # (u,)
    weights: NDArray[np.float32]  # (u, feature)
    projections: NDArray[np.float32]  # (u, sample), sorted by class, ascending within it; of few samples with tables
    class_slices: list[slice]
    bandwidth: NDArray[np.float64]  # (class, u)
    location: NDArray[np.float64]  # (class, u)
    spread: NDArray[np.float64]  # (class, u)
    member: NDArray[np.bool_]  # (class, u)
    log_priors: NDArray[np.float64]  # (class,)
    rule: CombinationRule
    learned: Mapping[str, NDArray] = field(default_factory=dict)
    """Arrays that the rule learned from the training values, by name; each has the shape (class, ...)."""
    tables: Mapping[tuple[int, int], SummedDensity] = field(default_factory=dict)
    """(class, u) -> sums over all training values; the projections are then those of a few samples only."""
    reread: ExactDensities | None = None
    """Sums all kernels at points that tables do not decide, by reading the training samples again."""

    @property
    def class_counts(self) -> list[int]:
        """Training samples of each class."""
        counts = {k: density.n_samples for (k, _), density in self.tables.items()}
        return [counts.get(k, columns.stop - columns.start) for k, columns in enumerate(self.class_slices)]

    def density(self, k: int, u: int) -> Tabulated:
        """The density of one class at one node, of its samples or of sums over them."""
        if self.tables:
            return self.tables[k, u]
        return Density(self.ascending(k, u), float(self.bandwidth[k, u]), self.wide_normal(k, u))

    @property
    def n_features(self) -> int:
        """Number of features of a sample."""
        return self.weights.shape[1]

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.log_priors)

    def used_nodes(self) -> list[list[int]]:
        """For each class, the nodes whose densities make up its score."""
        return self.rule.used_nodes(self.member)

    def ascending(self, k: int, u: int) -> NDArray[np.float32]:
        """(sample,) training values of one class at one node, ascending."""
        return self.projections[u, self.class_slices[k]]

    def wide_normal(self, k: int, u: int) -> WideNormal | None:
        """The wide normal that is mixed with one class's kernels at one node, if the rule wants one."""
        if not self.rule.needs_normal_scores:
            return None
        return WideNormal.of_class(float(self.location[k, u]), float(self.spread[k, u]), float(self.bandwidth[k, u]))

    def class_nodes(self, k: int, used: list[int]) -> ClassNodes:
        """The parameters of one class that the rule uses."""
        learned = {name: values[k] for name, values in self.learned.items()}
        return ClassNodes(self.spread[k, used], self.bandwidth[k, used], learned)

    def digest(self, density: str) -> str:
        """SHA-256 digest of everything that scores depend on."""
        found = hashlib.sha256(f"{self.rule.name} {density} {self.class_slices}".encode())
        before = self.preprocessing
        found.update(f"{before.normalize} {before.shift.dtype} {before.largest}".encode())
        arrays = [before.shift, before.scale, self.weights, self.projections, self.bandwidth, self.spread]
        if self.rule.needs_normal_scores:
            arrays.append(self.location)
        if self.tables:
            arrays += as_arrays(self.tables).values()
        for array in (*arrays, self.member, self.log_priors, *self.learned.values()):
            if array is not None:
                found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class DensityOptions:
    """The options for bandwidths, and the rule that combines densities into a score."""

    bandwidth: str | float
    bandwidth_spread: str
    location: str
    spread: str
    shrink_spread: bool
    rule: CombinationRule


@dataclass(frozen=True, kw_only=True)
class SelectedNodes:
    """The nodes that at least one class selected: their indices, weights and training values."""

    nodes: NDArray[np.int64]
    """(u,) in rising order"""
    weights: NDArray[np.float32]
    """(u, feature)"""
    values: NDArray[np.float32]
    """(u, sample) ordered by class, and within a class in the order of the samples"""
    class_slices: list[slice]
    tolerance: NDArray[np.float64]
    """(class, u) spread at or below which a class counts as constant at a node"""


def class_members(nodes: NDArray[np.int64], chosen: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
    """(u,) nodes, (class, rank) chosen nodes or (1, rank) shared ones -> (class, u) whether a class selected a node."""
    return np.broadcast_to([np.isin(nodes, row) for row in chosen], (n_classes, len(nodes))).copy()


def assemble(
    preprocessing: Preprocessing,
    selected: SelectedNodes,
    chosen: NDArray[np.int64],
    priors: NDArray[np.float64],
    options: DensityOptions,
) -> tuple[NetworkParameters, dict[str, int]]:
    """Selected nodes, (class, rank) chosen nodes -> the network's parameters, and how often each fallback was used.

    One row of chosen nodes is shared by all classes. The rule learns from the values first; then
    they are sorted within each class, in place.
    """
    learned = options.rule.learn(selected.values, selected.class_slices)
    widths, locations, spreads = [], [], []
    fallbacks = {"spread": 0, "rule": 0}
    for columns, tolerance in zip(selected.class_slices, selected.tolerance, strict=True):
        values = selected.values[:, columns]
        values.sort(axis=1)
        scaled, source = spread_with_fallback(SortedRows(values), options.bandwidth_spread, tolerance)
        floor = bandwidth_floor(scaled, tolerance, selected.tolerance)
        width, of_rule = bandwidths(values, scaled, floor, options.bandwidth)
        fallbacks["spread"] += int((source != SPREAD_SOURCES.index(options.bandwidth_spread)).sum())
        fallbacks["rule"] += of_rule
        widths.append(width)
        locations.append(LOCATIONS[options.location](SortedRows(values)))
        spreads.append(spread_with_fallback(SortedRows(values), options.spread, tolerance)[0])
    spread = np.array(spreads)
    if options.shrink_spread:
        spread = shrunk_spread(spread, [columns.stop - columns.start for columns in selected.class_slices])
    parameters = NetworkParameters(
        preprocessing=preprocessing,
        nodes=selected.nodes,
        weights=selected.weights,
        projections=selected.values,
        class_slices=selected.class_slices,
        bandwidth=np.array(widths),
        location=np.array(locations),
        spread=spread,
        member=class_members(selected.nodes, chosen, len(priors)),
        log_priors=np.log(priors),
        rule=options.rule,
        learned=learned,
    )
    return parameters, fallbacks
