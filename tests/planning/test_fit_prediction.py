"""What a fit will take, from its plan and measured rates."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fxdask.planning.fit_prediction import predict_fit
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import Resources
from fxdask.planning.prediction import SECONDS_PER_BLOCK, SECONDS_PER_TASK, Rates

NOTHING = Rates(product=0.0, sorting=0.0, weight=0.0, reading=0.0, scanning=0.0, finishing=0.0)
RATES = Rates(product=1e-10, sorting=5e-9, weight=5e-9, reading=1e-9, scanning=1e-9, finishing=0.5)


def plan(workers=2, n_nodes=20_000, threads=1):
    return plan_fit(
        FitSize(n_nodes=n_nodes, n_features=256, class_counts=(10_000, 10_000), n_selected=10),
        samples=SampleFacts(in_memory=False, probes_in_memory=False),
        resources=Resources(limit=2**34, baseline=2**27, threads=threads, processes=workers),
    )


def test_the_time_is_the_sum_of_all_work_on_one_thread():
    one = plan(workers=1)
    values, weights = 20_000 * 20_000, 20_000 * 256
    selected = 20 * 20_000
    expected = {
        "preparing": one.sample_bytes * (1e-9 + 2 * 1e-9),
        "in_blocks": values * (256 * 1e-10 + 5e-9)
        + weights * 5e-9
        + one.bytes_read * 1e-9
        + one.n_blocks * SECONDS_PER_BLOCK,
        "finishing": 0.5 + selected * (5e-9 + 256 * 1e-10) + one.sample_bytes * 1e-9 + weights * 5e-9,
    }
    found = predict_fit(one, RATES)
    for name, seconds in expected.items():
        assert getattr(found, f"seconds_{name}") == pytest.approx(seconds), name
    assert found.seconds == pytest.approx(sum(expected.values()))
    assert found.facts()["seconds_predicted"] == pytest.approx(found.seconds, rel=0.01)


def test_importances_of_the_blocks_save_a_second_draw_of_the_weights():
    one = plan(workers=1)
    less = predict_fit(one, RATES).seconds_finishing - predict_fit(one, RATES, draws_again=False).seconds_finishing
    assert less == pytest.approx(20_000 * 256 * 5e-9)


def test_few_blocks_are_merged_without_tasks():
    few, many = plan(n_nodes=64 * 384), plan(n_nodes=65 * 384)
    assert (few.n_blocks, many.n_blocks) == (64, 65)
    assert predict_fit(many, RATES).tasks - predict_fit(few, RATES).tasks == 1 + round(65 / 7)


def test_blocks_on_local_threads_cost_nothing_besides_their_work():
    cluster = plan(workers=1)
    local = replace(cluster, resources=replace(cluster.resources, with_caller=True))
    less = predict_fit(cluster, RATES).seconds_per_block - predict_fit(local, RATES).seconds_per_block
    assert less == pytest.approx(SECONDS_PER_BLOCK)


@given(st.integers(1, 100), st.integers(1, 8), st.integers(100, 10**6))
def test_blocks_run_in_whole_rounds(workers, threads, n_nodes):
    cluster = plan(workers, n_nodes, threads)
    found = predict_fit(cluster, RATES)
    rounds = -(-cluster.n_blocks // (workers * threads))
    assert found.seconds_in_blocks == pytest.approx(
        max(rounds * found.seconds_per_block, found.tasks * SECONDS_PER_TASK)
    )
    assert found.tasks >= cluster.n_blocks
    assert found.threads_without_block == max(0, workers * threads - cluster.n_blocks)
    assert 0 < found.bytes_read_per_worker <= cluster.bytes_read + cluster.bytes_read_besides


@pytest.mark.parametrize(
    ("name", "rates"),
    [
        ("product", {"product": 1e-9}),
        ("sorting", {"sorting": 1e-6}),
        ("reading", {"reading": 1e-4}),
        ("scheduling", {}),
    ],
)
def test_what_takes_the_most_time_is_named(name, rates):
    found = predict_fit(plan(), Rates(**{**vars(NOTHING), **rates}))
    assert found.limit == found.facts()["limited_by"] == name


def test_a_large_cluster_gets_three_blocks_for_each_thread():
    assert plan(workers=2).n_blocks == plan(workers=8).n_blocks
    large = plan(workers=100, threads=2, n_nodes=10**6)
    assert large.n_blocks >= 3 * 200
    few = plan(workers=1_000, n_nodes=20_000)
    assert few.nodes_per_block == few.tile.nodes, "a block is one tile at least"
    assert predict_fit(few, RATES).threads_without_block == 1_000 - few.n_blocks
