"""The size of a fit and where its samples are: all that a plan is made for, without how it is split."""

from __future__ import annotations

from dataclasses import dataclass, fields

from fxdask.sizes import TileShape, structured_tile, tile_shape

__all__ = ["FitSize", "SampleFacts"]


@dataclass(frozen=True, kw_only=True)
class SampleFacts:
    """Type and location of the samples."""

    itemsize: int = 4
    in_memory: bool = True
    """Whether the samples are in the memory of the tasks' processes, so that nothing is read."""
    read_bytes: int = 0
    """Additional memory of one read, for decoded chunks that are larger than the read."""
    widened: bool = False
    """Whether preprocessing makes float64 copies."""
    probes_in_memory: bool = True
    """Whether every process keeps the probed samples in memory."""


@dataclass(frozen=True, kw_only=True)
class FitSize:
    """The size of a fit, independent of how it is split."""

    n_nodes: int
    n_features: int
    class_counts: tuple[int, ...]
    """Training samples of each class."""
    n_selected: int
    """Nodes selected per class."""
    n_ranked: int = 0
    """Best nodes of each class that the blocks keep; 0 means those selected."""
    kept: tuple[str, ...] = ()
    """Optional arrays that the store keeps for all nodes: "weights", "projections"."""
    sorts_columns: bool = False
    """Whether the criterion needs all values of a node at once, sorted."""
    n_tables: int = 0
    """Density tables of the fitted model; 0 means one for each class and selected node."""
    learned_bytes: int = 0
    """Size of the arrays that the combination rule learns."""
    projection: str = "gaussian"
    """The projection in use."""
    keeps_tables: bool = False
    """Whether the model keeps tables instead of the projections onto its selected nodes."""

    @property
    def size(self) -> FitSize:
        """The size only, without the plan."""
        return FitSize(**{field.name: getattr(self, field.name) for field in fields(FitSize)})

    @property
    def needs_all_values(self) -> bool:
        """Whether the values of all samples at a node must be in memory at once."""
        return self.sorts_columns or "projections" in self.kept

    @property
    def is_structured(self) -> bool:
        """Whether samples are transformed instead of multiplied with weights."""
        return self.projection == "structured"

    @property
    def tile_shape(self) -> TileShape:
        """Nodes and samples that are projected together."""
        if self.is_structured:
            return structured_tile(self.n_features)
        return tile_shape(self.n_features, self.n_samples)

    @property
    def n_samples(self) -> int:
        """Number of training samples."""
        return sum(self.class_counts)

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return len(self.class_counts)
