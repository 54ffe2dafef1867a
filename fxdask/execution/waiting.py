"""Wait until a cluster has workers: with work queued, so that an adaptive cluster starts some, and with a timeout."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import Client, Future

from fxdask.errors import ClusterError, InvalidInputError
from fxdask.execution.client import asking, connected_workers

__all__ = ["checked_seconds", "expected_workers", "wait_for_workers"]

log = logging.getLogger(__name__)

TIMEOUT_SETTING, DEFAULT_TIMEOUT = "fxdask.worker-timeout", "5m"
SECONDS_BETWEEN_LOOKS = 0.2
SECONDS_BETWEEN_MESSAGES = 30
NO_WORKER_HAS = {"fxdask-waits-for-workers": 1}
"""A resource that keeps a task queued until its future is released."""
TASKS_PER_THREAD = 10
"""An adaptive cluster wants one thread for 5 s of work, and expects 0.5 s of a task that it does not know."""
MOST_TASKS = 10_000


def checked_seconds(timeout: Any = None) -> float:
    """A number of seconds or a text such as "5m" -> seconds; None is Dask's setting ``fxdask.worker-timeout``."""
    if timeout is None:
        timeout = dask.config.get(TIMEOUT_SETTING, DEFAULT_TIMEOUT)
    seconds = math.nan
    with contextlib.suppress(KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError):
        seconds = float(parse_timedelta(timeout))
    if not seconds >= 0:
        raise InvalidInputError(f'timeout must be a number of seconds or a text such as "5m", not {timeout!r}')
    return seconds


def wait_for_workers(client: Client, n_workers: int = 1, timeout: Any = None) -> None:
    """Wait until the cluster has this many workers; refuse one that still has fewer when the time is over."""
    seconds, started, reported = checked_seconds(timeout), time.monotonic(), -math.inf
    queued: list[Future] = []
    try:
        while (found := len(workers := _workers(client))) < n_workers:
            waited = time.monotonic() - started
            if waited >= seconds:
                raise _too_few(client, found, n_workers, seconds)
            if waited - reported >= SECONDS_BETWEEN_MESSAGES:
                log.warning("waiting for workers: %d of %d are there after %.0f s", found, n_workers, waited)
                reported = waited
            _queue(client, queued, n_workers, max((worker["nthreads"] for worker in workers), default=1))
            time.sleep(SECONDS_BETWEEN_LOOKS)
    finally:
        for future in queued:
            future.release()


def _workers(client: Client) -> list[dict[str, Any]]:
    with asking(client):
        return list(connected_workers(client).values())


def _queue(client: Client, queued: list[Future], n_workers: int, threads: int) -> None:
    """Queue tasks that no worker can run: only queued work makes an adaptive cluster start workers."""
    wanted = 1 if n_workers == 1 else min(TASKS_PER_THREAD * n_workers * threads, MOST_TASKS)
    if wanted > len(queued):
        more = range(len(queued), wanted)
        queued += client.map(int, more, key="fxdask-waits-for-workers", pure=False, resources=NO_WORKER_HAS)


def _too_few(client: Client, found: int, n_workers: int, seconds: float) -> ClusterError:
    address = client.scheduler.address
    return ClusterError(
        f"the scheduler at {address} has {found or 'no'} workers after {seconds:.0f} s but {n_workers} "
        f"{'is' if n_workers == 1 else 'are'} needed; start some with: dask worker {address}, or allow more time"
    )


def expected_workers(client: Client) -> int:
    """The most workers that an adaptive cluster of this process may start; 0 for any other cluster."""
    adaptive = getattr(client.cluster, "_adaptive", None)
    most = getattr(adaptive, "maximum", 0)
    return int(most) if 0 < most < math.inf else 0
