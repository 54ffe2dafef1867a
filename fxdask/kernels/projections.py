"""The table of projections: how the weights of nodes come about, and how samples are projected onto nodes.

A projection gives rows of weights by (seed, node) and projectors of tiles of samples. "gaussian" draws
weights and multiplies; "structured" transforms the samples and never forms the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels import structured
from fxdask.kernels.projection import DenseNodes, ProjectedPart
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.weights import SCHEME, weight_block, weight_rows
from fxdask.sizes import row_ranges, transform_length

__all__ = ["PROJECTIONS", "NodeRange", "NodeWeights", "Projection", "TileProjector"]

FEWEST_WEIGHED = 1024
SQUARES_AT_A_TIME = 2**13

Nodes = Sequence[int] | NDArray[np.integer]


class TileProjector(Protocol):
    """Projects tiles of samples onto some nodes."""

    @property
    def n_rows(self) -> int:
        """Rows of the values, the padding included."""

    @property
    def nodes(self) -> slice:
        """The rows among them that are the nodes."""

    def parts(self, samples: NDArray[np.float32]) -> Iterator[ProjectedPart]:
        """(sample, feature) one tile of preprocessed samples -> rows, samples, (row, sample) values of these.

        All parts together are the whole tile; each is small enough for the CPU cache.
        """


@dataclass(frozen=True, kw_only=True)
class NodeRange:
    """A range of nodes, and what the shape of its products depends on."""

    seed: int
    start: int
    stop: int
    n_features: int
    n_nodes: int
    """Nodes of the whole network."""
    tile_nodes: int
    """Nodes of a whole tile."""


class NodeWeights(Protocol):
    """The weights of a range of nodes; ``rows`` are positions in the range, in rising order."""

    @property
    def weights(self) -> NDArray[np.float32]:
        """(node, feature) weights."""

    @property
    def norms(self) -> NDArray[np.float64]:
        """(node,) norms of the weights, by which rounding is judged."""

    def absolute_sums(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """(row,) upper bounds of the sums of the absolute weights."""

    def projector(self, rows: NDArray[np.intp] | None = None) -> tuple[TileProjector, slice | NDArray[np.intp]]:
        """A projector, and which of its nodes are these rows; a value has the same bits for any rows."""

    def probe_projector(self, rows: NDArray[np.intp]) -> TileProjector:
        """A projector onto these rows alone, whose values may have other last bits."""


@dataclass(frozen=True, kw_only=True)
class Projection:
    """One way to project samples."""

    name: str
    scheme: str
    """How the weights follow from the seed; it is stored with a model."""
    rows: Callable[[int, Nodes, int], NDArray[np.float32]]
    """Seed, nodes in any order, number of features -> (node, feature) weights."""
    norms: Callable[[NDArray[np.float32]], NDArray[np.float64]]
    """(node, feature) weights -> (node,) norms, as :attr:`NodeWeights.norms`."""
    nodes: Callable[[NodeRange, Scratch], NodeWeights]
    """Nodes and the buffers that their weights and projectors use, so one range at a time can use them."""
    has_weights: bool = True
    """Whether the weights of a block are drawn anyway, to multiply with them."""
    most_weights: int | None = None
    """Weights from which the importances of features are computed; None means those of all nodes."""

    def n_weighed(self, n_nodes: int, n_features: int) -> int:
        """Nodes whose weights give the importances of features: the first ones, which are as random as any others."""
        if self.most_weights is None:
            return n_nodes
        return min(n_nodes, max(FEWEST_WEIGHED, self.most_weights // n_features))


@dataclass(frozen=True)
class _GaussianRange:
    """Nodes whose weights are drawn and multiplied with the samples."""

    of: NodeRange
    scratch: Scratch

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        drawn = self.scratch("weights", (self.of.stop - self.of.start, self.of.n_features))
        return weight_block(self.of.seed, self.of.start, self.of.stop, self.of.n_features, drawn)

    @property
    def norms(self) -> NDArray[np.float64]:
        return _row_norms(self.weights)

    def absolute_sums(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        return np.abs(self.weights[rows]).sum(axis=1, dtype=np.float64)

    def projector(self, rows: NDArray[np.intp] | None = None) -> tuple[TileProjector, slice | NDArray[np.intp]]:
        first, last = (0, len(self.weights)) if rows is None else (int(rows[0]), int(rows[-1]) + 1)
        wanted = slice(None) if rows is None or len(rows) == last - first else rows - first
        nodes, start = self.weights[first:last], self.of.start + first
        return DenseNodes(nodes, start, self.of.n_nodes, self.of.tile_nodes, self.scratch), wanted

    def probe_projector(self, rows: NDArray[np.intp]) -> TileProjector:
        return DenseNodes(self.weights[rows], 0, len(rows), self.of.tile_nodes, self.scratch)


@dataclass(frozen=True)
class _StructuredRange:
    """Nodes whose weights are a product of transforms and signs, which are applied to the samples."""

    of: NodeRange
    scratch: Scratch

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        return structured.structured_rows(self.of.seed, range(self.of.start, self.of.stop), self.of.n_features)

    @property
    def norms(self) -> NDArray[np.float64]:
        return _expected_norms(np.broadcast_to(np.float32(0), (self.of.stop - self.of.start, self.of.n_features)))

    def absolute_sums(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        # A row has at most the norm sqrt(p), and the sum of n absolute values at most sqrt(n) times their norm.
        n_features = self.of.n_features
        return np.full(len(rows), np.sqrt(float(n_features) * transform_length(n_features)))

    def projector(self, rows: NDArray[np.intp] | None = None) -> tuple[TileProjector, slice | NDArray[np.intp]]:
        nodes = np.arange(self.of.start, self.of.stop) if rows is None else self.of.start + rows
        return structured.StructuredNodes(self.of.seed, nodes, self.of.n_features), slice(None)

    def probe_projector(self, rows: NDArray[np.intp]) -> TileProjector:
        return self.projector(rows)[0]


def _row_norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """(node, feature) -> (node,) Euclidean norms."""
    norms = np.empty(len(rows))
    # A few rows at a time, because new memory for the squares of all costs more than the squares.
    for start, stop in row_ranges(len(rows), max(1, SQUARES_AT_A_TIME // max(1, rows.shape[1]))):
        norms[start:stop] = np.add.reduce(np.square(rows[start:stop], dtype=np.float64), axis=1)
    return np.sqrt(norms, out=norms)


def _expected_norms(rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """(node, feature) -> (node,) sqrt(n): the norm of a row of +-1, which transforms change little."""
    return np.full(len(rows), np.sqrt(float(rows.shape[1])))


PROJECTIONS: dict[str, Projection] = {
    projection.name: projection
    for projection in (
        Projection(
            name="gaussian",
            scheme=SCHEME,
            rows=weight_rows,
            norms=_row_norms,
            nodes=_GaussianRange,
        ),
        Projection(
            name="structured",
            scheme=structured.SCHEME,
            rows=structured.structured_rows,
            norms=_expected_norms,
            nodes=_StructuredRange,
            has_weights=False,
            # Rows are made by as many transforms as samples take, so those of all nodes would cost more than the fit.
            most_weights=2**28,
        ),
    )
}
