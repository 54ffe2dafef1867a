"""The Dask client that is connected, if there is one."""

from __future__ import annotations

from distributed import Client, default_client, get_worker

from fxdask.errors import ClusterError

__all__ = ["active_client", "is_inside_task"]


def active_client() -> Client | None:
    """The connected client, if there is one and this is not already one of its tasks.

    A task that waited for other tasks of its own cluster could wait for the thread it occupies.
    """
    if is_inside_task():
        return None
    try:
        client = default_client()
    except ValueError:
        return None
    if client.asynchronous:
        raise ClusterError(
            "fxdask waits for its results, which an asynchronous Client does not allow; "
            "connect one without asynchronous=True"
        )
    return client


def is_inside_task() -> bool:
    """Whether this is code of a task on a worker."""
    try:
        get_worker()
    except ValueError:
        return False
    return True
