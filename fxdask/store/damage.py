"""The error that reports a damaged store."""

from __future__ import annotations

from fxdask.errors import StoreFormatError

__all__ = ["RESTORE", "damaged"]

RESTORE = "restore it from a copy, or make it again at another path"


def damaged(url: str, problem: str, remedy: str = RESTORE) -> StoreFormatError:
    """The error for a store whose content is not what fxdask wrote: the problem, and what to do."""
    return StoreFormatError(f"{url} is damaged: {problem}; {remedy}")
