"""The error that reports a damaged store, and the check of the numbers in its header."""

from __future__ import annotations

from typing import Any

from fxdask.errors import StoreFormatError

__all__ = ["RESTORE", "check_count", "damaged"]

RESTORE = "restore it from a copy, or make it again at another path"
MOST = 2**63 - 1


def damaged(url: str, problem: str, remedy: str = RESTORE) -> StoreFormatError:
    """The error for a store whose content is not what fxdask wrote: the problem, and what to do."""
    return StoreFormatError(f"{url} is damaged: {problem}; {remedy}")


def check_count(url: str, name: str, value: Any, least: int) -> None:
    """Refuse a header whose number of this name is none, or out of range."""
    if type(value) is not int or not least <= value <= MOST:
        raise damaged(url, f"its header has {name} {value!r:.60} instead of a number from {least} on")
