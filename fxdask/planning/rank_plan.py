"""How a ranking of features is split into blocks of columns and ranges of rows, and the memory that it needs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fxdask.errors import MemoryPlanError
from fxdask.planning.machine import SHARE_OF_LIMIT, Resources
from fxdask.sizes import (
    BYTES_PER_AREA,
    BYTES_PER_DIGIT,
    BYTES_PER_RANKED_GROUP,
    MIB,
    VALUES_PER_COUNT,
    NodeBlock,
    bins_per_count,
    facts_as_text,
    format_bytes,
    staged_rows_per_piece,
)

__all__ = ["RankPlan", "RankSize", "ReliefPlan", "RowFacts", "plan_ranking", "plan_relief", "with_blocks_of"]

BYTES_PER_BLOCK = 64 * MIB
# Every block opens all row groups of Parquet, so blocks are fewer there.
BYTES_PER_DECODED_BLOCK = 128 * MIB
BYTES_PER_RANGE = 64 * MIB
FEWEST_FEATURES = 16
BLOCKS_PER_THREAD = 4
CRITERION_BYTES = 40  # per sample, for the float64 copies that a criterion makes of one column
SCRATCH_BYTES = 16 * MIB
COUNTED_BYTES = 80  # per value that is counted at a time: as it was read, as float32, its key, its place in its class
PREFIX_BYTES = 16 * MIB  # of the table that finds the counts of a value
MOST_POSITIONS = 8  # order statistics of one class and column
COPIES_OF_BINS = 3  # the counts of bins, and what is kept of their parts
COUNTED_PASSES, WIDE_PASSES = 7, 8
PART_BYTES = 128  # per value of a part of a sorted column: as read, sorted, with noise, with all classes together
FEWEST_PART_VALUES, MOST_PART_VALUES = 2**15, 2**24
PARTED_CHUNK = MIB  # of copies by columns, each of which is read again for every part of a feature
FEWEST_STAGED_ROWS = 2**12
SMALL_FILES = 30
BYTES_PER_FILE = 4096
FEWEST_ROWS = 2**10
DISTANCE_BYTES = 16 * MIB  # of the scaled rows that one step compares with all anchors
BYTES_PER_NEIGHBOUR = 2 * 3 * 16  # distance and row, of what was found, of a copy, and twice while parts are merged


@dataclass(frozen=True, kw_only=True)
class RankSize:
    """The size of a ranking, independent of how it is split."""

    n_samples: int
    n_features: int
    itemsize: int = 4
    gathered_itemsize: int = 4
    """Bytes of a value while a whole column is gathered: 8 for types that float32 does not represent."""
    sorts_columns: bool = True
    n_results: int = 1
    """Numbers that are kept of every feature."""
    whole_columns: bool = True
    """Whether features are measured one by one; else ranges of rows are."""
    n_classes: int = 2
    sorting: tuple[str, ...] = ()
    """What needs the sorted values of a feature, in parts if they do not fit into memory; all else can be counted."""
    whole: tuple[str, ...] = ()
    """What needs all values of a feature in memory at once, as users call it."""
    piece_rows: int = 0
    """Rows of the largest row group, if columns are read from Parquet."""


@dataclass(frozen=True, kw_only=True)
class RowFacts:
    """How the rows of samples are read that are copied into column chunks; of other samples nothing is copied."""

    rows_per_chunk: int = 0
    """Rows of a chunk of X; 0 if any row range can be read efficiently."""
    copies: int = 1
    """Copies of a range in memory while it is read."""
    chunk_bytes: int = 0
    """Memory of the largest chunk or row group, which is decoded whole before a range is cut from it."""


@dataclass(frozen=True, kw_only=True)
class RankPlan:
    """Blocks of features, each one task; and ranges of rows, each copied by one task, if the samples are row by row.

    Examples
    --------
    >>> from fxdask.planning.rank_plan import RankSize, RowFacts, plan_ranking
    >>> size = RankSize(n_samples=2_000_000, n_features=500)
    >>> plan = plan_ranking(size, RowFacts(rows_per_chunk=20_000))
    >>> plan.features_per_block, plan.n_blocks, plan.rows_per_range, plan.n_ranges
    (8, 63, 20000, 100)
    """

    size: RankSize
    features_per_block: int
    rows: RowFacts | None = None
    rows_per_range: int = 0
    """0 if columns are read where they are."""
    resources: Resources | None = None
    is_counted: bool = False
    """Whether values are counted in several passes, because one feature does not fit into memory."""

    @property
    def n_blocks(self) -> int:
        """Number of blocks of features."""
        return -(-self.size.n_features // self.features_per_block)

    @property
    def n_ranges(self) -> int:
        """Number of row ranges that are copied; 0 if columns are read where they are."""
        return -(-self.size.n_samples // self.rows_per_range) if self.rows_per_range else 0

    def block(self, index: int) -> NodeBlock:
        """The features of one task."""
        start = index * self.features_per_block
        return NodeBlock(index, start, min(start + self.features_per_block, self.size.n_features))

    def block_of(self, feature: int) -> NodeBlock:
        """The features of the task that measures this one."""
        return self.block(feature // self.features_per_block)

    def row_range(self, index: int) -> tuple[int, int]:
        """First row and end of a range."""
        start = index * self.rows_per_range
        return start, min(start + self.rows_per_range, self.size.n_samples)

    @property
    def block_bytes(self) -> int:
        """Upper estimate of the memory of a task that measures one block; 0 if ranges of rows are measured."""
        if not self.size.whole_columns:
            return 0
        if self.is_counted:
            return self._counted_bytes
        size, n = self.size, self.size.n_samples
        wide = size.gathered_itemsize - 4
        values = self.features_per_block * n * (4 + (wide and size.gathered_itemsize))
        group = max(BYTES_PER_RANKED_GROUP, 4 * n)
        criteria = CRITERION_BYTES * n if size.sorts_columns else 0
        return values + self._piece_bytes + group + criteria + SCRATCH_BYTES

    @property
    def _piece_rows(self) -> int:
        """Samples that are read at a time; 0 if they are in memory."""
        if not self.rows_per_range:
            return self.size.piece_rows
        row_bytes = self.features_per_block * self.size.itemsize
        return min(self.size.n_samples, staged_rows_per_piece(self.rows_per_range, row_bytes))

    @property
    def _piece_bytes(self) -> int:
        """Memory of the values that are read at a time."""
        return 2 * self._piece_rows * self.features_per_block * self.size.itemsize

    @property
    def _counted_bytes(self) -> int:
        """Memory of a task that counts: it does not grow with the number of samples."""
        size, n_features = self.size, self.features_per_block
        tables = MOST_POSITIONS + COPIES_OF_BINS * bins_per_count(n_features, size.n_classes)
        tables *= n_features * size.n_classes * BYTES_PER_DIGIT
        codes = 2 * self._piece_rows * (1 if size.n_classes <= 2**8 else 4)
        values = min(VALUES_PER_COUNT, n_features * size.n_samples) * COUNTED_BYTES
        counting = self._piece_bytes + codes + values + tables + PREFIX_BYTES + SCRATCH_BYTES
        return counting + (self._part_bytes(self.values_per_part) if self.is_parted else 0)

    @property
    def is_parted(self) -> bool:
        """Whether sorted features are read in parts, because they do not fit into memory."""
        return self.is_counted and bool(self.size.sorting)

    @property
    def values_per_part(self) -> int:
        """Values between two cuts of a sorted feature: as many as fit into memory; 0 if there are no parts."""
        if not self.is_parted:
            return 0
        per_part = max(1, min(MOST_PART_VALUES, self.size.n_samples))
        if self.resources is not None:
            left = self.resources.per_task - replace(self, size=replace(self.size, sorting=()))._counted_bytes
            while per_part > FEWEST_PART_VALUES and self._part_bytes(per_part) > left:
                per_part = max(FEWEST_PART_VALUES, per_part // 2)
        return per_part

    def _part_bytes(self, per_part: int) -> int:
        """Memory of the parts of a sorted feature, of the counts that find the cuts, and of densities."""
        n_cuts = self.features_per_block * (self.size.n_samples // per_part)
        return PART_BYTES * per_part + 2 * BYTES_PER_DIGIT * n_cuts + BYTES_PER_AREA

    @property
    def n_passes(self) -> int:
        """How often a block reads its columns; counts of a few features may take further passes."""
        if not self.is_counted:
            return 1
        n_parts = self.features_per_block * -(-self.size.n_samples // self.values_per_part) if self.is_parted else 0
        return COUNTED_PASSES + (WIDE_PASSES if self.size.gathered_itemsize > 4 else 0) + n_parts

    @property
    def range_bytes(self) -> int:
        """Upper estimate of the memory of a task that copies one range of rows."""
        if self.rows is None or not self.rows_per_range:
            return 0
        one_copy = self.rows_per_range * self.size.n_features * self.size.itemsize
        return (self.rows.copies + 2) * one_copy + 2 * self.rows.chunk_bytes

    @property
    def staged_bytes(self) -> int:
        """Disk space of the column chunks, which are removed at the end."""
        return self.size.n_samples * self.size.n_features * self.size.itemsize if self.rows_per_range else 0

    @property
    def store_bytes(self) -> int:
        """Upper estimate of the disk space of the store, with the column chunks."""
        files = SMALL_FILES + 2 * self.n_blocks + self.n_ranges * (1 + self.n_blocks)
        return self.staged_bytes + 8 * self.size.n_results * self.size.n_features + files * BYTES_PER_FILE

    def facts(self) -> dict[str, int | str | None]:
        """The plan as numbers and words."""
        return {
            "features": self.size.n_features,
            "samples": self.size.n_samples,
            "blocks": self.n_blocks,
            "features_per_block": self.features_per_block,
            "columns": self._way_of_measuring,
            "passes_at_least": self.n_passes,
            "values_per_part": self.values_per_part or None,
            "row_ranges_copied": self.n_ranges,
            "rows_per_range": self.rows_per_range,
            "bytes_per_block": self.block_bytes,
            "bytes_per_range": self.range_bytes,
            "bytes_allowed_per_task": self.resources.per_task if self.resources else None,
            "bytes_copied": self.staged_bytes,
        }

    @property
    def _way_of_measuring(self) -> str:
        if not self.size.whole_columns:
            return "summed by ranges of rows"
        if self.is_parted:
            return "counted and sorted in several passes"
        return "counted in several passes" if self.is_counted else "in memory"

    def __str__(self) -> str:
        return facts_as_text(self.facts())


def plan_ranking(size: RankSize, rows: RowFacts | None = None, resources: Resources | None = None) -> RankPlan:
    """Choose blocks of features, and ranges of rows if the samples must be copied, that fit into memory."""
    block_bytes = BYTES_PER_DECODED_BLOCK if size.piece_rows else BYTES_PER_BLOCK
    wanted = max(1, block_bytes // (size.gathered_itemsize * size.n_samples))
    shared = _features_of_a_task(size, resources)
    plan = RankPlan(size=size, features_per_block=min(wanted, shared), rows=rows, resources=resources)
    if rows is not None:
        unit = max(1, min(rows.rows_per_chunk, size.n_samples))
        row_bytes = size.n_features * size.itemsize
        n_units = max(1, BYTES_PER_RANGE // (row_bytes * unit))
        plan = replace(plan, rows_per_range=min(unit * n_units, max(1, size.n_samples)))
        if resources is not None:
            plan = _ranges_that_fit(plan, unit, resources)
    return plan if resources is None else _blocks_that_fit(plan, resources)


def _features_of_a_task(size: RankSize, resources: Resources | None) -> int:
    """Few enough features that every thread has some blocks."""
    at_a_time = resources.threads * resources.processes if resources else 1
    return min(size.n_features, max(FEWEST_FEATURES, -(-size.n_features // (BLOCKS_PER_THREAD * at_a_time))))


def with_blocks_of(plan: RankPlan, features_per_block: int) -> RankPlan:
    """The plan with blocks of another size, whose columns are counted if they do not fit into memory."""
    plan = replace(plan, features_per_block=features_per_block, is_counted=False)
    does_not_fit = plan.resources is not None and plan.block_bytes > plan.resources.per_task
    return replace(plan, is_counted=does_not_fit and not plan.size.whole)


def _ranges_that_fit(plan: RankPlan, unit: int, resources: Resources) -> RankPlan:
    """Ranges of whole chunks if they fit, else of parts of chunks, which are then decoded more than once."""
    while plan.range_bytes > resources.per_task and plan.rows_per_range > 1:
        rows = plan.rows_per_range
        smaller = unit * (rows // unit // 2) if rows > unit else rows // 2
        plan = replace(plan, rows_per_range=max(1, smaller))
    if plan.range_bytes > resources.per_task:
        raise MemoryPlanError(
            f"copying one row of X needs {format_bytes(plan.range_bytes)}, with the chunk that holds it, but a task "
            f"may use {format_bytes(max(0, resources.per_task))}; {_remedy(plan.range_bytes, resources)}, "
            "or smaller chunks of X"
        )
    return plan


def _blocks_that_fit(plan: RankPlan, resources: Resources) -> RankPlan:
    """Blocks of columns in memory if one column fits; else blocks whose values are counted, if that is enough."""
    allowed, sorted_blocks = resources.per_task, plan
    while sorted_blocks.block_bytes > allowed and sorted_blocks.features_per_block > 1:
        sorted_blocks = replace(sorted_blocks, features_per_block=sorted_blocks.features_per_block // 2)
    if sorted_blocks.block_bytes <= allowed:
        return sorted_blocks
    if not plan.size.whole:
        counted = _counted_blocks(plan, resources)
        if counted.block_bytes <= allowed:
            return counted
        if counted.block_bytes < sorted_blocks.block_bytes:
            raise MemoryPlanError(_too_little(counted, f"{_way_of_counting(plan.size)} needs", allowed))
    whole = " and ".join(plan.size.whole)
    needs = f"{whole or 'ranking'} needs all {plan.size.n_samples:,} values of a feature in memory,"
    raise MemoryPlanError(
        _too_little(sorted_blocks, needs, allowed)
        + (f"; or leave {whole} out, as all criteria can be counted in several passes" if whole else "")
    )


def _way_of_counting(size: RankSize) -> str:
    if size.sorting:
        return f"sorting values in parts for {' and '.join(size.sorting)}"
    return "counting values"


def _too_little(plan: RankPlan, needs: str, allowed: int) -> str:
    """A plan of one feature a block, what needs its memory -> the message that it is too much."""
    assert plan.resources is not None, "the plan is for known memory"
    return (
        f"{needs} {format_bytes(plan.block_bytes)} for one feature, but a task may use "
        f"{format_bytes(max(0, allowed))}; {_remedy(plan.block_bytes, plan.resources)}"
    )


def _counted_blocks(plan: RankPlan, resources: Resources) -> RankPlan:
    """Blocks whose values are counted, with as many features as fit, and smaller ranges if not even one does."""
    features = _features_of_a_task(plan.size, resources)
    if plan.size.sorting:
        # Every part of a feature reads the chunks of its block again, so blocks are no larger than chunks should be.
        chunk = max(1, PARTED_CHUNK // (plan.size.itemsize * plan.rows_per_range)) if plan.rows_per_range else 1
        features = min(features, chunk)
    plan = replace(plan, is_counted=True, features_per_block=features)
    while plan.block_bytes > resources.per_task and plan.features_per_block > 1:
        plan = replace(plan, features_per_block=plan.features_per_block // 2)
    while plan.block_bytes > resources.per_task and plan.rows_per_range > FEWEST_STAGED_ROWS:
        plan = replace(plan, rows_per_range=plan.rows_per_range // 2)
    return plan


def _remedy(task_bytes: int, resources: Resources) -> str:
    needed = int((task_bytes * resources.threads + resources.baseline) / SHARE_OF_LIMIT)
    return (
        f"give each process a memory limit of at least {format_bytes(needed)} (memory_limit for local threads), "
        "or use fewer threads"
    )


@dataclass(frozen=True, kw_only=True)
class ReliefPlan:
    """How the nearest rows of all anchors are found: some anchors and some rows a task."""

    n_samples: int
    n_anchors: int
    anchors_per_task: int
    rows_per_task: int

    def tasks(self) -> list[tuple[int, int, int, int]]:
        """(first anchor, its end, first row, its end) of every task."""
        return [
            (a, min(a + self.anchors_per_task, self.n_anchors), r, min(r + self.rows_per_task, self.n_samples))
            for a in range(0, self.n_anchors, self.anchors_per_task)
            for r in range(0, self.n_samples, self.rows_per_task)
        ]


def plan_relief(
    size: RankSize,
    n_anchors: int,
    n_classes: int,
    n_neighbours: int,
    resources: Resources | None = None,
    remedy: str = "reduce n_anchors",
) -> ReliefPlan:
    """Ranges of rows and of anchors that fit into memory; anchors that do not fit into the caller are refused."""
    per_anchor = 8 * size.n_features + BYTES_PER_NEIGHBOUR * n_classes * n_neighbours
    rows = max(1, min(size.n_samples, BYTES_PER_RANGE // (max(4, size.itemsize) * size.n_features)))
    anchors = n_anchors
    if resources is not None:
        at_a_time = resources.threads * resources.processes
        rows = min(rows, max(FEWEST_ROWS, -(-size.n_samples // (BLOCKS_PER_THREAD * at_a_time))))
        left = resources.per_task - DISTANCE_BYTES - 2 * rows * size.n_features * size.itemsize
        anchors = min(n_anchors, left // per_anchor)
        kept = min(size.n_samples, n_anchors * (1 + n_classes * n_neighbours)) * size.n_features
        needed = kept * (8 + size.itemsize) + n_anchors * per_anchor
        allowed = resources.per_task * resources.threads
        if anchors < 1 or (resources.with_caller and needed > allowed):
            raise MemoryPlanError(
                f"relief with {n_anchors:,} anchors, their neighbours and {size.n_features:,} columns needs "
                f"{format_bytes(needed)} but this process may use {format_bytes(max(0, allowed))}; "
                f"{remedy}, or raise memory_limit"
            )
    return ReliefPlan(n_samples=size.n_samples, n_anchors=n_anchors, anchors_per_task=anchors, rows_per_task=rows)
