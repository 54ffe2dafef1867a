"""What the connected workers must have before any work is sent to them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from distributed import Client

from fxdask.errors import ClusterError, VersionMismatchWarning
from fxdask.execution.client import active_client
from fxdask.store.paths import is_local, why_unreachable

__all__ = ["check_reachable", "check_workers"]

COMPARED = ("fxdask", "numpy", "scipy", "zarr", "dask", "distributed")


def check_workers(client: Client) -> None:
    """Refuse workers without this fxdask, and tell of other libraries that are not the same there."""
    mine = _installed()(COMPARED)
    for address, theirs in client.run(_installed(), COMPARED, on_error="ignore").items():
        if "fxdask" not in theirs:
            raise ClusterError(
                f"the worker at {address} has no fxdask; install it where the workers run: "
                f"pip install fxdask=={mine['fxdask']}"
            )
        if theirs["fxdask"] != mine["fxdask"]:
            raise ClusterError(
                f"the worker at {address} has fxdask {theirs['fxdask']} but this process has {mine['fxdask']}; "
                "install the same version on both"
            )
        other = [
            f"{name} {theirs.get(name, 'missing')} instead of {mine[name]}"
            for name in COMPARED
            if theirs.get(name) != mine[name]
        ]
        if other:
            warnings.warn(
                f"the worker at {address} has {', '.join(other)}: results may differ in their last digits",
                VersionMismatchWarning,
                stacklevel=2,
            )
            return


def _installed() -> Callable[[tuple[str, ...]], Mapping[str, str]]:
    """A function that finds installed versions; being an inner one, it travels whole to workers without fxdask."""

    def installed(names: tuple[str, ...]) -> Mapping[str, str]:
        found = {}
        for name in names:
            with suppress(PackageNotFoundError):
                found[name] = version(name)
        return found

    return installed


def check_reachable(url: str | None, what: str) -> None:
    """Refuse a place that this process sees and some worker does not."""
    client = active_client()
    if client is None or url is None or why_unreachable(url):
        return
    for address, reason in client.run(why_unreachable, url, on_error="ignore").items():
        if reason:
            remedy = (
                "put it on a disk that all workers share, or name it by a URL"
                if is_local(url)
                else "workers need the same packages, credentials and endpoint as this process"
            )
            raise ClusterError(f"the worker at {address} cannot see {what} at {url} ({reason}); {remedy}")
