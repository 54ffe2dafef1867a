"""Small files beside stores."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

__all__ = ["write_atomically"]


def write_atomically(path: Path, content: str | bytes) -> None:
    """Write a file so that readers find either the old content or the new content, never a part."""
    draft = path.with_name(f".{path.name}.begun")
    try:
        # A text may contain a path that is not valid UTF-8; the file is written nevertheless.
        draft.write_bytes(content.encode("utf-8", "replace") if isinstance(content, str) else content)
        draft.replace(path)
    except OSError:
        # On a full disk, a part of a file would only take space.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise
