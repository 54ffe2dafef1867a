from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import MemoryPlanError
from fxdask.planning.machine import Resources
from fxdask.planning.rank_plan import RankSize, RowFacts, plan_ranking, plan_relief, with_blocks_of
from fxdask.sizes import MIB

GIB = 1024 * MIB


def worker(limit, threads=1, processes=2, *, with_caller=False):
    return Resources(limit=limit, baseline=150 * MIB, threads=threads, processes=processes, with_caller=with_caller)


@given(
    n_samples=st.integers(1, 5_000_000),
    n_features=st.integers(1, 3_000),
    itemsize=st.sampled_from([1, 2, 4, 8]),
    rows_per_chunk=st.integers(0, 200_000),
    limit=st.integers(300, 4_000),
)
def test_a_plan_covers_everything_once_and_fits_or_is_refused(n_samples, n_features, itemsize, rows_per_chunk, limit):
    size = RankSize(
        n_samples=n_samples, n_features=n_features, itemsize=itemsize, gathered_itemsize=8 if itemsize == 8 else 4
    )
    resources = worker(limit * MIB)
    rows = RowFacts(rows_per_chunk=rows_per_chunk, chunk_bytes=min(rows_per_chunk, n_samples) * n_features * itemsize)
    try:
        plan = plan_ranking(size, rows, resources)
    except MemoryPlanError:
        return
    assert plan.block_bytes <= resources.per_task
    assert plan.range_bytes <= resources.per_task
    blocks = [plan.block(index) for index in range(plan.n_blocks)]
    assert [blocks[0].start, *(block.stop for block in blocks)] == [*(block.start for block in blocks), n_features]
    starts, stops = zip(*(plan.row_range(index) for index in range(plan.n_ranges)), strict=True)
    assert [*starts, n_samples] == [0, *stops]


def test_a_column_that_does_not_fit_is_counted_in_several_passes():
    size = RankSize(n_samples=100_000_000, n_features=3)
    plan = plan_ranking(size, RowFacts(rows_per_chunk=100_000), worker(GIB))
    assert plan.is_counted
    assert plan.block_bytes <= worker(GIB).per_task
    assert "columns                   counted in several passes" in str(plan)
    assert plan.facts()["passes_at_least"] == 7
    in_memory = plan_ranking(size, RowFacts(rows_per_chunk=100_000), worker(16 * GIB))
    assert (in_memory.facts()["columns"], in_memory.n_passes) == ("in memory", 1)
    assert replace(plan, size=replace(size, n_samples=10**9)).block_bytes == plan.block_bytes


def test_sorted_columns_that_do_not_fit_are_read_in_parts():
    size = RankSize(n_samples=100_000_000, n_features=3, sorting=("mutual_information", "density_overlap"))
    plan = plan_ranking(size, RowFacts(rows_per_chunk=100_000), worker(GIB))
    assert plan.is_counted
    assert plan.facts()["columns"] == "counted and sorted in several passes"
    assert plan.block_bytes <= worker(GIB).per_task
    assert plan.n_passes >= 7 + size.n_samples / plan.values_per_part
    larger = plan_ranking(size, RowFacts(rows_per_chunk=100_000), worker(2 * GIB))
    assert larger.values_per_part > plan.values_per_part
    assert plan_ranking(size, None, worker(16 * GIB)).values_per_part == 0
    with pytest.raises(
        MemoryPlanError,
        match="^sorting values in parts for mutual_information and density_overlap needs .* MiB for one feature, but a "
        "task may use .* MiB; give",
    ):
        plan_ranking(size, None, worker(350 * MIB))


def test_what_needs_a_whole_column_is_refused_by_name_with_both_numbers():
    size = RankSize(n_samples=100_000_000, n_features=3, whole=("redundancy='joint'",))
    message = (
        "^redundancy='joint' needs all 100,000,000 values of a feature in memory, 4.5 GiB for one feature, "
        "but a task may use 464.4 MiB; give .* 7.7 GiB .*; or leave redundancy='joint' out"
    )
    with pytest.raises(MemoryPlanError, match=message):
        plan_ranking(size, None, worker(GIB))


def test_counts_that_do_not_fit_are_refused_with_both_numbers():
    size = RankSize(n_samples=100_000_000, n_features=3, n_classes=20_000)
    with pytest.raises(MemoryPlanError, match="counting values needs .* GiB for one feature, but a task may use 464"):
        plan_ranking(size, None, worker(GIB))


def test_a_resumed_ranking_keeps_its_blocks_and_counts_if_they_do_not_fit():
    size, resources = RankSize(n_samples=5_000_000, n_features=30), worker(800 * MIB)
    plan = plan_ranking(size, RowFacts(rows_per_chunk=100_000), resources)
    assert not plan.is_counted
    assert with_blocks_of(plan, 30).is_counted
    assert not with_blocks_of(replace(plan, size=replace(size, whole=("redundancy='joint'",))), 30).is_counted


def test_a_chunk_that_does_not_fit_is_cut():
    size = RankSize(n_samples=1_000_000, n_features=1_000)
    plan = plan_ranking(size, RowFacts(rows_per_chunk=100_000), worker(GIB))
    assert 0 < plan.rows_per_range < 100_000
    with pytest.raises(MemoryPlanError, match="copying one row of X needs .* GiB, with the chunk .* smaller chunks"):
        plan_ranking(size, RowFacts(rows_per_chunk=100_000, chunk_bytes=GIB), worker(GIB))


def test_plain_moments_need_less_than_sorted_columns():
    size = RankSize(n_samples=2_000_000, n_features=10)
    plain = RankSize(n_samples=2_000_000, n_features=10, sorts_columns=False)
    assert plan_ranking(plain).block_bytes < plan_ranking(size).block_bytes - 79_000_000


def test_moments_of_ranges_need_no_whole_column():
    size = RankSize(n_samples=10**9, n_features=100, whole_columns=False)
    plan = plan_ranking(size, RowFacts(rows_per_chunk=10_000), worker(GIB))
    assert (plan.block_bytes, plan.n_ranges) == (0, 6250)


def test_few_features_are_one_block_and_many_are_shared_among_threads():
    assert plan_ranking(RankSize(n_samples=100, n_features=12), None, worker(GIB)).n_blocks == 1
    assert plan_ranking(RankSize(n_samples=100, n_features=8_000), None, worker(GIB, processes=10)).n_blocks == 40


def test_relief_is_cut_into_anchors_and_rows():
    size = RankSize(n_samples=1_000_000, n_features=100)
    plan = plan_relief(size, 1_000, 2, 10, worker(GIB))
    covered = sum((b - a) * (d - c) for a, b, c, d in plan.tasks())
    assert covered == 1_000 * 1_000_000
    assert len(plan_relief(size, 1_000, 2, 10, worker(GIB, processes=20)).tasks()) == 80
    with pytest.raises(MemoryPlanError, match="relief with 1,000,000 anchors.* needs .* but .* reduce n_anchors"):
        plan_relief(size, 1_000_000, 2, 10, worker(GIB, with_caller=True))
