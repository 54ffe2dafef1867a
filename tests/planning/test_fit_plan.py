from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.planning.fit_search import plan_fit, replanned
from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import Resources
from fxdask.sizes import MIB, format_bytes, padded_length, row_ranges, rows_per_read, tile_shape


def sized(n_nodes, n_features, class_counts, n_selected, **more):
    return FitSize(n_nodes=n_nodes, n_features=n_features, class_counts=class_counts, n_selected=n_selected, **more)


@given(
    n_nodes=st.integers(1, 5_000_000),
    n_features=st.integers(1, 200_000),
    counts=st.lists(st.integers(2, 1_000_000), min_size=2, max_size=12),
    per_block=st.one_of(st.just("auto"), st.integers(1, 10_000)),
)
def test_blocks_cover_every_node_once(n_nodes, n_features, counts, per_block):
    if per_block != "auto":
        n_nodes = min(n_nodes, 200 * per_block)
    plan = plan_fit(sized(n_nodes, n_features, tuple(counts), 1), per_block)
    edges = [plan.block(index) for index in (0, plan.n_blocks - 1)]
    assert edges[0].start == 0
    assert edges[-1].stop == n_nodes
    assert edges[-1].n_nodes >= 1
    assert plan.block(plan.n_blocks // 2).start == plan.n_blocks // 2 * plan.nodes_per_block
    assert plan.class_slices[-1].stop == plan.n_samples == sum(counts)
    if per_block == "auto" and plan.n_blocks > 1:
        assert plan.nodes_per_block % plan.tile.nodes == 0


@given(
    n_nodes=st.integers(1, 1_000_000),
    n_features=st.integers(1, 5_000),
    counts=st.lists(st.integers(2, 2_000_000), min_size=2, max_size=5),
    per_block=st.one_of(st.just("auto"), st.integers(1, 3_000)),
    megabytes=st.integers(10, 20_000),
    threads=st.integers(1, 8),
    processes=st.integers(1, 50),
    in_memory=st.booleans(),
)
def test_a_plan_fits_into_memory_or_is_refused(
    n_nodes, n_features, counts, per_block, megabytes, threads, processes, in_memory
):
    resources = Resources(limit=megabytes * MIB, baseline=100 * MIB, threads=threads, processes=processes)
    samples = SampleFacts(in_memory=in_memory, probes_in_memory=False)
    refusal = ""
    try:
        size = sized(n_nodes, n_features, tuple(counts), 1, n_tables=77)
        plan = plan_fit(size, per_block, samples=samples, resources=resources)
    except MemoryPlanError as error:
        refusal = str(error)
    if refusal:
        assert f"may use {format_bytes(max(0, resources.per_task))}" in refusal
        assert "give workers more memory or fewer threads each" in refusal
        return
    assert plan.task_bytes <= resources.per_task
    assert 1 <= plan.nodes_per_pass <= plan.nodes_per_block <= n_nodes
    assert plan.samples_per_chunk % plan.tile.samples == 0 or plan.samples_per_chunk == plan.n_samples
    assert plan.product_passes >= 1
    assert (plan.bytes_read == 0) == in_memory
    if plan.is_streamed:
        assert all(1 <= probed <= count for probed, count in zip(plan.probe_counts, counts, strict=True))
    if per_block != "auto":
        assert plan.nodes_per_block == min(per_block, n_nodes)
    again = replanned(plan, plan.nodes_per_block)
    assert again.nodes_per_block == plan.nodes_per_block
    assert again.size == size


@given(megabytes=st.integers(200, 5_000), more=st.integers(0, 5_000))
def test_more_memory_never_means_more_work_or_more_reading_in_the_same_way(megabytes, more):
    def planned(limit):
        resources = Resources(limit=limit * MIB, baseline=0, threads=1, processes=2)
        facts = SampleFacts(in_memory=False)
        return plan_fit(sized(100_000, 784, (700_000, 650_000), 10), samples=facts, resources=resources)

    try:
        little = planned(megabytes)
    except MemoryPlanError:
        return
    much = planned(megabytes + more)
    # Rounding to whole tiles may add a block.
    assert much.work <= 1.02 * little.work
    assert much.is_counted != little.is_counted or much.bytes_read <= 1.02 * little.bytes_read


def test_a_class_whose_brackets_would_hold_most_values_is_kept_whole():
    def planned(counts):
        resources = Resources(limit=512 * MIB, baseline=140 * MIB, threads=1)
        return plan_fit(sized(2_000, 20, counts, 1), samples=SampleFacts(in_memory=False), resources=resources)

    few, many, unequal = planned((100_000,) * 2), planned((2_000,) * 100), planned((300_000, 5_000))
    assert all(0 < kept < count / 4 for kept, count in zip(few.kept_counts, few.class_counts, strict=True))
    assert many.kept_counts == many.class_counts
    assert unequal.kept_counts[0] < 100_000
    assert unequal.kept_counts[1] == 5_000
    for plan in (few, many, unequal):
        assert plan.is_streamed
        assert plan.pass_bytes == 4 * sum(plan.kept_counts) * plan.nodes_per_pass


@pytest.mark.parametrize("projection", ["gaussian", "structured"])
def test_many_threads_get_blocks_that_last_until_the_scheduler_comes_round(projection):
    def planned(processes, memory):
        size = sized(10**8, 784, (6_000, 6_000), 10, projection=projection)
        resources = Resources(limit=memory * MIB, baseline=200 * MIB, threads=4, processes=processes)
        return plan_fit(size, samples=SampleFacts(in_memory=False), resources=resources)

    few, many, little_memory = planned(2, 16_000), planned(200, 16_000), planned(200, 2_000)
    of_values = [4 * plan.nodes_per_block * plan.n_samples for plan in (few, many)]
    assert of_values[0] <= 48 * MIB < of_values[1]
    assert many.n_blocks <= 0.2 * few.n_blocks
    assert few.nodes_per_block < little_memory.nodes_per_block < many.nodes_per_block
    assert little_memory.task_bytes <= little_memory.resources.per_task
    assert many.n_blocks >= 3 * 800
    assert many.nodes_per_block % many.tile.nodes == 0


def test_memory_of_a_task_does_not_grow_with_the_samples_once_brackets_are_counted():
    resources = Resources(limit=512 * MIB, baseline=185 * MIB, threads=1, processes=2)

    def planned(n_samples):
        facts = SampleFacts(in_memory=False, probes_in_memory=False)
        return plan_fit(sized(1_000, 64, (n_samples // 2,) * 2, 10), samples=facts, resources=resources)

    plans = [planned(10**power) for power in (6, 7, 8, 9)]
    assert [plan.is_counted for plan in plans] == [False, True, True, True]
    assert plans[2].task_bytes == plans[3].task_bytes <= resources.per_task
    assert plans[2].nodes_per_pass == plans[3].nodes_per_pass >= 96
    assert [plan.scans_per_pass for plan in plans] == [1, 2, 3, 3]
    same_block = [replace(plan, nodes_per_block=96, nodes_per_pass=96) for plan in plans[1:]]
    assert max(plan.task_bytes for plan in same_block) < 1.2 * min(plan.task_bytes for plan in same_block)
    without_counts = replace(plans[3], is_counted=False)
    assert without_counts.task_bytes > 100 * plans[3].task_bytes


def test_a_plan_prints_a_table_and_returns_numbers():
    resources = Resources(limit=512 * MIB, baseline=140 * MIB, threads=1, processes=2)
    facts = SampleFacts(in_memory=False, probes_in_memory=False)
    plan = plan_fit(sized(2_000, 784, (700_000, 670_000), 10), samples=facts, resources=resources)
    facts = plan.facts()
    assert facts["blocks"] == plan.n_blocks
    assert facts["bytes_allowed_per_task"] == int(0.6 * 512 * MIB - 140 * MIB)
    shown = str(plan)
    assert "bytes allowed per task    167.2 MiB" in shown
    assert f"blocks                    {plan.n_blocks}" in shown
    assert "samples                   1,370,000" in shown


def test_many_samples_reduce_the_nodes_of_a_tile_and_many_features_its_size():
    assert (tile_shape(784).nodes, tile_shape(784, 10**6).nodes, tile_shape(784, 10**9).nodes) == (384, 96, 96)
    assert tile_shape(784).samples == tile_shape(784, 10**9).samples
    assert tile_shape(20_000).nodes < 384


@given(n_features=st.integers(1, 10_000_000), n_samples=st.integers(0, 10**9))
def test_reads_are_whole_tiles_and_tiles_are_whole_vectors(n_features, n_samples):
    tile = tile_shape(n_features, n_samples)
    assert rows_per_read(n_features) % tile.samples == 0
    assert tile.nodes % 16 == 0
    assert tile.samples % 16 == 0


@given(total=st.integers(1, 2_000), most=st.integers(1, 40).map(lambda n: 16 * n))
def test_tiles_cover_all_rows_and_only_the_last_is_shorter(total, most):
    lengths = [padded_length(total, start, most) for start in range(0, total, most)]
    assert all(length == most for length in lengths[:-1])
    assert total <= sum(lengths) < total + 16


@given(n_rows=st.integers(0, 1_000), per_range=st.integers(1, 300))
def test_ranges_cover_every_row_once(n_rows, per_range):
    rows = [row for start, stop in row_ranges(n_rows, per_range) for row in range(start, stop)]
    assert rows == list(range(n_rows))


def test_more_selected_nodes_than_nodes_are_refused_with_both_numbers():
    with pytest.raises(InvalidInputError, match="n_selected is 30 but there are only 20 nodes"):
        plan_fit(sized(20, 4, (5, 5), 30))


def test_store_bytes_count_the_optional_arrays():
    def stored(*kept):
        return plan_fit(sized(1_000, 10, (50, 50), 5, kept=kept))

    assert stored("projections").store_bytes() - stored().store_bytes() == 1_000 * 100 * 4
    assert stored("weights").store_bytes() - stored().store_bytes() == 1_000 * 10 * 4
    assert stored().store_bytes(copied_bytes=7) - stored().store_bytes() == 7


def test_byte_counts_as_text():
    assert [format_bytes(n) for n in (12, 2048, 3.1 * 2**30, 2**50)] == [
        "12 B",
        "2.0 KiB",
        "3.1 GiB",
        "1024.0 TiB",
    ]


@pytest.mark.parametrize(
    ("per_block", "passes"), [(384, 1.0), (768, 1.0), (192, 2.0), (200, 2.9), (100, 4.8), (1, 384.0)]
)
def test_blocks_of_partial_tiles_still_multiply_whole_tiles(per_block, passes):
    plan = plan_fit(sized(3_840, 5, (1_500, 1_500), 5), per_block)
    assert plan.product_passes == pytest.approx(passes, rel=0.05)


def test_values_are_selected_if_they_are_many_and_numba_fits_into_memory():
    def planned(n_nodes, limit):
        size, resources = sized(n_nodes, 784, (6_000, 6_000), 10), Resources(limit=limit, baseline=140 * MIB, threads=2)
        return plan_fit(size, resources=resources)

    ample = planned(10_000, 2_000 * MIB)
    assert ample.selects_values
    assert not planned(100, 2_000 * MIB).selects_values, "few values are sorted before numba is loaded"
    with_100_more = int((2 * ample.task_bytes + 240 * MIB) / 0.6)
    assert not planned(10_000, with_100_more).selects_values, "numba needs 160 MiB"
