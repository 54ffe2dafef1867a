"""Paths and URLs of stores and samples, and how Zarr and fsspec open them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fsspec
from zarr.storage import FsspecStore

from fxdask.errors import InvalidInputError

__all__ = [
    "NOT_THERE",
    "checked_store_url",
    "file_version",
    "files_at",
    "hidden_url",
    "is_hidden",
    "is_local",
    "is_partial",
    "object_store",
    "sibling_url",
    "store_url",
    "why_unreachable",
    "zarr_location",
]

NOT_THERE = "it does not exist"
NEXT = "next-"
FRESH = {"use_listings_cache": False}
NO_URL = re.compile(r"[a-z][a-z0-9+.-]+:(/(?!/)|/*$|//.+//)")
"""A URL that was turned into a Path, one without a name, and one with an empty part."""
LONGEST_NAME = 255 - len(".") - len(".lease-") - 32
"""Bytes of a store's name: the files beside it begin with it, and file systems allow 255 bytes."""
PARTIAL_FILE = re.compile(r"\.[0-9a-f]{32}\.partial$")
"""How Zarr names a file while it writes it."""


def store_url(path: str | Path) -> str:
    """A path or URL -> an absolute path, or a URL without a trailing slash."""
    if not isinstance(path, (str, Path)):
        raise InvalidInputError(f"a store must be a path or a URL, not {path!r}; pass a str or a pathlib.Path")
    text = str(path).removeprefix("file://")
    if NO_URL.match(text):
        raise InvalidInputError(f"{path} is neither a path nor a URL; pass a URL as a str such as s3://bucket/name")
    if not is_local(text):
        return text.rstrip("/")
    try:
        return str(Path(text).expanduser().resolve())
    except (OSError, RuntimeError, ValueError) as error:
        raise InvalidInputError(f"{text!r} is not a valid path ({error}); choose another path") from error


def checked_store_url(path: str | Path) -> str:
    """The URL of a store to write; refuse a link that leads nowhere, and a name that leaves no room for hidden ones."""
    url = store_url(path)
    if not is_local(url):
        return url
    given = Path(str(path).removeprefix("file://")).expanduser()
    if given.is_symlink() and not given.exists():
        raise InvalidInputError(
            f"{path} is a link to {url}, which does not exist; create that, remove the link, or choose another path"
        )
    length = len(os.fsencode(Path(url).name))
    if length > LONGEST_NAME:
        raise InvalidInputError(
            f"the name {Path(url).name[:20]}... has {length} bytes but a store's may have {LONGEST_NAME}, because "
            "files beside it have longer names; choose a shorter name"
        )
    return url


def is_local(url: str) -> bool:
    """Whether this is a path and not a URL."""
    return "://" not in url


def is_partial(name: str) -> bool:
    """Whether this is the name of a file that Zarr has not finished writing."""
    return bool(PARTIAL_FILE.search(name))


def zarr_location(url: str) -> str | FsspecStore:
    """What Zarr opens for this path or URL."""
    return url if is_local(url) else object_store(url)


def object_store(url: str) -> FsspecStore:
    """The object store at a URL, through fsspec.

    Listings are not cached, because other processes write into the same store.
    """
    # s3fs asks for the size of every file before it reads it, unless it may read only one part at a time.
    options = FRESH | ({"max_concurrency": 1} if url.startswith(("s3://", "s3a://")) else {})
    with _url_errors(url):
        return FsspecStore.from_url(url, storage_options=options)


def files_at(url: str) -> tuple[Any, str]:
    """A path or URL -> its file system, and its path in that file system."""
    if is_local(url):
        return fsspec.filesystem("file"), url  # not url_to_fs, which gives "::" in a path a meaning
    with _url_errors(url):
        return fsspec.core.url_to_fs(url, **FRESH)


@contextmanager
def _url_errors(url: str) -> Iterator[None]:
    """Report a URL that cannot be opened on this machine in one sentence."""
    try:
        yield
    except ImportError as error:
        remedy = "run pip install 'fxdask[s3]'" if url.startswith("s3://") else "install that package"
        raise InvalidInputError(f"{url} needs a package that is not installed ({error}); {remedy}") from error
    except ValueError as error:
        raise InvalidInputError(f"{url} cannot be opened ({error}); check the URL") from error


def file_version(info: Mapping[str, Any]) -> Any:
    """What changes with the content of a file, from what fsspec says about it; None if its storage has nothing."""
    # Object stores have a tag of the content; file systems have a modification time.
    return info.get("ETag") or info.get("LastModified") or info.get("mtime")


def why_unreachable(url: str) -> str:
    """The reason why this process cannot find a path or URL; empty if it can."""
    try:
        files, path = files_at(url)
        return "" if files.exists(path) else NOT_THERE
    except Exception as error:  # clients of object stores have exceptions of their own
        return " ".join(str(error).split())


def sibling_url(url: str, word: str) -> str:
    """A hidden name in the same folder, for files that belong to a store but must survive its replacement."""
    folder, slash, name = url.rpartition("/")
    return f"{folder}{slash}.{name}.{word}"


def hidden_url(url: str, token: str) -> str:
    """Where a store is written that replaces another one: a hidden name beside ``url`` with the token in it."""
    return sibling_url(url, f"{NEXT}{token}")


def is_hidden(url: str) -> bool:
    """Whether this is a path or URL of :func:`hidden_url`, where only fxdask writes."""
    name = url.rpartition("/")[2]
    return name.startswith(".") and f".{NEXT}" in name
