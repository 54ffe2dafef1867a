"""Sizes of blocks, tiles and row ranges, and byte counts as text: integer arithmetic only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

__all__ = [
    "FEWEST_STRUCTURED_FEATURES",
    "FULL_TILE_NODES",
    "LANES",
    "LOOKUPS_PER_STEP",
    "MIB",
    "VALUES_PER_COUNT",
    "NodeBlock",
    "TileShape",
    "bins_per_count",
    "columns_per_transform",
    "facts_as_text",
    "format_bytes",
    "packed_tile",
    "padded_length",
    "projection_in_use",
    "row_ranges",
    "rows_per_piece",
    "rows_per_read",
    "rows_per_step",
    "scoring_tile",
    "staged_rows_per_piece",
    "structured_tile",
    "tile_shape",
    "transform_length",
]

MIB = 2**20
BYTES_PER_READ = 16 * MIB
BYTES_PER_PIECE = 2 * MIB
BYTES_PER_SORTED_GROUP = 4 * MIB
BYTES_PER_RANKED_GROUP = 16 * MIB
VALUES_PER_COUNT = 2**18
BYTES_PER_COUNT = 16 * MIB
BYTES_PER_DIGIT = 8 * 2**11
"""Counts of the values of one class and column by 11 bits."""
BYTES_PER_AREA = 64 * MIB
"""Cells and densities of a column that does not fit into memory."""
FULL_TILE_NODES = 384
FULL_TILE_SAMPLES = 768
WIDEST_FULL_TILE = 8192
LONGEST_FULL_TILE = 2**18
SMALLEST_TILE_NODES = 48
FEWEST_TILE_NODES_FOR_MANY_SAMPLES = 96
LANES = 16
SCORE_LANES = 4
LOOKUPS_PER_STEP = 2**20
MOST_ROWS_PER_STEP = 2**14
SHORTEST_TRANSFORM = 256
FLOATS_PER_TRANSFORM = 2**17
MOST_COLUMNS_PER_TRANSFORM = 64
FEWEST_STRUCTURED_FEATURES = 16
"""With fewer features a structured matrix has too few distinct rows, so Gaussian weights are used."""


@dataclass(frozen=True)
class TileShape:
    """The fixed shape of one matrix product; it is part of the store format.

    All products have the same shape because the shape affects how they are rounded.
    """

    nodes: int
    samples: int


@dataclass(frozen=True)
class NodeBlock:
    """A contiguous range of nodes: one task, and one chunk of every array with a node axis."""

    index: int
    start: int
    stop: int

    @property
    def n_nodes(self) -> int:
        """Number of nodes in the block."""
        return self.stop - self.start


def tile_shape(n_features: int, n_samples: int = 0) -> TileShape:
    """The product shape for this number of features and samples.

    Many features halve both sides, which bounds the operands. Many samples halve the nodes, which
    bounds the values that a worker holds.
    """
    nodes, samples, width = FULL_TILE_NODES, FULL_TILE_SAMPLES, WIDEST_FULL_TILE
    while n_features > width and nodes > SMALLEST_TILE_NODES:
        nodes, samples, width = nodes // 2, samples // 2, width * 2
    length = LONGEST_FULL_TILE
    while n_samples > length and nodes > FEWEST_TILE_NODES_FOR_MANY_SAMPLES:
        nodes, length = nodes // 2, length * 2
    return TileShape(nodes, samples)


def projection_in_use(requested: str, n_features: int) -> str:
    """The projection that samples of so many features get: Gaussian weights if they are too few for others."""
    return requested if n_features >= FEWEST_STRUCTURED_FEATURES else "gaussian"


def transform_length(n_features: int) -> int:
    """Nodes of one structured block, the length of its transforms: a power of two, at least 256."""
    return max(SHORTEST_TRANSFORM, 1 << (n_features - 1).bit_length())


def columns_per_transform(length: int) -> int:
    """Samples that are transformed together: few of them if they are long, so that they stay in the CPU cache."""
    return max(LANES, min(MOST_COLUMNS_PER_TRANSFORM, FLOATS_PER_TRANSFORM // length))


def structured_tile(n_features: int) -> TileShape:
    """The tile of a structured projection: one block of nodes, and fewer samples the more features they have."""
    samples = FULL_TILE_SAMPLES
    while samples > LANES and 4 * samples * n_features > BYTES_PER_READ:
        samples = samples // 2 // LANES * LANES
    return TileShape(transform_length(n_features), samples)


def padded_length(total: int, start: int = 0, most: int | None = None) -> int:
    """Rows of the tile that begins at ``start``: ``most``, or the remainder rounded up to a multiple of LANES.

    The result depends on ``total`` only, so the shorter last tile is the same for every block size.
    """
    rest = -(-(total - start) // LANES) * LANES
    return rest if most is None else min(most, rest)


def rows_per_read(n_features: int) -> int:
    """Samples per read: whole tiles of about 16 MiB as float32, whatever the chunks of the data."""
    samples = tile_shape(n_features).samples
    return samples * max(1, BYTES_PER_READ // (4 * n_features * samples))


def rows_per_piece(n_features: int, itemsize: int) -> int:
    """Samples of a piece that stays in the CPU cache: whole tiles of scoring, about 2 MiB."""
    samples = tile_shape(n_features).samples // 2
    return samples * max(1, BYTES_PER_PIECE // (itemsize * n_features * samples))


def row_ranges(n_rows: int, per_range: int) -> Iterator[tuple[int, int]]:
    """Consecutive (start, stop) ranges that cover ``n_rows`` rows."""
    for start in range(0, n_rows, per_range):
        yield start, min(start + per_range, n_rows)


def format_bytes(count: float) -> str:
    """A byte count as text, such as 3.1 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def facts_as_text(facts: Mapping[str, object]) -> str:
    """Facts of a plan as lines of text, one for each that is known."""
    lines = []
    for name, value in facts.items():
        if value is None:
            continue
        shown = str(value)
        if isinstance(value, int):
            shown = format_bytes(value) if name.startswith("bytes") else f"{value:,}"
        lines.append(f"{name.replace('_', ' '):26}{shown}")
    return "\n".join(lines)


def packed_tile(n_nodes: int, tile: TileShape) -> TileShape:
    """The product shape for the selected nodes during a fit: all nodes in one tile."""
    return TileShape(padded_length(n_nodes), tile.samples)


def scoring_tile(n_nodes: int, n_features: int) -> TileShape:
    """The product shape for scoring: half the samples of a fit's tile, which then fit into the CPU cache."""
    return TileShape(-(-n_nodes // SCORE_LANES) * SCORE_LANES, tile_shape(n_features).samples // 2)


def rows_per_step(n_features: int, n_used: int) -> int:
    """Samples per density lookup at ``n_used`` nodes: whole tiles, enough to outweigh reading the tables."""
    per_tile = scoring_tile(n_used, n_features).samples
    return per_tile * max(1, min(MOST_ROWS_PER_STEP, LOOKUPS_PER_STEP // n_used) // per_tile)


def bins_per_count(n_columns: int, n_classes: int) -> int:
    """Bins of each column whose values are counted by their next bits in one pass over columns that are not sorted."""
    return max(1, BYTES_PER_COUNT // (n_columns * n_classes * BYTES_PER_DIGIT))


def staged_rows_per_piece(rows_per_range: int, row_bytes: int) -> int:
    """Samples of some columns that are read at a time from copies in ranges: whole ranges, about 16 MiB."""
    return rows_per_range * max(1, BYTES_PER_READ // (rows_per_range * row_bytes))
