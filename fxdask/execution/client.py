"""The Dask client that is connected, if there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import dask
from distributed import Client, default_client, get_worker
from distributed.client import FutureCancelledError
from distributed.comm import CommClosedError

from fxdask.errors import ClusterError, FxdaskError

__all__ = ["active_client", "asking", "connected_workers", "is_inside_task", "no_answer", "one_span", "sending"]


def active_client() -> Client | None:
    """The connected client; None without one, or inside a task.

    A task that waits for other tasks of its cluster could deadlock, because it occupies a thread.
    """
    if is_inside_task():
        return None
    try:
        client = default_client()
    except ValueError:
        return None
    if client.asynchronous:
        raise ClusterError(
            "fxdask waits for results, which an asynchronous Client does not allow; "
            "connect a Client without asynchronous=True"
        )
    return client


def is_inside_task() -> bool:
    """Whether this code runs in a task on a worker."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


def connected_workers(client: Client) -> dict[str, dict[str, Any]]:
    """Address of each worker -> what the scheduler knows of it.

    ``client.scheduler_info`` is sometimes without workers: a callback of the client, which asks for none of
    them every 2 seconds, may overwrite the answer before it is returned.
    """
    if client.scheduler is None:
        raise ClusterError("the client is closed; connect a new one and make the same call again")
    return client.sync(client.scheduler.identity, n_workers=-1)["workers"]


@contextmanager
def one_span(name: str) -> Iterator[None]:
    """The tasks of all calls of this name as one span of Dask's diagnostics.

    Otherwise every stage is a span of its own, and a scheduler keeps what it knows of a span as long as it lives. So
    the span has the same id in all calls, which ``distributed.span`` would choose anew.
    """
    if "span" in dask.get_annotations():  # of the caller, or of a call around this one
        yield
        return
    with dask.annotate(span={"name": (name,), "ids": (name.replace(" ", "-"),)}):
        yield


@contextmanager
def asking(client: Client) -> Iterator[None]:
    """Report a scheduler that was lost while this process asked it or its workers something."""
    try:
        yield
    except FxdaskError:
        raise
    except OSError as lost:  # errors of the workers themselves are returned, not raised
        raise no_answer(client) from lost


@contextmanager
def sending(client: Client) -> Iterator[None]:
    """Report a scheduler that was lost while it had work of this process; errors of tasks are left as they are."""
    try:
        yield
    except (CommClosedError, FutureCancelledError) as lost:
        raise no_answer(client) from lost


def no_answer(client: Client) -> ClusterError:
    """The error about a scheduler that died or cannot be reached; one that was restarted knows nothing of the work."""
    return ClusterError(
        f"the scheduler at {client.scheduler.address} no longer answers, or was restarted; "
        "make the same call again when it does, to resume"
    )
