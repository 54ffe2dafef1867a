"""Checks of the connected workers before work is sent to them: their versions, and access to files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version

from distributed import Client

from fxdask.errors import ClusterError, VersionMismatchWarning, warn_user
from fxdask.execution.client import active_client, asking
from fxdask.store.paths import is_local, why_unreachable

__all__ = ["COMPARED", "check_reachable", "check_workers", "installed_versions"]

COMPARED = ("fxdask", "numpy", "scipy", "zarr", "dask", "distributed")


def check_workers(client: Client) -> None:
    """Refuse workers without this version of fxdask, and warn if other libraries differ."""
    mine = installed_versions()(COMPARED)
    for address, theirs in client.run(installed_versions(), COMPARED, on_error="ignore").items():
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
            warn_user(
                f"the worker at {address} has {', '.join(other)}: results may differ in their last digits; "
                "install the same versions on both",
                VersionMismatchWarning,
            )
            return


def installed_versions() -> Callable[[tuple[str, ...]], Mapping[str, str]]:
    """A function that returns installed versions; as an inner function it is pickled by value, without fxdask.

    Imported libraries are asked themselves: to look for those installed takes milliseconds, much for a short call.
    """

    def installed(names: tuple[str, ...]) -> Mapping[str, str]:
        found = {}
        for name in names:
            with suppress(PackageNotFoundError):
                found[name] = getattr(sys.modules.get(name), "__version__", None) or version(name)
        return found

    return installed


def check_reachable(url: str | None, what: str) -> None:
    """Refuse a path or URL that this process can reach but some worker cannot."""
    client = active_client()
    if client is None or url is None or why_unreachable(url):
        return
    with asking(client):
        reasons = client.run(why_unreachable, url, on_error="ignore")
    for address, reason in reasons.items():
        if reason:
            remedy = (
                "put it on a disk that all workers share, or use a URL of an object store"
                if is_local(url)
                else "give the workers the same packages, credentials and endpoint as this process"
            )
            raise ClusterError(f"the worker at {address} cannot reach {what} at {url} ({reason}); {remedy}")
