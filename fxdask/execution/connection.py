"""Connecting to a Dask cluster."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Client
from distributed.comm import connect
from distributed.security import Security

from fxdask.errors import ClusterError
from fxdask.execution import waiting

__all__ = ["ClusterAddress", "connected"]

SECONDS_TO_CONNECT, FEWEST_SECONDS = 10, 1


@dataclass(frozen=True, kw_only=True)
class ClusterAddress:
    """The address of a scheduler, and the certificates for the connection.

    Without certificates, those of Dask's own configuration are used, if it has any.
    """

    address: str | None = None
    scheduler_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def check(self) -> None:
        """Check the arguments before a connection is tried."""
        if self.address and self.scheduler_file:
            raise ClusterError("both an address and a scheduler file were given; give only one of them")
        files = {"tls_ca_file": self.tls_ca_file, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        named = {name: file for name, file in files.items() if file}
        if named and len(named) < len(files):
            missing = ", ".join(name for name in files if name not in named)
            raise ClusterError(
                f"TLS needs {len(files)} files but only {len(named)} {'was' if len(named) == 1 else 'were'} given; "
                f"also give {missing}"
            )
        if named and not (self.address or self.scheduler_file):
            raise ClusterError("TLS files were given without a scheduler; also give its address or scheduler file")
        for file in (*named.values(), *([self.scheduler_file] if self.scheduler_file else [])):
            if not Path(file).is_file():
                raise ClusterError(f"there is no file {file}; correct the path")

    @property
    def security(self) -> Security | None:
        """The certificates, with encryption required; None without certificates."""
        if self.tls_ca_file is None:
            return None
        return Security(
            tls_ca_file=self.tls_ca_file,
            tls_client_cert=self.tls_cert,
            tls_client_key=self.tls_key,
            require_encryption=True,
        )

    @property
    def resolved(self) -> str:
        """The address, read from the scheduler file if that was given."""
        if self.address or self.scheduler_file is None:
            return str(self.address)
        try:
            found = json.loads(Path(self.scheduler_file).read_text())["address"]
            if not isinstance(found, str) or not found:
                raise ValueError(f"the address is {found!r}")
            return found
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ClusterError(
                f"{self.scheduler_file} is not a scheduler file; give the file that "
                "dask scheduler --scheduler-file writes"
            ) from error


async def _try_connection(cluster: ClusterAddress, seconds: float) -> None:
    """Open a connection to the scheduler and close it."""
    options = (cluster.security or Security()).get_connection_args("client")
    # The outer timeout covers a server that accepts the connection and then sends nothing.
    comm = await asyncio.wait_for(connect(cluster.resolved, timeout=seconds, **options), seconds)
    comm.abort()


@contextmanager
def connected(
    address: str | None = None, *, wait_for_workers: int = 1, timeout: Any = None, **more: str | None
) -> Iterator[Client | None]:
    """A context with a client of a scheduler; without an address, the client is None.

    Parameters
    ----------
    address : str, optional
        Such as ``tcp://host:8786``, or ``tls://host:8786`` with certificates.
    wait_for_workers : int, default=1
        Wait until the cluster has so many workers.
    timeout : float or str, optional
        How long to wait for them, in seconds or as a text such as "5m"; if not given, Dask's setting
        ``fxdask.worker-timeout``, which is "5m" unless it is changed. The scheduler itself must answer within
        10 seconds, or within this time if it is shorter (but not below 1 second).
    scheduler_file : path, optional
        The file that ``dask scheduler --scheduler-file`` writes, instead of an address.
    tls_ca_file, tls_cert, tls_key : path, optional
        Certificate of the authority, certificate of the client, and its key.

    Examples
    --------
    >>> from fxdask import connected
    >>> with connected(None) as client:
    ...     print(client)
    None
    """
    cluster = ClusterAddress(address=address, **more)
    cluster.check()
    seconds = waiting.checked_seconds(timeout)
    if address is None and cluster.scheduler_file is None:
        yield None
        return
    with _client(cluster, min(max(seconds, FEWEST_SECONDS), SECONDS_TO_CONNECT)) as client:
        waiting.wait_for_workers(client, wait_for_workers, seconds)
        yield client


def _client(cluster: ClusterAddress, seconds: float) -> Client:
    address = cluster.resolved
    secured: dict[str, Any] = {} if cluster.security is None else {"security": cluster.security}
    try:
        # A Client that fails to connect leaves its event loop running, which disturbs later ones.
        # The trial runs on another thread, because this one may already have a running event loop.
        with ThreadPoolExecutor(1) as thread:
            thread.submit(asyncio.run, _try_connection(cluster, seconds)).result()
        return Client(address, timeout=SECONDS_TO_CONNECT, **secured)
    except MemoryError as error:
        # Dask takes the first bytes for a length; those of another protocol give a very large one.
        raise ClusterError(
            f"no Dask scheduler answers at {address}: the server there uses another protocol; check the address"
        ) from error
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or f"no answer within {seconds:g} s"
        remedy = "check the address, and that the scheduler runs"
        if cluster.security is not None and not address.startswith("tls://"):
            remedy = "with TLS files, use an address that begins with tls://"
        raise ClusterError(f"no Dask scheduler answers at {address}: {reason}; {remedy}") from error
