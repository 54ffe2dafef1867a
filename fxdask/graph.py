"""Dask graphs over the tasks, on the active cluster or on local threads."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import dask
import numpy as np
from dask.array import Array as DaskArray
from dask.callbacks import Callback
from dask.delayed import Delayed, delayed
from dask.system import CPU_COUNT
from distributed import Client, Future, KilledWorker, Scheduler, as_completed, default_client, get_worker
from numpy.typing import NDArray

from fxdask import tasks
from fxdask.errors import ClusterError
from fxdask.job import FitJob
from fxdask.kernels.preparation import FeatureSummary, merge_summaries
from fxdask.plan import row_ranges, rows_per_read
from fxdask.reading import as_declared
from fxdask.store.samples import Source
from fxdask.tasks import FitSummary

__all__ = [
    "Handle",
    "Progress",
    "Survey",
    "active_client",
    "compute",
    "compute_despite_losses",
    "fit_blocks",
    "is_here",
    "merged",
    "once",
    "place",
    "probe",
    "project_selected",
    "respond",
    "row_tasks",
    "stage",
    "survey",
]

log = logging.getLogger(__name__)

MERGE_FAN_IN = 8
FEWEST_AT_A_TIME = 4
SECONDS_TO_STOP = 60
SECONDS_BETWEEN_KNOCKS = 5
SECONDS_TO_STOP_KNOCKING = 1

Progress = Callable[[int, int], None]
"""Called with (tasks done, tasks in all) whenever one is done."""

Handle = Source | Future | DaskArray
"""Samples as a graph may hold them: in memory, at an address, on a worker, or still to be computed."""


def active_client() -> Client | None:
    """The connected client, if there is one and this is not already one of its tasks.

    A task that waited for other tasks of its own cluster could wait for the thread it occupies.
    """
    if _inside_task():
        return None
    try:
        client = default_client()
    except ValueError:
        return None
    if client.asynchronous:
        raise ClusterError("fxdask waits for its results, which an asynchronous Client cannot; connect an ordinary one")
    return client


def _inside_task() -> bool:
    try:
        get_worker()
    except ValueError:
        return False
    return True


def compute(
    work: Sequence[Any],
    progress: Progress | None = None,
    watched: Sequence[Delayed] | None = None,
    *,
    here: bool = False,
) -> list[Any]:
    """Run the work and return its results in order.

    ``watched`` tasks (the work itself by default) count as progress; ``here`` keeps work on
    data of this process in this process, whatever cluster there is.
    """
    try:
        return _compute(work, progress, watched, here=here)
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
    here: bool,
) -> list[Any]:
    if not work:
        return []
    watched = work if watched is None else watched
    client = None if here else active_client()
    if client is not None:
        return _compute_on(client, work, progress, watched)
    chosen = dask.config.get("scheduler", None)
    # With a client about, Dask would send the work to it unless told otherwise.
    on_threads = here or _inside_task() or chosen in (None, "threads", "threading")
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
        with _knocking(client):
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
def _knocking(client: Client) -> Iterator[None]:
    """Let the scheduler send every worker an empty word now and then.

    A connection is given up when a word has not been answered for some time, half a minute by Dask's default. A worker
    that is cut off while nobody has anything to tell it would be missed that long after the next word, however late.
    """
    stopped = threading.Event()

    def knock_again_and_again() -> None:
        while not stopped.wait(SECONDS_BETWEEN_KNOCKS):
            try:
                client.run_on_scheduler(_knock())
            except (
                Exception
            ) as error:  # whoever waits for the results hears of a lost scheduler; others may forbid this
                log.debug("the scheduler did not knock: %s", error)

    thread = threading.Thread(target=knock_again_and_again, name="fxdask-knocking", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopped.set()
        thread.join(SECONDS_TO_STOP_KNOCKING)


def _knock() -> Callable[[Scheduler], None]:
    """A function that sends all workers a word; being an inner one, it travels whole to schedulers without fxdask."""

    def knock(dask_scheduler: Scheduler) -> None:
        for address in list(dask_scheduler.workers):
            dask_scheduler.worker_send(address, {"op": "free-keys", "keys": [], "stimulus_id": "fxdask-knock"})

    return knock


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


def compute_despite_losses(
    make_work: Callable[[], tuple[Sequence[Any], Sequence[Delayed]]],
    n_done: Callable[[], int],
    progress: Progress | None = None,
    *,
    here: bool = False,
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
            return _compute(work, progress, watched, here=here)
        except KilledWorker as error:
            now = n_done()
            if now <= before:
                raise _workers_died(error) from error
            log.warning("workers were lost; %d pieces of work are done, the others are sent again", now)
            before = now


def place(samples: Handle) -> Handle:
    """Samples in this process's memory -> once on every worker, if there are workers; others stay as they are."""
    client = active_client()
    if client is None or not is_here(samples):
        return samples
    return client.scatter(samples, broadcast=True, hash=False)


def is_here(samples: Handle) -> bool:
    """Whether the samples are in this process's memory."""
    return isinstance(samples, np.ndarray)


def once(value: Any, name: str) -> Any:
    """A value as one entry of the graph that every task refers to, never a copy per task."""
    if isinstance(value, Future):
        return value
    return delayed(value, traverse=False, name=f"fxdask-{name}-{uuid4().hex}")


def row_tasks(
    samples: Handle, n_rows: int, n_inputs: int, per_range: int | None = None
) -> list[tuple[int, int | None, Any]]:
    """(start, stop, argument) of each range of rows.

    The ranges depend on the shape alone, so that sums over them are the same for every chunking.
    Rows of a Dask array are themselves the argument, and their stop is None.
    """
    if n_rows == 0:
        return []
    per_range = per_range or rows_per_read(n_inputs)
    ranges = list(row_ranges(n_rows, per_range))
    if isinstance(samples, DaskArray):
        parts = samples.rechunk({0: per_range, 1: -1}).to_delayed()[:, 0]
        declared = delayed(as_declared, pure=False)
        return [
            (start, None, declared(part, (stop - start, n_inputs), samples.dtype.str))
            for (start, stop), part in zip(ranges, parts, strict=True)
        ]
    shared = once(samples, "samples")
    return [(start, stop, shared) for start, stop in ranges]


@dataclass(frozen=True)
class Survey:
    """One pass over the training samples: the summary of their inputs and a digest of their content."""

    summary: FeatureSummary
    digest: str


def survey(
    samples: Handle, n_rows: int, n_inputs: int, normalize: str | None, progress: Progress | None = None
) -> Survey:
    """Look at every sample once, before anything is written."""
    look = delayed(tasks.survey_rows, pure=False)
    work = [look(part, start, stop, normalize) for start, stop, part in row_tasks(samples, n_rows, n_inputs)]
    found = compute(work, progress, here=is_here(samples))
    digest = hashlib.sha256(b"".join(part for _, part in found)).hexdigest()
    return Survey(merge_summaries(summary for summary, _ in found), digest)


def stage(samples: Handle, n_rows: int, n_inputs: int, store: str, progress: Progress | None = None) -> None:
    """Copy samples into the store, so that any worker can read them, range by range."""
    copy = delayed(tasks.stage_rows, pure=False)
    work = [copy(part, store, start, stop) for start, stop, part in row_tasks(samples, n_rows, n_inputs)]
    compute(work, progress, here=is_here(samples))


def probe(
    samples: Handle, n_rows: int, n_inputs: int, probed: NDArray[np.intp], progress: Progress | None = None
) -> NDArray:
    """(probe, input) a few raw samples, by their rising indices."""
    pick = delayed(tasks.probe_rows, pure=False)
    work = []
    for start, stop, part in row_tasks(samples, n_rows, n_inputs):
        end = start + rows_per_read(n_inputs)
        work.append(pick(part, start, stop, probed[np.searchsorted(probed, start) : np.searchsorted(probed, end)]))
    parts = compute(work, progress, here=is_here(samples))
    found, place = np.empty((len(probed), n_inputs), parts[0].dtype), len(probed)
    while parts:  # let go of each as it is taken over, so that there is never a second copy of all
        part = parts.pop()
        place -= len(part)
        found[place : place + len(part)] = part
    return found


def fit_blocks(
    job: FitJob, samples: Handle, probes: Handle | None = None, progress: Progress | None = None
) -> FitSummary:
    """Every node block once, and their summaries merged as a tree."""
    fit = delayed(tasks.fit_block, pure=False)

    def blocks() -> tuple[list[Delayed], list[Delayed]]:
        shared = [once(value, name) for value, name in ((job, "job"), (samples, "samples"), (probes, "probes"))]
        all_blocks = [fit(*shared, index) for index in range(job.plan.n_blocks)]
        return merged(all_blocks, tasks.merge_summaries), all_blocks

    store = job.opened_store
    return compute_despite_losses(blocks, lambda: int(store.blocks_done().sum()) if store else 0, progress)[0]


def merged(parts: list[Delayed], merge: Callable[[Sequence[Any]], Any]) -> list[Delayed]:
    """Results of many tasks -> one task that has them all, a few at a time; nothing stays nothing."""
    join, level = delayed(merge, pure=False), parts
    while len(level) > 1:
        level = [join(level[i : i + MERGE_FAN_IN]) for i in range(0, len(level), MERGE_FAN_IN)]
    return level


def project_selected(
    job: FitJob, samples: Handle, weights: NDArray[np.float32], progress: Progress | None = None
) -> NDArray[np.float32]:
    """(node, input) few weights -> (node, sample) training values sorted by class."""
    project = delayed(tasks.project_rows, pure=False)
    shared_job, shared_weights = once(job, "job"), once(weights, "weights")
    ranges = row_tasks(samples, job.plan.n_samples, job.plan.n_inputs, job.plan.samples_per_projection(len(weights)))
    at_a_time = max(FEWEST_AT_A_TIME, 2 * job.plan.tasks_at_a_time)
    values = np.empty((len(weights), job.plan.n_samples), np.float32)
    place = np.empty(job.plan.n_samples, np.intp)
    place[np.argsort(job.codes, kind="stable")] = np.arange(job.plan.n_samples)
    # A few at a time: together, the results of all tasks may be more than the workers can hold.
    for first in range(0, len(ranges), at_a_time):
        some = ranges[first : first + at_a_time]
        work = [project(shared_job, part, shared_weights, start, stop) for start, stop, part in some]
        for (start, _, _), part in zip(some, compute(work, here=is_here(samples)), strict=True):
            values[:, place[start : start + part.shape[1]]] = part
        if progress:
            progress(first + len(some), len(ranges))
    return values


def respond(
    job: FitJob,
    samples: Handle | None,
    points: NDArray,
    rule: str | float,
    bandwidth_spread: str,
    density: str,
    progress: Progress | None = None,
    offsets: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """(point, input) -> (point, class, node) activations of every node, block by block.

    Points may be moved by (point, class, node) offsets.
    """
    activate = delayed(tasks.respond_block, pure=False)
    shared = [once(value, name) for value, name in ((job, "job"), (samples, "samples"), (points, "points"))]
    moved = once(offsets, "offsets")
    work = [activate(*shared, rule, bandwidth_spread, density, moved, index) for index in range(job.plan.n_blocks)]
    return np.concatenate(compute(work, progress), axis=2)
