import subprocess
import sys

import dask
import numpy as np
import pytest

from fxdask.errors import InvalidInputError
from fxdask.execution.resources import checked_limit, measured_resources
from fxdask.tasks.telemetry import (
    WorkerStats,
    available_bytes,
    merge_worker_stats,
    peak_bytes,
    resident_bytes,
    this_process,
)

MIB = 2**20


@pytest.mark.parametrize(
    ("given", "limit"), [(None, None), (5, 5), ("2 GiB", 2**31), ("100MB", 10**8), (np.int64(7), 7), (1e9, 10**9)]
)
def test_memory_limits_as_numbers_and_text(given, limit):
    assert checked_limit(given) == limit


@pytest.mark.parametrize("given", ["", "much", "-1GiB", 0, -5, True, [1], float("nan"), float("inf")])
def test_invalid_memory_limits_are_refused(given):
    with pytest.raises(InvalidInputError, match="memory_limit must be a number of bytes or a text such as"):
        checked_limit(given)


def test_local_threads_share_the_unused_part_of_the_limit():
    with dask.config.set(num_workers=4):
        found = measured_resources(4 * 2**30)
    assert (found.limit, found.threads, found.processes) == (4 * 2**30, 4, 1)
    assert abs(found.baseline - resident_bytes()) < 50 * MIB
    assert found.per_task == int(0.6 * found.limit - found.baseline) // 4


def test_without_a_limit_the_free_memory_of_the_machine_is_used():
    with dask.config.set(num_workers=2):
        found = measured_resources()
    assert found.baseline == 0
    assert found.limit <= available_bytes() + 200 * MIB
    assert 0 < found.per_task < found.limit / 2


def test_memory_in_use_is_measured():
    before = resident_bytes()
    # More than an allocator may have in reserve.
    block = np.ones(600 * MIB, np.uint8)
    assert resident_bytes() - before > 300 * MIB
    assert peak_bytes() >= resident_bytes() - 10 * MIB
    assert block[-1] == 1


def test_the_peak_of_a_process_is_not_that_of_its_parent():
    block = np.ones(300 * MIB, np.uint8)
    child = subprocess.run(
        [sys.executable, "-c", "from fxdask.tasks.telemetry import peak_bytes; print(peak_bytes())"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(child.stdout) < peak_bytes() - 100 * MIB
    assert block[0] == 1


def test_counters_are_added_by_process():
    first = WorkerStats(blocks=1, bytes_read=10, passes=1, rows_repeated=0, peak_bytes=5)
    second = WorkerStats(blocks=2, bytes_read=1, passes=2, rows_repeated=1, peak_bytes=4)
    other = WorkerStats(blocks=1, bytes_read=20, passes=3, rows_repeated=2, peak_bytes=9)
    both = WorkerStats(blocks=3, bytes_read=11, passes=3, rows_repeated=1, peak_bytes=5)
    assert merge_worker_stats([{"a": first}, {"b": other}, {"a": second}]) == {"a": both, "b": other}
    assert this_process().count(":") == 1
