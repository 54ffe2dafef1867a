"""Selected nodes and their training values -> a network that labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.decision import FittedNetwork
from fxdask.kernels.density import bandwidths
from fxdask.kernels.ordered import SortedRows
from fxdask.kernels.preparation import Preparation
from fxdask.kernels.statistics import SPREAD_SOURCES, node_tolerance, spread_with_fallback

__all__ = ["DensityRules", "assemble"]


@dataclass(frozen=True)
class DensityRules:
    """How wide a class's kernels are, and how densities make up a score."""

    bandwidth: str | float
    bandwidth_spread: str
    spread: str
    combine: str = "sum"
    density: str = "table"


def assemble(
    preparation: Preparation,
    nodes: NDArray[np.int64],
    weights: NDArray[np.float32],
    projections: NDArray[np.float32],
    class_slices: list[slice],
    chosen: NDArray[np.int64],
    priors: NDArray[np.float64],
    rules: DensityRules,
) -> tuple[FittedNetwork, dict[str, int]]:
    """(u,) nodes, their weights and (u, sample) values by class, (class, rank) choice -> the network, and fallbacks.

    The values are sorted within each class where they are.
    """
    tolerance = node_tolerance(weights, preparation.largest)
    widths, spreads, fallbacks = [], [], {"spread": 0, "rule": 0}
    for columns in class_slices:
        values = projections[:, columns]
        values.sort(axis=1)
        scaled, source = spread_with_fallback(SortedRows(values), rules.bandwidth_spread, tolerance)
        width, of_rule = bandwidths(values, scaled, tolerance, rules.bandwidth)
        fallbacks["spread"] += int((source != SPREAD_SOURCES.index(rules.bandwidth_spread)).sum())
        fallbacks["rule"] += of_rule
        widths.append(width)
        spreads.append(spread_with_fallback(SortedRows(values), rules.spread, tolerance)[0])
    network = FittedNetwork(
        preparation,
        nodes,
        weights,
        projections,
        class_slices,
        bandwidth=np.array(widths),
        spread=np.array(spreads),
        member=np.array([np.isin(nodes, row) for row in chosen]),
        log_priors=np.log(priors),
        combine=rules.combine,
        density=rules.density,
    )
    return network, fallbacks
