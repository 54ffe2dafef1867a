"""How a fit is cut into blocks, tiles, chunks and passes, and what that takes: integer arithmetic, no arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import isqrt

__all__ = [
    "BRACKET_SLACK",
    "FULL_TILE_NODES",
    "LANES",
    "MIB",
    "SHARE_OF_LIMIT",
    "FitPlan",
    "NodeBlock",
    "Resources",
    "SampleFacts",
    "TileShape",
    "format_bytes",
    "padded_length",
    "row_ranges",
    "rows_per_read",
    "tile_shape",
]

MIB = 2**20
BYTES_PER_READ = 16 * MIB
BYTES_PER_PROJECTION = 8 * MIB
LARGEST_PREPARED_COPY = 64 * MIB
PROBE_BYTES_IN_STORE = 128 * MIB
PROBE_BYTES_IN_MEMORY = 32 * MIB
MOST_PROBES = 32_768
FEWEST_PROBES = 4_096
FULL_TILE_NODES = 384
FULL_TILE_SAMPLES = 768
WIDEST_FULL_TILE = 8192
LONGEST_FULL_TILE = 2**18
SMALLEST_TILE_NODES = 48
FEWEST_TILE_NODES_FOR_MANY_SAMPLES = 96
LANES = 16
SMALL_FILES = 50  # metadata, and arrays of one small chunk
BYTES_LOST_PER_FILE = 4096  # file systems give whole pages
SHARE_OF_LIMIT = 0.6  # Dask spills beyond that
STATISTICS_SCRATCH = 20 * MIB
BYTES_PER_TABLE = 2**17  # of a density without far outliers, which can take up to 2 MiB
STREAMING_SCRATCH = 8 * MIB
BRACKET_SLACK = 5.0
"""Standard deviations on each side of a sampled quantile: one bracket in a million misses."""


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
class Resources:
    """What the processes that run the tasks have: the smallest limit, the largest baseline, their threads."""

    limit: int
    baseline: int
    threads: int
    processes: int = 1
    with_caller: bool = False
    """Whether the tasks run in the process that will hold the fitted model."""

    @property
    def per_task(self) -> int:
        """Bytes that one task may take: as many tasks run at a time as a process has threads."""
        return int(SHARE_OF_LIMIT * self.limit - self.baseline) // self.threads


@dataclass(frozen=True)
class SampleFacts:
    """What a plan must know of the samples besides their shape."""

    itemsize: int = 4
    in_memory: bool = True
    """Whether tasks find the samples in their process's memory and read nothing."""
    read_bytes: int = 0
    """Memory that one read takes, where its chunks are larger than itself."""
    widened: bool = False
    """Whether preparing a sample goes by way of float64."""
    probes_in_memory: bool = True
    """Whether probed samples are kept in every process, for want of a store."""


@dataclass(frozen=True)
class FitPlan:
    """Everything about one fit that can be known before any sample is read.

    ``print(plan)`` shows it for people; :meth:`facts` gives the same as numbers.

    Examples
    --------
    >>> from fxdask.planning import plan_fit
    >>> plan = plan_fit(n_nodes=10_000, n_inputs=784, class_counts=(6_000, 6_000), n_selected=10)
    >>> plan.n_blocks, plan.block(0).n_nodes, plan.is_streamed
    (27, 384, False)
    """

    n_nodes: int
    n_inputs: int
    class_counts: tuple[int, ...]
    n_selected: int
    nodes_per_block: int
    nodes_per_pass: int = 0
    samples_per_chunk: int = 0
    """How many samples' values are held at a time; 0 means those of all samples."""
    samples: SampleFacts = SampleFacts()
    resources: Resources | None = None
    kept: tuple[str, ...] = ()
    n_tables: int = 0
    """Densities that labelling looks up; 0 means those of the selected nodes, each for its own class."""
    tile: TileShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", tile_shape(self.n_inputs, self.n_samples))
        if not self.nodes_per_pass:
            object.__setattr__(self, "nodes_per_pass", self.nodes_per_block)

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

    @property
    def samples_per_read(self) -> int:
        """How many samples a task reads at a time."""
        return min(self.n_samples, rows_per_read(self.n_inputs))

    def samples_per_projection(self, n_selected: int) -> int:
        """How many samples a task projects at a time onto the selected nodes: whole tiles, and a bounded result."""
        tiles = max(1, BYTES_PER_PROJECTION // (4 * max(1, n_selected) * self.tile.samples))
        return min(rows_per_read(self.n_inputs), tiles * self.tile.samples)

    @property
    def tasks_at_a_time(self) -> int:
        """How many tasks run together, as far as that is known."""
        return self.resources.threads * self.resources.processes if self.resources else 1

    @property
    def passes_per_block(self) -> int:
        """How often a block's task goes through all samples."""
        return -(-self.nodes_per_block // self.nodes_per_pass)

    @property
    def is_streamed(self) -> bool:
        """Whether values are settled chunk by chunk instead of being held for all samples at once."""
        return self.samples_per_chunk > 0

    @property
    def probe_counts(self) -> tuple[int, ...]:
        """Samples of each class that are looked at beforehand, to bracket quantiles, if values are streamed."""
        if not self.is_streamed:
            return (0,) * self.n_classes
        most_bytes = PROBE_BYTES_IN_MEMORY if self.samples.probes_in_memory else PROBE_BYTES_IN_STORE
        in_all = max(
            FEWEST_PROBES, min(MOST_PROBES, most_bytes // (self.samples.itemsize * self.n_inputs), self.n_samples // 8)
        )
        fewest = min(256, in_all // self.n_classes + 1)
        return tuple(min(v, max(fewest, in_all * v // self.n_samples)) for v in self.class_counts)

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
        return not self.is_streamed and 4 * self.n_samples * self.n_inputs <= LARGEST_PREPARED_COPY

    # What it takes

    @property
    def sample_bytes(self) -> int:
        """Size of the raw samples."""
        return self.n_samples * self.n_inputs * self.samples.itemsize

    @property
    def task_bytes(self) -> int:
        """Upper estimate of the memory of one task beyond the baseline of its process."""
        rows = -(-self.nodes_per_block // self.tile.nodes) * self.tile.nodes + self._misaligned_rows
        return self._reading_bytes + 16 * self.nodes_per_block * self.n_inputs + self._values_bytes(rows)

    @property
    def _misaligned_rows(self) -> int:
        return self.tile.nodes if self.nodes_per_block % self.tile.nodes else 0

    @property
    def _reading_bytes(self) -> int:
        """The tile that is prepared, what is being worked on and what is being read."""
        prepared = self.tile.samples * self.n_inputs * (48 if self.samples.widened else 8)
        if self.keeps_prepared:
            prepared += 4 * self.n_samples * self.n_inputs
        if self.samples.probes_in_memory:
            prepared += self._probe_bytes
        if self.samples.in_memory:
            return prepared
        one_read = self.samples_per_read * self.n_inputs * self.samples.itemsize
        return prepared + 2 * one_read + self.samples.read_bytes

    def _values_bytes(self, rows: int) -> int:
        longest = max(self.class_counts)
        if not self.is_streamed:
            values = 4 * rows * (self.n_samples + LANES) + max(STATISTICS_SCRATCH, 16 * longest)
            return 3 * values if "projections" in self.kept else values
        in_pass = min(rows, self.nodes_per_pass)
        in_product = min(rows, -(-in_pass // self.tile.nodes) * self.tile.nodes + self._misaligned_rows)
        probed, streamed = in_pass * (sum(self.probe_counts) + LANES), in_product * (self.samples_per_chunk + LANES)
        return 4 * max(probed, streamed) + self.kept_bytes_per_node * in_pass + STREAMING_SCRATCH

    @property
    def kept_bytes_per_node(self) -> int:
        """Values that lie in a bracket, of the five that a default fit needs, for near-normal projections."""
        in_brackets = 0
        for count, probes in zip(self.class_counts, self.probe_counts, strict=True):
            # A bracket is `slack` standard deviations of a share, at most 1/2 / sqrt(probes), to each side;
            # the quartiles' and those of median -+ MAD all but coincide.
            share = 3.6 * BRACKET_SLACK / max(1, isqrt(probes))
            in_brackets += count if share >= 1 else int(count * share)
        return 4 * in_brackets

    @property
    def pass_bytes(self) -> int:
        """Bytes of the values that one pass may keep."""
        return self.kept_bytes_per_node * self.nodes_per_pass

    @property
    def bytes_read(self) -> int:
        """Bytes of raw samples that the blocks' tasks read, if no bracket misses."""
        if self.samples.in_memory:
            return 0
        if self.keeps_prepared:
            processes = self.resources.processes if self.resources else 1
            return min(self.n_blocks, processes) * self.sample_bytes
        probes = 0 if self.samples.probes_in_memory else self._probe_bytes
        return self.passes * (self.sample_bytes + probes)

    @property
    def passes(self) -> int:
        """How often all blocks together go through the samples, for near-normal projections and no missed bracket."""
        in_last_block = -(-self.block(self.n_blocks - 1).n_nodes // self.nodes_per_pass)
        return (self.n_blocks - 1) * self.passes_per_block + in_last_block

    @property
    def bytes_read_besides(self) -> int:
        """Bytes of raw samples that are read before and after: to survey them, to probe, to project the selected."""
        return 0 if self.samples.in_memory else (3 if self.is_streamed else 2) * self.sample_bytes

    @property
    def _probe_bytes(self) -> int:
        return sum(self.probe_counts) * self.n_inputs * self.samples.itemsize

    @property
    def product_passes(self) -> float:
        """Products, as a multiple of every node with every sample once.

        A pass over a part of a product tile multiplies the whole tile, for the sake of its last bits.
        """
        per_tile, looked_at = self.tile.nodes, min(self.n_blocks, 1000)
        rows = sum(
            padded_length(self.n_nodes, anchor, per_tile)
            for block in map(self.block, range(looked_at))
            for start, stop in row_ranges(block.n_nodes, self.nodes_per_pass)
            for anchor in range((block.start + start) // per_tile * per_tile, block.start + stop, per_tile)
        )
        repeated = rows / self.block(looked_at - 1).stop
        return max(1.0, repeated) * (1 + sum(self.probe_counts) / self.n_samples)

    @property
    def model_bytes(self) -> int:
        """What the fitted model holds in the caller's memory: the selected nodes' weights, projections and tables."""
        selected = min(self.n_nodes, self.n_selected * self.n_classes)
        tables = (self.n_tables or self.n_selected * self.n_classes) * BYTES_PER_TABLE
        return 4 * selected * (self.n_samples + self.n_inputs) + 8 * self.n_classes * self.n_nodes + tables

    def store_bytes(self, staged_bytes: int = 0) -> int:
        """Upper estimate of what the finished and the working arrays take on disk."""
        selected = min(self.n_nodes, self.n_selected * self.n_classes)
        per_node = (4 * self.n_inputs if "weights" in self.kept else 0) + self.n_classes * (8 + 8 + 8 + 8)
        per_selected = 4 * self.n_inputs + 8 + self.n_classes * (8 + 8)
        projections = 4 * self.n_samples * (selected + (self.n_nodes if "projections" in self.kept else 0))
        files = 4 * self.n_blocks + selected + SMALL_FILES
        data = self.n_nodes * per_node + selected * per_selected + projections + 4 * self.n_samples
        return data + 16 * self.n_inputs + files * BYTES_LOST_PER_FILE + staged_bytes + self._probe_bytes

    def facts(self) -> dict[str, int | float | str | None]:
        """The plan as numbers."""
        return {
            "nodes": self.n_nodes,
            "samples": self.n_samples,
            "inputs": self.n_inputs,
            "classes": self.n_classes,
            "blocks": self.n_blocks,
            "nodes_per_block": self.nodes_per_block,
            "nodes_per_pass": self.nodes_per_pass,
            "samples_per_read": self.samples_per_read,
            "values_held": "of a chunk of samples" if self.is_streamed else "of all samples",
            "samples_per_chunk": self.samples_per_chunk or self.n_samples,
            "samples_probed": sum(self.probe_counts),
            "bytes_per_task": self.task_bytes,
            "bytes_allowed_per_task": self.resources.per_task if self.resources else None,
            "tasks_at_a_time": self.tasks_at_a_time,
            "passes": self.passes,
            "bytes_read": self.bytes_read,
            "bytes_read_besides": self.bytes_read_besides,
            "bytes_written": self.store_bytes(),
            "bytes_of_model_in_memory": self.model_bytes,
            "product_passes": round(self.product_passes, 3),
        }

    def __str__(self) -> str:
        lines = []
        for name, value in self.facts().items():
            if value is None:
                continue
            shown = str(value)
            if isinstance(value, int):
                shown = format_bytes(value) if name.startswith("bytes") else f"{value:,}"
            lines.append(f"{name.replace('_', ' '):26}{shown}")
        return "\n".join(lines)


def tile_shape(n_inputs: int, n_samples: int = 0) -> TileShape:
    """The shape of every product of this size.

    Halved while the operands would be too wide; with fewer nodes where there are so many samples
    that a worker could not hold the values of more.
    """
    nodes, samples, width = FULL_TILE_NODES, FULL_TILE_SAMPLES, WIDEST_FULL_TILE
    while n_inputs > width and nodes > SMALLEST_TILE_NODES:
        nodes, samples, width = nodes // 2, samples // 2, width * 2
    length = LONGEST_FULL_TILE
    while n_samples > length and nodes > FEWEST_TILE_NODES_FOR_MANY_SAMPLES:
        nodes, length = nodes // 2, length * 2
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


def format_bytes(count: float) -> str:
    """A byte count for people: 3.1 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
