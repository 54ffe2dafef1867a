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

__all__ = ["ClusterAddress", "connected"]

SECONDS_TO_CONNECT = 10


@dataclass(frozen=True, kw_only=True)
class ClusterAddress:
    """Where a scheduler is, and the certificates to meet it with.

    Without certificates Dask's own configuration decides, which may name some.
    """

    address: str | None = None
    scheduler_file: str | None = None
    tls_ca_file: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None

    def check(self) -> None:
        """Refuse what cannot be connected to, before the network is asked."""
        if self.address and self.scheduler_file:
            raise ClusterError("name the scheduler by its address or by its file, not by both")
        files = {"tls_ca_file": self.tls_ca_file, "tls_cert": self.tls_cert, "tls_key": self.tls_key}
        named = {name: file for name, file in files.items() if file}
        if named and len(named) < len(files):
            missing = ", ".join(name for name in files if name not in named)
            raise ClusterError(f"TLS needs three files, of which {missing} is missing")
        if named and not (self.address or self.scheduler_file):
            raise ClusterError("TLS files are of no use without the address of a scheduler")
        for file in (*named.values(), *([self.scheduler_file] if self.scheduler_file else [])):
            if not Path(file).is_file():
                raise ClusterError(f"there is no file {file}")

    @property
    def security(self) -> Security | None:
        """The certificates, with which nothing goes unencrypted."""
        if self.tls_ca_file is None:
            return None
        return Security(
            tls_ca_file=self.tls_ca_file,
            tls_client_cert=self.tls_cert,
            tls_client_key=self.tls_key,
            require_encryption=True,
        )

    @property
    def named(self) -> str:
        """The scheduler's address, as far as it is known."""
        if self.address or self.scheduler_file is None:
            return str(self.address)
        try:
            return str(json.loads(Path(self.scheduler_file).read_text())["address"])
        except (ValueError, KeyError, TypeError) as error:
            raise ClusterError(f"{self.scheduler_file} is no scheduler file of Dask") from error


async def _send_keepalive(place: ClusterAddress) -> None:
    """Connect to the scheduler and hang up."""
    words = (place.security or Security()).get_connection_args("client")
    # Whoever takes the connection and then says nothing is no scheduler either.
    comm = await asyncio.wait_for(connect(place.named, timeout=SECONDS_TO_CONNECT, **words), SECONDS_TO_CONNECT)
    comm.abort()


@contextmanager
def connected(address: str | None = None, **more: str | None) -> Iterator[Client | None]:
    """A client of a scheduler for the length of the block; without an address, none.

    Parameters
    ----------
    address : str, optional
        Such as ``tcp://host:8786``, or ``tls://host:8786`` with certificates.
    scheduler_file : path, optional
        The file that a scheduler was told to write, instead of its address.
    tls_ca_file, tls_cert, tls_key : path, optional
        The certificate authority's, and one's own certificate and key.

    Examples
    --------
    >>> from fxdask import connected
    >>> with connected(None) as client:
    ...     print(client)
    None
    """
    place = ClusterAddress(address=address, **more)
    place.check()
    if address is None and place.scheduler_file is None:
        yield None
        return
    with _client(place) as client:
        if not client.scheduler_info(n_workers=-1)["workers"]:
            raise ClusterError(
                f"the scheduler at {place.named} has no workers; start some with: dask worker {place.named}"
            )
        yield client


def _client(place: ClusterAddress) -> Client:
    secured: dict[str, Any] = {} if place.security is None else {"security": place.security}
    try:
        # A Client that cannot connect leaves its event loop behind, which disturbs those that come after it.
        with ThreadPoolExecutor(1) as apart:  # as this thread may have an event loop of its own
            apart.submit(asyncio.run, _send_keepalive(place)).result()
        return Client(place.named, timeout=SECONDS_TO_CONNECT, **secured)
    except MemoryError as error:  # the first bytes, which are a length in Dask's words, are something else in others'
        raise ClusterError(f"no Dask scheduler answers at {place.named}: who does speaks another protocol") from error
    except (OSError, ValueError, TypeError, RuntimeError) as error:
        reason = " ".join(str(error).split()) or f"nothing was heard for {SECONDS_TO_CONNECT} s"
        if place.security is not None and not place.named.startswith("tls://"):
            reason += "; with TLS files the address begins with tls://"
        raise ClusterError(f"no Dask scheduler answers at {place.named}: {reason}") from error
