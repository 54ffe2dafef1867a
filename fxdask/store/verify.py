"""A finished store held against its manifest, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fxdask.errors import StoreFormatError
from fxdask.store.faults import persistent
from fxdask.store.group import open_group, peek_header
from fxdask.store.manifest import Manifest
from fxdask.store.place import store_url

__all__ = ["Verified", "verify_store"]


@dataclass(frozen=True)
class Verified:
    """What a look at every file of a store found."""

    store: str
    n_files: int
    damages: list[str]
    """In words, each file that is not what was written."""
    unknown: list[str]
    """Files that the manifest does not know: harmless, and of no use."""


@persistent
def verify_store(place: str | Path) -> Verified:
    """Read every file of a finished model or of finished scores, and hold it against the manifest."""
    url = store_url(place)
    header = peek_header(url)
    if header is None:
        raise StoreFormatError(f"there is no fxdask store at {url}")
    group, _ = open_group(url, header["kind"])
    manifest = Manifest(group, url)
    return Verified(url, len(manifest.names) + 1, manifest.damages(), manifest.unknown_files())
