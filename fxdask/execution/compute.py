"""Running graphs on the active cluster or on local threads: progress, retries after lost workers."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any, TypeVar

import dask
from dask.callbacks import Callback
from dask.delayed import Delayed
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT
from dask.threaded import get as get_on_threads
from distributed import Client, Future, KilledWorker, as_completed

from fxdask.errors import ClusterError
from fxdask.execution.client import active_client, asking, is_inside_task, sending

__all__ = ["Progress", "compute", "compute_collection", "compute_with_retries"]

log = logging.getLogger(__name__)

MOST_ROUNDS = 5
"""How often the work of a stage that stores nothing is sent, if workers die."""
SECONDS_TO_STOP = 60
LARGEST_GRAPH = "1TB"

T = TypeVar("T")

Progress = Callable[[int, int], None]
"""A function that is called with (tasks done, total tasks) after each task."""


def compute(
    work: Sequence[Delayed],
    progress: Progress | None = None,
    watched: Sequence[Delayed] | None = None,
    *,
    local: bool = False,
) -> list[Any]:
    """Run the work and return its results in order.

    ``progress`` counts the ``watched`` tasks, by default the work itself. ``local`` work runs in this
    process even if a cluster is connected, because its data is in the memory of this process. After
    lost workers all of the work is sent again, a few times: it is short, and stores nothing.
    """
    return _in_rounds(lambda: _compute(work, progress, watched, local=local))


def compute_collection(collection: Any) -> Any:
    """The value of a Dask array or another collection; its tasks are sent again after lost workers."""
    client = active_client()
    with nullcontext() if client is None else sending(client):
        return _in_rounds(lambda: dask.compute(collection)[0])


def _in_rounds(run: Callable[[], T]) -> T:
    for left in reversed(range(MOST_ROUNDS)):
        try:
            return run()
        except KilledWorker as error:
            if not left:
                raise _workers_died(error) from error
            log.warning("workers were lost; the work of this stage is sent again, at most %d times more", left)
    raise AssertionError("the last round returns or raises")


def _workers_died(error: KilledWorker) -> ClusterError:
    return ClusterError(
        f"workers died repeatedly and no task was finished in between (the last one was at "
        f"{error.last_worker.address}); look into their logs, give them more memory if they lack it, "
        f"and make the same call again to resume"
    )


def _compute(
    work: Sequence[Delayed],
    progress: Progress | None,
    watched: Sequence[Delayed] | None,
    *,
    local: bool,
) -> list[Any]:
    if not work:
        return []
    watched = work if watched is None else watched
    client = None if local else active_client()
    if client is not None:
        with sending(client):
            return _compute_on(client, work, progress, watched)
    chosen = dask.config.get("scheduler", None)
    # If a client is connected, Dask sends work to it unless a scheduler is named.
    on_threads = local or is_inside_task() or chosen in (None, "threads", "threading")
    if not on_threads:
        with _Counting(watched, progress):
            return list(dask.compute(*work, optimize_graph=False))
    n_threads = dask.config.get("num_workers", None) or CPU_COUNT
    # Leaving the pool waits for running tasks: after an error, none may write to a folder that the caller deletes.
    with ThreadPoolExecutor(n_threads) as pool, _Counting(watched, progress):
        return list(get_on_threads(_merged(work), [part.key for part in work], pool=pool))


def _merged(work: Sequence[Delayed]) -> dict[Any, Any]:
    """One graph of all the work. ``dask.compute`` would take 5 ms more for every call, much for few samples."""
    return {key: task for part in work for key, task in part.__dask_graph__().items()}


def _compute_on(
    client: Client, work: Sequence[Delayed], progress: Progress | None, watched: Sequence[Delayed]
) -> list[Any]:
    # Dask warns of a large graph, as that of very many blocks is, but the caller cannot make it smaller.
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": LARGEST_GRAPH}):
        # One graph, so that shared tasks run once. ``client.compute`` would have the scheduler keep a note of every
        # task as long as it lives.
        wanted = {part.key: part for part in (*watched, *work)}
        graph = HighLevelGraph.merge(*(part.__dask_graph__() for part in wanted.values()))
        futures = dict(zip(wanted, client.get(graph, list(wanted), sync=False), strict=True))
    try:
        return _results(client, [futures[part.key] for part in watched], [futures[part.key] for part in work], progress)
    except BaseException:
        # Futures are released, not cancelled: cancelling would also stop tasks that other futures depend on.
        for future in futures.values():
            future.release()
        with asking(client):
            _wait_until_idle(client, set(futures))
        raise


def _results(client: Client, watched: Sequence[Future], work: Sequence[Future], progress: Progress | None) -> list[Any]:
    """Wait for the watched tasks -> the results of the work, in its order."""
    wanted, finished, results = {future.key for future in work}, [], {}
    # A worker that loses its connection is noticed after half a minute: Dask has TCP send keepalives.
    for done, future in enumerate(as_completed(watched), start=1):
        if future.status == "error":
            future.result()
        if future.key in wanted:
            finished.append(future)
        else:
            # So that a worker frees it after its merge: the results of all blocks may not fit into its memory.
            future.release()
        if progress:
            progress(done, len(watched))
        if done == len(watched) - 1:
            # While the last task runs, this process has nothing else to do.
            results = dict(zip((each.key for each in finished), client.gather(finished), strict=True))
    left = [future for future in work if future.key not in results]
    results |= zip((each.key for each in left), client.gather(left), strict=True)
    return [results[future.key] for future in work]


def _wait_until_idle(client: Client, keys: set[Any]) -> None:
    """Wait for the running tasks, which releasing does not stop and which could still write files."""
    deadline = time.monotonic() + SECONDS_TO_STOP
    while time.monotonic() < deadline:
        if not any(client.run(_is_executing, keys, on_error="ignore").values()):
            return
        time.sleep(0.05)


def _is_executing(keys: set[Any], dask_worker: Any) -> bool:
    return any(task.key in keys for task in dask_worker.state.executing)


class _Counting(Callback):
    """Reports each watched task of a local computation when it is done."""

    def __init__(self, watched: Sequence[Delayed], progress: Progress | None) -> None:
        super().__init__(posttask=self._count)
        self._keys = {task.key for task in watched}
        self._total = len(self._keys)
        self._progress = progress

    def _count(self, key: Any, *_: Any) -> None:
        if self._progress and key in self._keys:
            self._keys.discard(key)
            self._progress(self._total - len(self._keys), self._total)


def compute_with_retries(
    make_work: Callable[[], tuple[Sequence[Any], Sequence[Delayed]]],
    n_done: Callable[[], int] | None,
    progress: Progress | None = None,
    *,
    local: bool = False,
) -> list[Any]:
    """Run tasks that store their results, and retry after lost workers as long as each round stores new results.

    Dask gives up a task after several workers died while they ran it, even if another task was the
    cause. A retry sends all tasks again; those whose result is already stored cost almost nothing.
    Without a store, ``n_done`` is None, and a few retries are all.
    """
    if n_done is None:

        def run() -> list[Any]:
            work, watched = make_work()
            return _compute(work, progress, watched, local=local)

        return _in_rounds(run)
    before = n_done()
    while True:
        work, watched = make_work()
        try:
            return _compute(work, progress, watched, local=local)
        except KilledWorker as error:
            now = n_done()
            if now <= before:
                raise _workers_died(error) from error
            log.warning("workers were lost; %d tasks are done, the others are sent again", now)
            before = now
