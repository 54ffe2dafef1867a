"""Tables of selected nodes take memory that does not grow with the samples, on workers and in the calling process."""

from dataclasses import replace

import pytest

from fxdask.errors import MemoryPlanError
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import Resources
from fxdask.planning.table_plan import plan_tables
from fxdask.sizes import MIB

SMALL = Resources(limit=512 * MIB, baseline=185 * MIB, threads=1, processes=2, caller_bytes=300 * MIB)
ON_DISK = SampleFacts(in_memory=False, probes_in_memory=False)


def sized(n_samples, **more):
    return FitSize(n_nodes=1_000, n_features=64, class_counts=(n_samples // 2,) * 2, n_selected=10, **more)


def test_memory_does_not_grow_with_the_samples():
    plans = [plan_fit(sized(10**power, keeps_tables=True), samples=ON_DISK, resources=SMALL) for power in (6, 7, 8, 9)]
    tables = [plan_tables(plan, 20) for plan in plans]
    assert [table.nodes_per_task for table in tables] == [10] * 4, "one task for each worker"
    assert tables[2].task_bytes == tables[3].task_bytes <= SMALL.per_task
    assert len({plan.model_bytes for plan in plans}) == 1
    assert plans[3].store_bytes() < replace(plans[3], keeps_tables=False).store_bytes() // 10


def test_every_node_is_in_one_task_and_more_memory_means_fewer_tasks():
    plan = plan_fit(sized(10**7, keeps_tables=True), samples=ON_DISK, resources=SMALL)
    least = plan_tables(replace(plan, resources=None), 1).task_bytes
    found = []
    for for_a_task in (least + 20 * MIB, 2 * least, 20 * least):
        limit = int((for_a_task + SMALL.baseline) / 0.6)
        table = plan_tables(replace(plan, resources=replace(SMALL, limit=limit)), 20)
        assert table.task_bytes <= for_a_task
        assert [node for group in table.groups(20) for node in group] == list(range(20))
        found.append(table.nodes_per_task)
    assert found == sorted(found)
    assert 1 <= found[0] < found[-1] == 10


def test_tasks_and_models_that_do_not_fit_are_refused_with_both_numbers():
    plan = FitPlan(**vars(sized(10**7, keeps_tables=True)), nodes_per_block=96, samples=ON_DISK)
    tight = replace(SMALL, limit=350 * MIB)
    with pytest.raises(MemoryPlanError, match=r"tabulates one selected node needs .* MiB but may use 25.0 MiB"):
        plan_tables(replace(plan, resources=tight), 20)
    # The calling process cannot hold all projections, but their tables.
    with pytest.raises(MemoryPlanError, match=r'model itself needs .* may use 300.0 MiB; .*keep_projections="table"'):
        plan_fit(sized(10**7), samples=ON_DISK, resources=SMALL)
    assert plan_fit(sized(10**7, keeps_tables=True), samples=ON_DISK, resources=SMALL).model_bytes < 150 * MIB
