"""Check every byte of a finished store against its manifest, and every page of a score table."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fxdask.errors import StoreFormatError
from fxdask.store.group import open_group, peek_header
from fxdask.store.manifest import Manifest
from fxdask.store.paths import store_url
from fxdask.store.retry import retried
from fxdask.store.score_table import ScoreTable, is_table

__all__ = ["VerifyResult", "verify_store"]


@dataclass(frozen=True)
class VerifyResult:
    """The result of checking every file of a store."""

    store: str
    n_files: int
    damaged: list[str]
    """One description per file that was changed or is missing."""
    unknown: list[str]
    """Files that are not in the manifest; fxdask does not read them."""


@retried
def verify_store(path: str | Path) -> VerifyResult:
    """Read every file of a finished store, and check it against the manifest; the files of tables have checksums."""
    url = store_url(path)
    if is_table(url):
        table = ScoreTable.open(url)
        return VerifyResult(url, table.n_files + 1, table.damaged_files(whole=True), table.unknown_files())
    header = peek_header(url)
    if header is None:
        raise StoreFormatError(f"there is no fxdask store at {url}; check the path")
    group, _ = open_group(url, header["kind"])
    manifest = Manifest(group, url)
    return VerifyResult(url, len(manifest.names) + 1, manifest.find_damage(), manifest.unknown_files())
