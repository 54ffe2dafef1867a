"""Footers of Parquet files that this process has read: to parse one of 500 columns takes longer than to read eight."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from threading import Lock
from typing import Any

__all__ = ["FooterCache"]


class FooterCache:
    """The footers that were used last, up to a total length in their files.

    Parameters
    ----------
    most_bytes : int
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._lock = Lock()
        self._footers: OrderedDict[Hashable, Any] = OrderedDict()
        self._n_bytes = 0

    def get(self, key: Hashable) -> Any:
        """The footer of this key, or None."""
        with self._lock:
            if key in self._footers:
                self._footers.move_to_end(key)
            return self._footers.get(key)

    def put(self, key: Hashable, footer: Any) -> None:
        """Keep a footer, and drop those that were not used for the longest time."""
        with self._lock:
            if key not in self._footers:
                self._footers[key] = footer
                self._n_bytes += footer.serialized_size
            while self._n_bytes > self._most_bytes:
                _, dropped = self._footers.popitem(last=False)
                self._n_bytes -= dropped.serialized_size

    def clear(self) -> None:
        """Drop all footers."""
        with self._lock:
            self._footers.clear()
            self._n_bytes = 0
