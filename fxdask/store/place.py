"""Where stores are: paths and URLs."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["beside", "is_local", "is_partial", "store_url", "working_url"]

PARTIAL_FILE = re.compile(r"\.[0-9a-f]{32}\.partial$")
"""How Zarr names a file until it is whole."""


def store_url(place: str | Path) -> str:
    """A path or URL -> an address that means the same in every process of this machine."""
    text = str(place).removeprefix("file://")
    return str(Path(text).expanduser().resolve()) if is_local(text) else text.rstrip("/")


def is_local(url: str) -> bool:
    """Whether an address is a path, and no URL."""
    return "://" not in url


def is_partial(name: str) -> bool:
    """Whether this is a file that its writer has not finished, or never will."""
    return bool(PARTIAL_FILE.search(name))


def beside(url: str, word: str) -> str:
    """A hidden name in the same folder, for what belongs to a store but must outlast its being replaced."""
    folder, slash, name = url.rpartition("/")
    return f"{folder}{slash}.{name}.{word}"


def working_url(url: str, token: str) -> str:
    """Where to work on what shall stand at ``url`` once it is complete: a hidden folder beside it, named by the token.

    Object stores cannot rename, so there the work is done in place.
    """
    return beside(url, f"next-{token}") if is_local(url) else url
