"""Running graphs on the active cluster or on local threads: progress, keepalives, and retries after lost workers."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import dask
from dask.callbacks import Callback
from dask.delayed import Delayed
from dask.system import CPU_COUNT
from distributed import Client, KilledWorker, Scheduler, as_completed

from fxdask.errors import ClusterError
from fxdask.execution.client import active_client, is_inside_task

__all__ = ["Progress", "compute", "compute_with_retries"]

log = logging.getLogger(__name__)

SECONDS_TO_STOP = 60
SECONDS_BETWEEN_KEEPALIVES = 5
SECONDS_TO_STOP_KEEPALIVE = 1

Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all) whenever one is done."""


def compute(
    work: Sequence[Any],
    progress: Progress | None = None,
    watched: Sequence[Delayed] | None = None,
    *,
    local: bool = False,
) -> list[Any]:
    """Run the work and return its results in order.

    ``watched`` tasks (the work itself by default) count as progress; ``local`` keeps work on
    data of this process in this process, whatever cluster there is.
    """
    try:
        return _compute(work, progress, watched, local=local)
    except KilledWorker as error:
        raise _workers_died(error) from error


def _workers_died(error: KilledWorker) -> ClusterError:
    return ClusterError(
        f"workers died again and again, and nothing was finished in between (the last one was at "
        f"{error.last_worker.address}); they may lack memory: their logs tell, and the same call goes on"
    )


def _compute(
    work: Sequence[Any],
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
        return _compute_on(client, work, progress, watched)
    chosen = dask.config.get("scheduler", None)
    # With a client about, Dask would send the work to it unless told otherwise.
    on_threads = local or is_inside_task() or chosen in (None, "threads", "threading")
    if not on_threads:
        with _Counting(watched, progress):
            return list(dask.compute(*work, optimize_graph=False))
    n_threads = dask.config.get("num_workers", None) or CPU_COUNT
    # Leaving the pool waits for tasks under way: after an error none may still write what the caller removes.
    with ThreadPoolExecutor(n_threads) as pool, _Counting(watched, progress):
        return list(dask.compute(*work, scheduler="threads", pool=pool, optimize_graph=False))


def _compute_on(
    client: Client, work: Sequence[Delayed], progress: Progress | None, watched: Sequence[Delayed]
) -> list[Any]:
    # Both lists in one call: their graphs are merged, so that shared tasks run once.
    futures = client.compute([*watched, *work], optimize_graph=False)
    watched_futures, work_futures = futures[: len(watched)], futures[len(watched) :]
    try:
        with _keepalive(client):
            for done, future in enumerate(as_completed(watched_futures), start=1):
                if future.status == "error":
                    future.result()
                if progress:
                    progress(done, len(watched))
            return client.gather(work_futures)
    except BaseException:
        keys = {future.key for future in futures}
        # Released, not cancelled: a cancellation would take tasks with it that other futures of the client need.
        for future in futures:
            future.release()
        try:
            _wait_until_idle(client, keys)
        except OSError as lost:
            raise ClusterError(
                f"the scheduler at {client.scheduler.address} no longer answers; once it does, the same call goes on"
            ) from lost
        raise


@contextmanager
def _keepalive(client: Client) -> Iterator[None]:
    """Let the scheduler send every worker an empty word now and then.

    A connection is given up when a word has not been answered for some time, half a minute by Dask's default. A worker
    that is cut off while nobody has anything to tell it would be missed that long after the next word, however late.
    """
    stopped = threading.Event()

    def send_repeatedly() -> None:
        while not stopped.wait(SECONDS_BETWEEN_KEEPALIVES):
            try:
                client.run_on_scheduler(_send_keepalive())
            except (
                Exception
            ) as error:  # whoever waits for the results hears of a lost scheduler; others may forbid this
                log.debug("the scheduler did not knock: %s", error)

    thread = threading.Thread(target=send_repeatedly, name="fxdask-knocking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(SECONDS_TO_STOP_KEEPALIVE)


def _send_keepalive() -> Callable[[Scheduler], None]:
    """A function that sends all workers a word; being an inner one, it travels whole to schedulers without fxdask."""

    def send_keepalive(dask_scheduler: Scheduler) -> None:
        for address in list(dask_scheduler.workers):
            dask_scheduler.worker_send(address, {"op": "free-keys", "keys": [], "stimulus_id": "fxdask-knock"})

    return send_keepalive


def _wait_until_idle(client: Client, keys: set[Any]) -> None:
    """Releasing stops no task that is under way: wait until none of them could still write something."""
    deadline = time.monotonic() + SECONDS_TO_STOP
    while time.monotonic() < deadline:
        if not any(client.run(_is_executing, keys, on_error="ignore").values()):
            return
        time.sleep(0.05)


def _is_executing(keys: set[Any], dask_worker: Any) -> bool:
    return any(task.key in keys for task in dask_worker.state.executing)


class _Counting(Callback):
    """Reports each finished task of a local computation that is among the watched."""

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
    n_done: Callable[[], int],
    progress: Progress | None = None,
    *,
    local: bool = False,
) -> list[Any]:
    """Run work whose tasks leave their results behind, as long as every round of lost workers still brings some.

    Dask gives a task up when the workers it was on have died a few times, whoever's fault that
    was. Tasks that find their result there already cost next to nothing, so all of them are sent
    again, until one round has added nothing.
    """
    before = n_done()
    while True:
        work, watched = make_work()
        try:
            return _compute(work, progress, watched, local=local)
        except KilledWorker as error:
            now = n_done()
            if now <= before:
                raise _workers_died(error) from error
            log.warning("workers were lost; %d pieces of work are done, the others are sent again", now)
            before = now
