"""How a fit is split into blocks, chunks and passes, and the memory, reads and disk space that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from math import isqrt

from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import COMPILER_BYTES, Resources
from fxdask.planning.prediction import Prediction
from fxdask.sizes import (
    BYTES_PER_SORTED_GROUP,
    LANES,
    MIB,
    NodeBlock,
    TileShape,
    columns_per_transform,
    facts_as_text,
    padded_length,
    row_ranges,
    rows_per_read,
)

__all__ = ["BINS_PER_BRACKET", "BRACKET_SLACK", "FitPlan"]

BYTES_PER_PROJECTION = 8 * MIB
LARGEST_PREPROCESSED_COPY = 64 * MIB
PROBE_BYTES_IN_STORE = 128 * MIB
PROBE_BYTES_IN_MEMORY = 32 * MIB
MOST_PROBES = 32_768
MOST_PROBES_IF_COUNTED = 16_384  # brackets may be wider then, because a count makes them narrow
FEWEST_PROBES = 4_096
VALUES_PER_PIECE = 2**20
SMALL_FILES = 50  # metadata, and arrays of one small chunk
BYTES_LOST_PER_FILE = 4096  # file systems allocate whole pages
STATISTICS_SCRATCH = 20 * MIB
SORTED_COLUMN_BYTES = 40  # per sample, for the float64 copies that a criterion makes of one column
BYTES_PER_TABLE = 2**17  # of a density without far outliers; with outliers up to 2 MiB
BYTES_PER_SUMS = 2**17  # of one density, from which its table is made
MOST_PICKED = 4096  # training samples whose values a model with tables keeps, for figures
STREAMING_SCRATCH = 8 * MIB
BRACKET_SLACK = 5.0
"""Half width of a bracket in standard deviations of a sampled quantile; one bracket in a million misses."""
BINS_PER_BRACKET = 512
"""Bins in which a fit counts the values of each bracket, if it cannot keep all of them."""
N_BRACKETS = 5
BYTES_PER_BIN = 16  # a count, the lowest and the highest value
NARROWED_BY = 128  # how many times fewer values are inside brackets after they were counted: 20 bins of all are left
FEWEST_KEPT, MOST_KEPT = 2**12, 2**14  # values of a node and class, after brackets were counted
COUNTING_SCRATCH = 12 * MIB
# The work of one value, in products of a weight and a feature: reading it and preparing it, sorting and counting it.
READING_WORK, ORDERING_WORK = 40, 300
TRANSFORM_WORK = 8  # of one value, for each doubling of the length of a transform
FEWEST_VALUES_TO_COMPILE = 2**25  # fewer are sorted before numba is loaded
MOST_IN_BRACKETS = 0.75  # share of a class's values; beyond it, keeping all is faster and needs little more memory
FLOAT32_IN_MEMORY = SampleFacts()


@dataclass(frozen=True, kw_only=True)
class FitPlan(FitSize):
    """How a fit is split, and what it needs; known before any sample is read.

    ``print(plan)`` shows a table; :meth:`facts` returns the same as numbers.

    Examples
    --------
    >>> from fxdask.planning.fit_search import plan_fit
    >>> from fxdask.planning.fit_size import FitSize
    >>> plan = plan_fit(FitSize(n_nodes=10_000, n_features=784, class_counts=(6_000, 6_000), n_selected=10))
    >>> plan.n_blocks, plan.block(0).n_nodes, plan.is_streamed
    (27, 384, False)
    """

    nodes_per_block: int
    nodes_per_pass: int = 0
    samples_per_chunk: int = 0
    """Samples whose values are in memory at a time; 0 means all samples."""
    is_counted: bool = False
    """Whether a streamed fit counts the values inside brackets first, because it cannot keep all of them."""
    samples: SampleFacts = FLOAT32_IN_MEMORY
    resources: Resources | None = None
    prediction: Prediction | None = None
    """What the fit takes, if it was measured how quick this machine is."""
    selects: bool | None = None
    """Whether values are selected, for a plan that measures how long another one takes; None: as its size asks for."""
    tile: TileShape = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tile", self.tile_shape)
        if not self.nodes_per_pass:
            object.__setattr__(self, "nodes_per_pass", self.nodes_per_block)

    @property
    def n_blocks(self) -> int:
        """Number of node blocks; each is one task."""
        return -(-self.n_nodes // self.nodes_per_block)

    @property
    def samples_per_read(self) -> int:
        """Number of samples per read."""
        return min(self.n_samples, rows_per_read(self.n_features))

    def samples_per_projection(self, n_selected: int) -> int:
        """Samples per task that projects onto the selected nodes: whole tiles, about 8 MiB of values."""
        tiles = max(1, BYTES_PER_PROJECTION // (4 * max(1, n_selected) * self.tile.samples))
        return min(rows_per_read(self.n_features), tiles * self.tile.samples)

    @property
    def tasks_at_a_time(self) -> int:
        """Number of tasks that run at the same time; 1 if the resources are unknown."""
        return self.resources.threads * self.resources.processes if self.resources else 1

    @property
    def passes_per_block(self) -> int:
        """Number of passes over all samples for each block."""
        return -(-self.nodes_per_block // self.nodes_per_pass)

    @property
    def is_streamed(self) -> bool:
        """Whether a task processes its values chunk by chunk, because those of all samples do not fit into memory."""
        return self.samples_per_chunk > 0

    @property
    def selects_values(self) -> bool:
        """Whether order statistics are selected by compiled code: of many values, if there is memory for numba too."""
        if self.selects is not None:
            return self.selects
        if self.is_streamed or self.n_nodes * self.n_samples < FEWEST_VALUES_TO_COMPILE:
            return False
        if self.resources is None:
            return True
        return (self.resources.per_task - self.task_bytes) * self.resources.threads >= COMPILER_BYTES

    @property
    def probe_counts(self) -> tuple[int, ...]:
        """Number of probed samples of each class, from which a streamed fit estimates its brackets."""
        if not self.is_streamed:
            return (0,) * self.n_classes
        most_bytes = PROBE_BYTES_IN_MEMORY if self.samples.probes_in_memory else PROBE_BYTES_IN_STORE
        most = MOST_PROBES_IF_COUNTED if self.is_counted else MOST_PROBES
        in_all = max(
            FEWEST_PROBES,
            min(most, most_bytes // (self.samples.itemsize * self.n_features), self.n_samples // 8),
        )
        fewest = min(256, in_all // self.n_classes + 1)
        return tuple(min(v, max(fewest, in_all * v // self.n_samples)) for v in self.class_counts)

    def block(self, index: int) -> NodeBlock:
        """The node block with this index."""
        start = index * self.nodes_per_block
        return NodeBlock(index, start, min(start + self.nodes_per_block, self.n_nodes))

    @property
    def blocks(self) -> list[NodeBlock]:
        """All node blocks in order."""
        return [self.block(index) for index in range(self.n_blocks)]

    @property
    def class_slices(self) -> list[slice]:
        """The columns of each class in a row of values sorted by class."""
        edges = [0]
        for count in self.class_counts:
            edges.append(edges[-1] + count)
        return [slice(start, stop) for start, stop in pairwise(edges)]

    @property
    def samples_per_piece(self) -> int:
        """Samples that are preprocessed together: a tile, or fewer wide ones, whose copies would take much memory."""
        if not self.is_structured:
            return self.tile.samples
        return min(self.tile.samples, max(1, VALUES_PER_PIECE // self.n_features))

    @property
    def keeps_preprocessed(self) -> bool:
        """Whether a process keeps a preprocessed copy of all samples for all its blocks, because it is small."""
        return not self.is_streamed and 4 * self.n_samples * self.n_features <= LARGEST_PREPROCESSED_COPY

    @property
    def sample_bytes(self) -> int:
        """Size of the raw samples."""
        return self.n_samples * self.n_features * self.samples.itemsize

    @property
    def task_bytes(self) -> int:
        """Upper estimate of the memory of one task, in addition to the baseline of its process."""
        if self.is_structured:
            # Only the nodes of the block are kept of a transform.
            return self.reading_bytes + self._transform_bytes + self._values_bytes(self.nodes_per_block)
        rows = -(-self.nodes_per_block // self.tile.nodes) * self.tile.nodes + self._misaligned_rows
        return self.reading_bytes + 16 * self.nodes_per_block * self.n_features + self._values_bytes(rows)

    @property
    def _transform_bytes(self) -> int:
        """The samples that are transformed together, the signs of all blocks, and the weights if they are kept."""
        length = self.tile.nodes
        blocks = -(-self.nodes_per_block // length) + 1
        kept = 8 * self.nodes_per_block * self.n_features if "weights" in self.kept else 0
        return 4 * length * columns_per_transform(length) * (2 if kept else 1) + 12 * blocks * length + kept

    @property
    def _misaligned_rows(self) -> int:
        return self.tile.nodes if self.nodes_per_block % self.tile.nodes and not self.is_structured else 0

    @property
    def reading_bytes(self) -> int:
        """The preprocessed samples, the range in use and the range that is read ahead."""
        preprocessed = self.tile.samples * self.n_features * (48 if self.samples.widened else 8)
        if self.is_structured:
            in_pieces = self.samples_per_piece * (48 if self.samples.widened else 8)
            preprocessed = self.n_features * (4 * self.tile.samples + in_pieces)
        if self.keeps_preprocessed:
            preprocessed += 4 * self.n_samples * self.n_features
        if self.samples.probes_in_memory:
            preprocessed += self._probe_bytes
        if self.samples.in_memory:
            return preprocessed
        one_read = self.samples_per_read * self.n_features * self.samples.itemsize
        return preprocessed + 2 * one_read + self.samples.read_bytes

    def _values_bytes(self, rows: int) -> int:
        longest = max(self.class_counts)
        if not self.is_streamed:
            values = 4 * rows * (self.n_samples + LANES) + max(STATISTICS_SCRATCH, 16 * longest)
            if self.sorts_columns:
                values += max(BYTES_PER_SORTED_GROUP, 4 * self.n_samples) + SORTED_COLUMN_BYTES * self.n_samples
            return 3 * values if "projections" in self.kept else values
        in_pass = min(rows, self.nodes_per_pass)
        in_product = in_pass
        if not self.is_structured:
            in_product = min(rows, -(-in_pass // self.tile.nodes) * self.tile.nodes + self._misaligned_rows)
        probed, streamed = in_pass * (sum(self.probe_counts) + LANES), in_product * (self.samples_per_chunk + LANES)
        if not self.is_counted:
            return 4 * max(probed, streamed) + 4 * sum(self.kept_counts) * in_pass + STREAMING_SCRATCH
        bins = N_BRACKETS * BINS_PER_BRACKET * BYTES_PER_BIN
        kept = [
            max(4 * kept, bins if kept < count else 0)
            for kept, count in zip(self.kept_counts, self.class_counts, strict=True)
        ]
        return 4 * max(probed, streamed) + sum(kept) * in_pass + COUNTING_SCRATCH

    @property
    def kept_counts(self) -> tuple[int, ...]:
        """Values of each class that a pass keeps of a node: all, or those in the five brackets of a default fit.

        A class has no brackets if they would hold most of its values. The estimate is for nearly normal
        projections. If brackets are counted first, it is a limit that hardly depends on the number of samples.
        """
        if self.is_counted:
            return tuple(min(v, max(FEWEST_KEPT, min(MOST_KEPT, v // BINS_PER_BRACKET))) for v in self.class_counts)
        shares = map(_share_in_brackets, self.probe_counts)
        return tuple(
            count if share >= MOST_IN_BRACKETS else int(count * share)
            for count, share in zip(self.class_counts, shares, strict=True)
        )

    @property
    def scans_per_pass(self) -> int:
        """How often a pass goes over all samples: once, or to count until brackets are narrow and then to keep."""
        scans = 1
        if self.is_counted:
            for count, probes, kept in zip(self.class_counts, self.probe_counts, self.kept_counts, strict=True):
                inside, of_class = int(min(1.0, _share_in_brackets(probes)) * count), 1 + (kept < count)
                while kept < count and inside // NARROWED_BY > kept:
                    inside, of_class = inside // NARROWED_BY, of_class + 1
                scans = max(scans, of_class)
        return scans

    @property
    def pass_bytes(self) -> int:
        """Bytes of the values that one pass may keep."""
        return 4 * sum(self.kept_counts) * self.nodes_per_pass

    @property
    def bytes_read(self) -> int:
        """Bytes of raw samples that the tasks of all blocks read, if no bracket misses."""
        if self.samples.in_memory:
            return 0
        if self.keeps_preprocessed:
            processes = self.resources.processes if self.resources else 1
            return min(self.n_blocks, processes) * self.sample_bytes
        probes = 0 if self.samples.probes_in_memory else self._probe_bytes
        return self.passes * self.sample_bytes + self.passes // self.scans_per_pass * probes

    @property
    def passes(self) -> int:
        """Number of passes over the samples for all blocks, if no bracket misses."""
        in_last_block = -(-self.block(self.n_blocks - 1).n_nodes // self.nodes_per_pass)
        return ((self.n_blocks - 1) * self.passes_per_block + in_last_block) * self.scans_per_pass

    @property
    def work(self) -> int:
        """Estimate of the computation for all blocks, to compare plans of the same fit."""
        read = self.passes * self.n_features * READING_WORK
        per_value = TRANSFORM_WORK * self.tile.nodes.bit_length() if self.is_structured else self.n_features
        projected = int(self.product_passes * self.n_nodes) * per_value
        return self.n_samples * (read + projected + self.n_nodes * self.scans_per_pass * ORDERING_WORK)

    @property
    def bytes_read_besides(self) -> int:
        """Bytes of raw samples that are read before and after the blocks: scan, norms, probe and final projection."""
        return 0 if self.samples.in_memory else (4 if self.is_streamed else 3) * self.sample_bytes

    @property
    def _probe_bytes(self) -> int:
        return sum(self.probe_counts) * self.n_features * self.samples.itemsize

    @property
    def product_passes(self) -> float:
        """Amount of multiplication, where 1 means every node with every sample once.

        A pass over a part of a tile multiplies the whole tile, because its shape affects the rounding.
        """
        per_tile, n_counted = self.tile.nodes, min(self.n_blocks, 1000)
        rows = sum(
            padded_length(self.n_nodes, anchor, per_tile)
            for block in map(self.block, range(n_counted))
            for start, stop in row_ranges(block.n_nodes, self.nodes_per_pass)
            for anchor in range((block.start + start) // per_tile * per_tile, block.start + stop, per_tile)
        )
        repeated = rows / self.block(n_counted - 1).stop
        return max(1.0, repeated) * (self.scans_per_pass + sum(self.probe_counts) / self.n_samples)

    @property
    def model_bytes(self) -> int:
        """Memory of the fitted model: the selected nodes with their density tables, all divergences and importances."""
        selected = min(self.n_nodes, self.n_selected * self.n_classes)
        tables = (self.n_tables or self.n_selected * self.n_classes) * BYTES_PER_TABLE
        per_class = 8 * (self.n_nodes + self.n_features)
        nodes = 4 * selected * (self._samples_kept + self.n_features)
        if self.keeps_tables:
            tables += tables // BYTES_PER_TABLE * BYTES_PER_SUMS
        return nodes + self.n_classes * per_class + tables + self.learned_bytes

    @property
    def _samples_kept(self) -> int:
        """Samples whose values at the selected nodes the model keeps."""
        return min(self.n_samples, MOST_PICKED + 2 * self.n_classes) if self.keeps_tables else self.n_samples

    def store_bytes(self, copied_bytes: int = 0) -> int:
        """Upper estimate of the disk space of all arrays, the temporary ones included."""
        selected = min(self.n_nodes, self.n_selected * self.n_classes)
        per_node = (4 * self.n_features if "weights" in self.kept else 0) + self.n_classes * (8 + 8 + 8 + 8)
        per_selected = 4 * self.n_features + 8 + self.n_classes * (8 + 8 + 8 + 8)
        projections = 4 * self._samples_kept * selected
        if "projections" in self.kept:
            projections += 4 * self.n_samples * self.n_nodes
        if self.keeps_tables:
            projections += (self.n_tables or self.n_selected * self.n_classes) * BYTES_PER_SUMS + self.n_samples
        files = 4 * self.n_blocks + selected + SMALL_FILES
        data = self.n_nodes * per_node + selected * per_selected + projections + 4 * self.n_samples
        besides = files * BYTES_LOST_PER_FILE + copied_bytes + self._probe_bytes + self.learned_bytes
        return data + (16 + 8 * self.n_classes) * self.n_features + besides

    def facts(self) -> dict[str, int | float | str | None]:
        """The plan as numbers."""
        return {
            "projection": self.projection,
            "nodes": self.n_nodes,
            "samples": self.n_samples,
            "features": self.n_features,
            "classes": self.n_classes,
            "blocks": self.n_blocks,
            "nodes_per_block": self.nodes_per_block,
            "nodes_per_pass": self.nodes_per_pass,
            "samples_per_read": self.samples_per_read,
            "values_held": "of a chunk of samples" if self.is_streamed else "of all samples",
            "values_in_brackets": ("counted, then kept" if self.is_counted else "kept") if self.is_streamed else None,
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
            **(self.prediction.facts() if self.prediction else {}),
        }

    def __str__(self) -> str:
        return facts_as_text(self.facts())


def _share_in_brackets(probes: int) -> float:
    """The share of a class's values that the brackets of a default fit hold, estimated from so many probes.

    A bracket reaches BRACKET_SLACK standard deviations to each side, each at most 1/2 / sqrt(probes); the
    brackets of the quartiles nearly coincide with those of median -+ MAD. The last term is the error of counts
    of few probes.
    """
    return 3.6 * BRACKET_SLACK / max(1, isqrt(probes)) + 64 / max(1, probes)
