"""How a fit is cut into blocks, tiles, chunks and passes, and what that takes: integer arithmetic, no arrays."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from itertools import pairwise
from math import isqrt

from fxdask.planning.machine import Resources
from fxdask.sizes import (
    LANES,
    MIB,
    NodeBlock,
    TileShape,
    format_bytes,
    padded_length,
    row_ranges,
    rows_per_read,
    tile_shape,
)

__all__ = ["BRACKET_SLACK", "FitPlan", "FitSize", "SampleFacts"]

BYTES_PER_PROJECTION = 8 * MIB
LARGEST_PREPARED_COPY = 64 * MIB
PROBE_BYTES_IN_STORE = 128 * MIB
PROBE_BYTES_IN_MEMORY = 32 * MIB
MOST_PROBES = 32_768
FEWEST_PROBES = 4_096
SMALL_FILES = 50  # metadata, and arrays of one small chunk
BYTES_LOST_PER_FILE = 4096  # file systems give whole pages
STATISTICS_SCRATCH = 20 * MIB
BYTES_PER_TABLE = 2**17  # of a density without far outliers, which can take up to 2 MiB
STREAMING_SCRATCH = 8 * MIB
BRACKET_SLACK = 5.0
"""Standard deviations on each side of a sampled quantile: one bracket in a million misses."""


@dataclass(frozen=True, kw_only=True)
class SampleFacts:
    """What a plan must know of the samples besides their shape."""

    itemsize: int = 4
    in_memory: bool = True
    """Whether tasks find the samples in their process's memory and read nothing."""
    read_bytes: int = 0
    """Memory that one read takes, where its chunks are larger than itself."""
    widened: bool = False
    """Whether preprocessing a sample takes float64 copies."""
    probes_in_memory: bool = True
    """Whether probed samples are kept in every process, because there is no store."""


@dataclass(frozen=True, kw_only=True)
class FitSize:
    """How large a fit is, however it is cut."""

    n_nodes: int
    n_features: int
    class_counts: tuple[int, ...]
    """Training samples of each class."""
    n_selected: int
    """Nodes kept per class."""
    kept: tuple[str, ...] = ()
    """Arrays of all nodes that the store keeps."""
    n_tables: int = 0
    """Densities that labelling looks up; 0 means those of the selected nodes, each for its own class."""

    @property
    def size(self) -> FitSize:
        """The size alone, without the plan that may have been made for it."""
        return FitSize(**{field.name: getattr(self, field.name) for field in fields(FitSize)})

    @property
    def n_samples(self) -> int:
        """All training samples."""
        return sum(self.class_counts)

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.class_counts)


@dataclass(frozen=True, kw_only=True)
class FitPlan(FitSize):
    """Everything about one fit that can be known before any sample is read.

    ``print(plan)`` shows it for people; :meth:`facts` gives the same as numbers.

    Examples
    --------
    >>> from fxdask.planning.fit_plan import FitSize
    >>> from fxdask.planning.fit_search import plan_fit
    >>> plan = plan_fit(FitSize(n_nodes=10_000, n_features=784, class_counts=(6_000, 6_000), n_selected=10))
    >>> plan.n_blocks, plan.block(0).n_nodes, plan.is_streamed
    (27, 384, False)
    """

    nodes_per_block: int
    nodes_per_pass: int = 0
    samples_per_chunk: int = 0
    """How many samples' values are held at a time; 0 means those of all samples."""
    samples: SampleFacts = SampleFacts()
    resources: Resources | None = None
    tile: TileShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", tile_shape(self.n_features, self.n_samples))
        if not self.nodes_per_pass:
            object.__setattr__(self, "nodes_per_pass", self.nodes_per_block)

    @property
    def n_blocks(self) -> int:
        """How many node blocks, so tasks, the fit has."""
        return -(-self.n_nodes // self.nodes_per_block)

    @property
    def samples_per_read(self) -> int:
        """How many samples a task reads at a time."""
        return min(self.n_samples, rows_per_read(self.n_features))

    def samples_per_projection(self, n_selected: int) -> int:
        """How many samples a task projects at a time onto the selected nodes: whole tiles, and a bounded result."""
        tiles = max(1, BYTES_PER_PROJECTION // (4 * max(1, n_selected) * self.tile.samples))
        return min(rows_per_read(self.n_features), tiles * self.tile.samples)

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
            FEWEST_PROBES,
            min(MOST_PROBES, most_bytes // (self.samples.itemsize * self.n_features), self.n_samples // 8),
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
        return not self.is_streamed and 4 * self.n_samples * self.n_features <= LARGEST_PREPARED_COPY

    # What it takes

    @property
    def sample_bytes(self) -> int:
        """Size of the raw samples."""
        return self.n_samples * self.n_features * self.samples.itemsize

    @property
    def task_bytes(self) -> int:
        """Upper estimate of the memory of one task beyond the baseline of its process."""
        rows = -(-self.nodes_per_block // self.tile.nodes) * self.tile.nodes + self._misaligned_rows
        return self._reading_bytes + 16 * self.nodes_per_block * self.n_features + self._values_bytes(rows)

    @property
    def _misaligned_rows(self) -> int:
        return self.tile.nodes if self.nodes_per_block % self.tile.nodes else 0

    @property
    def _reading_bytes(self) -> int:
        """The tile that is prepared, what is being worked on and what is being read."""
        prepared = self.tile.samples * self.n_features * (48 if self.samples.widened else 8)
        if self.keeps_prepared:
            prepared += 4 * self.n_samples * self.n_features
        if self.samples.probes_in_memory:
            prepared += self._probe_bytes
        if self.samples.in_memory:
            return prepared
        one_read = self.samples_per_read * self.n_features * self.samples.itemsize
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
        return sum(self.probe_counts) * self.n_features * self.samples.itemsize

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
        return 4 * selected * (self.n_samples + self.n_features) + 8 * self.n_classes * self.n_nodes + tables

    def store_bytes(self, staged_bytes: int = 0) -> int:
        """Upper estimate of what the finished and the working arrays take on disk."""
        selected = min(self.n_nodes, self.n_selected * self.n_classes)
        per_node = (4 * self.n_features if "weights" in self.kept else 0) + self.n_classes * (8 + 8 + 8 + 8)
        per_selected = 4 * self.n_features + 8 + self.n_classes * (8 + 8)
        projections = 4 * self.n_samples * (selected + (self.n_nodes if "projections" in self.kept else 0))
        files = 4 * self.n_blocks + selected + SMALL_FILES
        data = self.n_nodes * per_node + selected * per_selected + projections + 4 * self.n_samples
        return data + 16 * self.n_features + files * BYTES_LOST_PER_FILE + staged_bytes + self._probe_bytes

    def facts(self) -> dict[str, int | float | str | None]:
        """The plan as numbers."""
        return {
            "nodes": self.n_nodes,
            "samples": self.n_samples,
            "inputs": self.n_features,
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
