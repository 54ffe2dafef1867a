"""Small text files beside stores."""

from __future__ import annotations

from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, text: str) -> None:
    """Write a file so that every reader finds the old content or the new, never a part."""
    begun = path.with_name(f".{path.name}.begun")
    # A path that is no valid text may be in it: that must not prevent the file.
    begun.write_bytes(text.encode("utf-8", "replace"))
    begun.replace(path)
