"""Memory and threads of the processes that will run the tasks: the connected workers, or this process."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import dask
from dask.system import CPU_COUNT
from dask.utils import parse_bytes
from distributed import Client
from distributed.system import MEMORY_LIMIT

from fxdask.errors import ClusterError, InvalidInputError
from fxdask.execution.client import active_client, asking, connected_workers
from fxdask.execution.waiting import expected_workers, wait_for_workers
from fxdask.execution.workers import check_workers
from fxdask.planning.machine import COMPILER_BYTES, SHARE_OF_LIMIT, WORKER_BASELINE, ClusterShape, Resources
from fxdask.tasks.memory import MemoryInUse, memory_in_use
from fxdask.tasks.telemetry import available_bytes

__all__ = ["checked_limit", "measured_resources", "resources_of"]

RETRY_PAUSES = (0.0, 0.5, 2.0)
SECONDS_TO_FREE, SECONDS_BETWEEN_LOOKS = 1.0, 0.1


def checked_limit(memory_limit: Any) -> int | None:
    """A number of bytes or a text such as "2 GiB" -> bytes; None stays None."""
    if memory_limit is None:
        return None
    limit = 0
    with contextlib.suppress(ValueError, OverflowError):
        if isinstance(memory_limit, str) and any(letter.isdigit() for letter in memory_limit):
            limit = parse_bytes(memory_limit)
        elif isinstance(memory_limit, Real) and not isinstance(memory_limit, bool):
            limit = int(float(memory_limit))
    if limit < 1:
        raise InvalidInputError(
            f'memory_limit must be a number of bytes or a text such as "2 GiB", not {memory_limit!r}'
        )
    return limit


def measured_resources(
    memory_limit: Any = None, extra_baseline: int = 0, *, compiles: bool = False, local: bool = False
) -> Resources:
    """Memory and threads of the connected workers, or of this process; waits up to a timeout for the first worker.

    For a worker, the smaller of its own limit and ``memory_limit`` applies. Local threads without a
    limit may use the free memory of the machine. ``extra_baseline`` is added to the memory in use, and
    the memory of numba for tasks that need it, in processes that have not loaded it. ``local`` measures this
    process even if a cluster is connected.
    """
    limit = checked_limit(memory_limit)
    client = None if local else active_client()
    if client is not None:
        return _of_workers(client, limit, extra_baseline, compiles)
    threads = dask.config.get("num_workers", None) or CPU_COUNT
    in_use = memory_in_use()
    extra_baseline += _compiler_bytes(in_use, compiles)
    if limit is None:
        free = min(MEMORY_LIMIT - in_use.n_bytes, available_bytes())
        return Resources(limit=max(1, free), baseline=extra_baseline, threads=threads, with_caller=True)
    return Resources(limit=limit, baseline=in_use.n_bytes + extra_baseline, threads=threads, with_caller=True)


def _compiler_bytes(in_use: MemoryInUse, compiles: bool) -> int:
    """The memory that numba will add to a process."""
    return COMPILER_BYTES if compiles and not in_use.has_compiler else 0


def resources_of(cluster: ClusterShape, extra_baseline: int = 0, *, compiles: bool = False) -> Resources:
    """Memory and threads of a cluster that need not be connected."""
    for name in ("workers", "threads"):
        number = getattr(cluster, name)
        if isinstance(number, bool) or not isinstance(number, Integral) or number < 1:
            raise InvalidInputError(f"a cluster has at least 1 of its {name}, as a whole number, not {number!r}")
    limit = checked_limit(cluster.memory)
    if limit is None:
        raise InvalidInputError('a cluster needs the memory of a worker, such as memory="16GiB"')
    return Resources(
        limit=limit,
        baseline=WORKER_BASELINE + extra_baseline + (COMPILER_BYTES if compiles else 0),
        threads=int(cluster.threads),
        processes=int(cluster.workers),
    )


def _of_workers(client: Client, limit: int | None, extra_baseline: int, compiles: bool) -> Resources:
    wait_for_workers(client)
    with asking(client):
        check_workers(client)
        in_use, here = _memory_in_use(client), memory_in_use()
        workers = connected_workers(client)
    found = [
        Resources(
            limit=min(filter(None, (workers[address]["memory_limit"] or MEMORY_LIMIT // len(in_use), limit))),
            baseline=used.n_bytes + extra_baseline + _compiler_bytes(used, compiles),
            threads=max(1, workers[address]["nthreads"]),
            # An adaptive cluster has few workers before there is work, which must be cut for all of them.
            processes=max(len(in_use), expected_workers(client)),
            caller_bytes=int(SHARE_OF_LIMIT * min(MEMORY_LIMIT - here.n_bytes, available_bytes())),
        )
        for address, used in in_use.items()
        if address in workers
    ]
    if not found:
        raise ClusterError(
            "all workers left while their memory was measured; start workers and make the same call again"
        )
    return min(found, key=lambda worker: worker.per_task)


def _memory_in_use(client: Client) -> Mapping[str, MemoryInUse]:
    """Address of each worker -> its memory in use, with the libraries of fxdask, which the call imports there.

    Arrays of a job that has just ended are freed a moment later, so workers that hold a job are asked again.
    """
    started = time.monotonic()
    while True:
        found = _answers(client)
        is_free = not any(used.n_jobs for used in found.values())
        if is_free or time.monotonic() - started > SECONDS_TO_FREE:
            return found
        time.sleep(SECONDS_BETWEEN_LOOKS)


def _answers(client: Client) -> Mapping[str, MemoryInUse]:
    """The answers of all workers but those that leave meanwhile. If none answers, all are asked again."""
    answers: Mapping[str, MemoryInUse | Exception] = {}
    for pause in RETRY_PAUSES:
        time.sleep(pause)
        answers = client.run(memory_in_use, on_error="return")
        found = {address: answer for address, answer in answers.items() if not isinstance(answer, Exception)}
        if found:
            return found
    reasons = "; ".join(f"{address}: {error}" for address, error in answers.items()) or "all workers left"
    raise ClusterError(
        f"no worker could tell how much memory it uses ({reasons}); start workers and make the same call again"
    )
