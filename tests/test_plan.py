import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.errors import InvalidInputError
from fxdask.plan import format_bytes, plan_fit, row_ranges, rows_per_read, tile_shape


@given(
    n_nodes=st.integers(1, 5_000_000),
    n_inputs=st.integers(1, 200_000),
    counts=st.lists(st.integers(2, 1_000_000), min_size=2, max_size=12),
    per_block=st.one_of(st.just("auto"), st.integers(1, 10_000)),
)
def test_blocks_cover_every_node_once(n_nodes, n_inputs, counts, per_block):
    if per_block != "auto":
        n_nodes = min(n_nodes, 200 * per_block)
    plan = plan_fit(n_nodes, n_inputs, tuple(counts), 1, per_block)
    edges = [plan.block(index) for index in (0, plan.n_blocks - 1)]
    assert edges[0].start == 0
    assert edges[-1].stop == n_nodes
    assert edges[-1].n_nodes >= 1
    assert plan.block(plan.n_blocks // 2).start == plan.n_blocks // 2 * plan.nodes_per_block
    assert plan.class_slices[-1].stop == plan.n_samples == sum(counts)
    if per_block == "auto" and plan.n_blocks > 1:
        assert plan.nodes_per_block % plan.tile.nodes == 0


@given(n_inputs=st.integers(1, 10_000_000))
def test_reads_are_whole_tiles_of_bounded_width(n_inputs):
    tile = tile_shape(n_inputs)
    assert rows_per_read(n_inputs) % tile.samples == 0
    assert tile.nodes % 16 == 0
    assert tile.samples % 16 == 0


@given(n_rows=st.integers(0, 1_000), per_range=st.integers(1, 300))
def test_ranges_cover_every_row_once(n_rows, per_range):
    rows = [row for start, stop in row_ranges(n_rows, per_range) for row in range(start, stop)]
    assert rows == list(range(n_rows))


def test_more_selected_than_there_are_gives_both_numbers():
    with pytest.raises(InvalidInputError, match="n_selected is 30 but there are only 20 nodes"):
        plan_fit(20, 4, (5, 5), 30)


def test_store_bytes_count_projections_only_if_kept():
    plan = plan_fit(1_000, 10, (50, 50), 5)
    assert plan.store_bytes({"projections"}) - plan.store_bytes() == 1_000 * 100 * 4
    assert plan.store_bytes({"weights"}) - plan.store_bytes() == 1_000 * 10 * 4
    assert plan.store_bytes(staged_bytes=7) - plan.store_bytes() == 7


def test_bytes_for_people():
    assert [format_bytes(n) for n in (12, 2048, 3.1 * 2**30, 2**50)] == [
        "12 B",
        "2.0 KiB",
        "3.1 GiB",
        "1024.0 TiB",
    ]
