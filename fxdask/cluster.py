"""Connecting to a Dask cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from distributed import Client

from fxdask.errors import ClusterError

__all__ = ["connected"]

SECONDS_TO_CONNECT = 10


@contextmanager
def connected(address: str | None) -> Iterator[Client | None]:
    """A client of the scheduler at this address, for the length of the block; without an address, none.

    Examples
    --------
    >>> from fxdask.cluster import connected
    >>> with connected(None) as client:
    ...     print(client)
    None
    """
    if address is None:
        yield None
        return
    try:
        client = Client(address, timeout=SECONDS_TO_CONNECT)
    except (OSError, ValueError) as error:
        raise ClusterError(f"no Dask scheduler answers at {address}: {error}") from error
    with client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise ClusterError(f"the scheduler at {address} has no workers; start some with: dask worker {address}")
        yield client
