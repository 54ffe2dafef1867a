"""A finished store held against its manifest, byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fxdask.errors import StoreFormatError
from fxdask.store.group import open_group, peek_header
from fxdask.store.manifest import Manifest
from fxdask.store.paths import store_url
from fxdask.store.retry import retried

__all__ = ["VerifyResult", "verify_store"]


@dataclass(frozen=True)
class VerifyResult:
    """What a look at every file of a store found."""

    store: str
    n_files: int
    damaged: list[str]
    """In words, each file that is not what was written."""
    unknown: list[str]
    """Files that the manifest does not know: harmless, and of no use."""


@retried
def verify_store(place: str | Path) -> VerifyResult:
    """Read every file of a finished model or of finished scores, and hold it against the manifest."""
    url = store_url(place)
    header = peek_header(url)
    if header is None:
        raise StoreFormatError(f"there is no fxdask store at {url}")
    group, _ = open_group(url, header["kind"])
    manifest = Manifest(group, url)
    return VerifyResult(url, len(manifest.names) + 1, manifest.find_damage(), manifest.unknown_files())
