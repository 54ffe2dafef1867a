"""The Dask client that is connected, if there is one."""

from __future__ import annotations

from distributed import Client, default_client, get_worker

from fxdask.errors import ClusterError

__all__ = ["active_client", "is_inside_task"]


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
