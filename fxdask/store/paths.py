"""Where stores and samples are: paths and URLs, and Zarr's way to both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from zarr.storage import FsspecStore

from fxdask.errors import InvalidInputError

__all__ = [
    "files_at",
    "is_local",
    "is_partial",
    "object_store",
    "sibling_url",
    "store_url",
    "why_unreachable",
    "working_url",
    "zarr_location",
]

FRESH = {"use_listings_cache": False}
NO_URL = re.compile(r"[a-z][a-z0-9+.-]+:(/(?!/)|/*$|//.+//)")
"""What becomes of a URL that goes through a Path, one that names nothing, and one with an empty name in it."""
PARTIAL_FILE = re.compile(r"\.[0-9a-f]{32}\.partial$")
"""How Zarr names a file until it is whole."""


def store_url(place: str | Path) -> str:
    """A path or URL -> an address that means the same in every process of this machine."""
    if not isinstance(place, (str, Path)):
        raise InvalidInputError(f"a store is named by a path or a URL, not by {place!r}")
    text = str(place).removeprefix("file://")
    if NO_URL.match(text):
        raise InvalidInputError(f"{place} is neither a path nor a URL; a URL is a text such as s3://bucket/name")
    if not is_local(text):
        return text.rstrip("/")
    try:
        return str(Path(text).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInputError(f"{text!r} is no path: {error}") from error


def is_local(url: str) -> bool:
    """Whether an address is a path, and no URL."""
    return "://" not in url


def is_partial(name: str) -> bool:
    """Whether this is a file that its writer has not finished, or never will."""
    return bool(PARTIAL_FILE.search(name))


def zarr_location(url: str) -> str | FsspecStore:
    """What Zarr opens for this address."""
    return url if is_local(url) else object_store(url)


def object_store(url: str) -> FsspecStore:
    """What is behind a URL, through fsspec.

    Listings are not remembered: other processes write what this one looks for.
    """
    with _naming(url):
        return FsspecStore.from_url(url, storage_options=FRESH)


def files_at(url: str) -> tuple[Any, str]:
    """A path or URL -> the file system that it is on, and its path there."""
    if is_local(url):
        return fsspec.filesystem("file"), url  # by name, as fsspec reads more into a path than there is
    with _naming(url):
        return fsspec.core.url_to_fs(url, **FRESH)


@contextmanager
def _naming(url: str) -> Iterator[None]:
    """Turn a URL that nothing here can open into a sentence."""
    try:
        yield
    except ImportError as error:
        remedy = "pip install 'fxdask[s3]'" if url.startswith("s3://") else "install that"
        raise InvalidInputError(f"{url} needs a package that is not here ({error}); {remedy}") from error
    except ValueError as error:
        raise InvalidInputError(f"{url} is no place that fxdask can reach: {error}") from error


def why_unreachable(url: str) -> str:
    """In words, why this process does not see what is at an address; nothing where it does."""
    try:
        files, path = files_at(url)
        return "" if files.exists(path) else "it is not there"
    except Exception as error:  # of whatever client the URL is for
        return " ".join(str(error).split())


def sibling_url(url: str, word: str) -> str:
    """A hidden name in the same folder, for what belongs to a store but must outlast its being replaced."""
    folder, slash, name = url.rpartition("/")
    return f"{folder}{slash}.{name}.{word}"


def working_url(url: str, token: str) -> str:
    """Where to work on what shall stand at ``url`` once it is complete: a hidden folder beside it, named by the token.

    Object stores cannot rename, so there the work is done in place.
    """
    return sibling_url(url, f"next-{token}") if is_local(url) else url
