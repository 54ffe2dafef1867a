"""Values of this process that are found again by their keys: those in use, and the most recent ones."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from threading import Lock
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

__all__ = ["RecentValues"]

T = TypeVar("T")


class RecentValues(Generic[T]):
    """A cache: a value is kept as long as anything uses it, and the most recent ones longer.

    Parameters
    ----------
    size_of : function
        Value -> its number of bytes. It is called again whenever values are kept, because values may grow.
    most_bytes : int
        Bytes of the values that are kept although nothing uses them; the most recent one is kept whatever its size.
    """

    def __init__(self, size_of: Callable[[T], int], most_bytes: int) -> None:
        self._size_of, self._most_bytes = size_of, most_bytes
        self._known: WeakValueDictionary[Hashable, T] = WeakValueDictionary()
        self._kept: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = Lock()

    def get(self, key: Hashable, make: Callable[[], T]) -> T:
        """The value of this key, made if it is not known, and from now on the most recent one."""
        with self._lock:
            value = self._known.get(key)
            if value is None:
                value = self._known[key] = make()
            self._kept[key] = value
            self._kept.move_to_end(key)
            n_bytes = sum(map(self._size_of, self._kept.values()))
            while n_bytes > self._most_bytes and len(self._kept) > 1:
                _, oldest = self._kept.popitem(last=False)
                n_bytes -= self._size_of(oldest)
            return value

    def clear(self) -> None:
        """Keep no values any more; those in use are still found."""
        with self._lock:
            self._kept.clear()
