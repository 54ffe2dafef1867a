"""How a fit is cut into blocks and tiles: integer arithmetic, no arrays."""

from __future__ import annotations

from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from fxdask.errors import InvalidInputError

__all__ = [
    "FitPlan",
    "NodeBlock",
    "TileShape",
    "format_bytes",
    "padded_length",
    "plan_fit",
    "row_ranges",
    "rows_per_read",
    "tile_shape",
]

MIB = 2**20
VALUES_BYTES_PER_BLOCK = 48 * MIB
WEIGHTS_BYTES_PER_BLOCK = 32 * MIB
BYTES_PER_READ = 16 * MIB
LARGEST_PREPARED_COPY = 64 * MIB
FULL_TILE_NODES = 384
FULL_TILE_SAMPLES = 768
WIDEST_FULL_TILE = 8192
SMALLEST_TILE_NODES = 48
LANES = 16
FEWEST_BLOCKS = 24
SMALL_FILES = 50  # metadata, and arrays of one small chunk
BYTES_LOST_PER_FILE = 4096  # file systems give whole pages


@dataclass(frozen=True)
class TileShape:
    """The fixed shape of one matrix product: part of the store's format.

    Products of other shapes round differently, so every product has this one.
    """

    nodes: int
    samples: int


@dataclass(frozen=True)
class NodeBlock:
    """A contiguous range of nodes: one task, one chunk in every array with a node axis."""

    index: int
    start: int
    stop: int

    @property
    def n_nodes(self) -> int:
        """How many nodes the block holds."""
        return self.stop - self.start


@dataclass(frozen=True)
class FitPlan:
    """Everything about the cutting of one fit that can be known before any array is read.

    Examples
    --------
    >>> from fxdask.plan import plan_fit
    >>> plan = plan_fit(n_nodes=10_000, n_inputs=784, class_counts=(6_000, 6_000), n_selected=10)
    >>> plan.n_blocks, plan.block(0).n_nodes
    (27, 384)
    """

    n_nodes: int
    n_inputs: int
    class_counts: tuple[int, ...]
    n_selected: int
    nodes_per_block: int
    tile: TileShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", tile_shape(self.n_inputs))

    @property
    def n_samples(self) -> int:
        """All training samples."""
        return sum(self.class_counts)

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_counts)

    @property
    def n_blocks(self) -> int:
        """How many node blocks, so tasks, the fit has."""
        return -(-self.n_nodes // self.nodes_per_block)

    def block(self, index: int) -> NodeBlock:
        """The node block of this index."""
        start = index * self.nodes_per_block
        return NodeBlock(index, start, min(start + self.nodes_per_block, self.n_nodes))

    @property
    def blocks(self) -> list[NodeBlock]:
        """Every node block, in order."""
        return [self.block(index) for index in range(self.n_blocks)]

    @property
    def class_slices(self) -> list[slice]:
        """Where each class's values stand in a row that is sorted by class."""
        edges = [0]
        for count in self.class_counts:
            edges.append(edges[-1] + count)
        return [slice(start, stop) for start, stop in pairwise(edges)]

    @property
    def keeps_prepared(self) -> bool:
        """Whether the samples are so few that a prepared copy of them may stay in a process for all its blocks."""
        return 4 * self.n_samples * self.n_inputs <= LARGEST_PREPARED_COPY

    def store_bytes(self, kept: Container[str] = (), staged_bytes: int = 0) -> int:
        """Upper estimate of what the finished and the working arrays take on disk."""
        selected = min(self.n_nodes, self.n_selected * self.n_classes)
        per_node = (4 * self.n_inputs if "weights" in kept else 0) + self.n_classes * (8 + 8 + 8 + 1)
        per_selected = 4 * self.n_inputs + 8 + self.n_classes * (8 + 8)
        projections = 4 * self.n_samples * (selected + (self.n_nodes if "projections" in kept else 0))
        files = 8 * self.n_blocks + selected + SMALL_FILES
        data = self.n_nodes * per_node + selected * per_selected + projections + 4 * self.n_samples
        return data + 16 * self.n_inputs + files * BYTES_LOST_PER_FILE + staged_bytes


def tile_shape(n_inputs: int) -> TileShape:
    """The shape of every product over this many inputs: halved while the operands would be too wide."""
    nodes, samples, width = FULL_TILE_NODES, FULL_TILE_SAMPLES, WIDEST_FULL_TILE
    while n_inputs > width and nodes > SMALLEST_TILE_NODES:
        nodes, samples, width = nodes // 2, samples // 2, width * 2
    return TileShape(nodes, samples)


def padded_length(total: int, start: int = 0, most: int | None = None) -> int:
    """Rows of the product tile from ``start`` on: all of a tile, or the rest rounded up to whole vectors.

    It depends on the totals alone, so the last, shorter tile is the same for every cutting too.
    """
    rest = -(-(total - start) // LANES) * LANES
    return rest if most is None else min(most, rest)


def rows_per_read(n_inputs: int) -> int:
    """Samples per read: whole tiles, about 16 MiB as float32, the same for every chunking of the data."""
    samples = tile_shape(n_inputs).samples
    return samples * max(1, BYTES_PER_READ // (4 * n_inputs * samples))


def row_ranges(n_rows: int, per_range: int) -> Iterator[tuple[int, int]]:
    """Consecutive (start, stop) ranges that cover ``n_rows``."""
    for start in range(0, n_rows, per_range):
        yield start, min(start + per_range, n_rows)


def plan_fit(
    n_nodes: int,
    n_inputs: int,
    class_counts: tuple[int, ...],
    n_selected: int,
    nodes_per_block: int | str = "auto",
) -> FitPlan:
    """Cut a fit into node blocks.

    Parameters
    ----------
    n_nodes, n_inputs : int
        Rows and columns of the weight matrix.
    class_counts : tuple of int
        Training samples of each class.
    n_selected : int
        Nodes kept per class.
    nodes_per_block : int or "auto"
        "auto" takes whole product tiles, about 48 MiB of projected values. The choice never
        depends on workers or memory, and never changes a result.

    Returns
    -------
    FitPlan
    """
    if n_selected > n_nodes:
        raise InvalidInputError(
            f"n_selected is {n_selected} but there are only {n_nodes} nodes; "
            f"set n_selected to {n_nodes} or fewer, or n_nodes to {n_selected} or more"
        )
    if nodes_per_block == "auto":
        per_block = _automatic_nodes_per_block(n_nodes, n_inputs, sum(class_counts))
    else:
        per_block = int(nodes_per_block)
    return FitPlan(n_nodes, n_inputs, class_counts, n_selected, min(per_block, n_nodes))


def _automatic_nodes_per_block(n_nodes: int, n_inputs: int, n_samples: int) -> int:
    per_tile = tile_shape(n_inputs).nodes
    by_values = VALUES_BYTES_PER_BLOCK // (4 * n_samples)
    by_weights = WEIGHTS_BYTES_PER_BLOCK // (4 * n_inputs)
    # Few large blocks would leave some threads idle while others work on the last.
    by_count = n_nodes // FEWEST_BLOCKS
    return per_tile * max(1, min(by_values, by_weights, by_count) // per_tile)


def format_bytes(count: float) -> str:
    """A byte count for people: 3.1 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
