"""Run coroutines of Zarr stores and wait for their results.

Zarr's own synchronous calls run on one event loop in a thread of its own. Coroutines of fxdask must run on
the same loop, because the connections of an object store belong to the loop that opened them. Zarr
has no public name for its loop, so a store that records where it is read finds it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import zarr
import zarr.errors
from zarr.abc.buffer import Buffer
from zarr.storage import LocalStore, MemoryStore, StorePath

__all__ = ["exists", "run"]

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine on Zarr's event loop and return its result; callable from any thread but the loop's own."""
    try:
        loop = _zarr_loop()
        if _running_loop() is loop:
            raise RuntimeError("a coroutine on Zarr's event loop cannot wait for another one; use await instead")
    except RuntimeError:
        work.close()  # Python would warn of a coroutine that never ran
        raise
    return asyncio.run_coroutine_threadsafe(work, loop).result()


def exists(path: StorePath) -> bool:
    """Whether there is a file or an object; a local file is looked at without a visit to the event loop."""
    if isinstance(path.store, LocalStore):
        return (path.store.root / path.path).exists()
    return bool(run(path.exists()))


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


@dataclass(frozen=True)
class _FoundLoop:
    """An event loop, and the process that it runs in: a forked child has no thread that runs it."""

    loop: asyncio.AbstractEventLoop
    process: int

    @property
    def is_usable(self) -> bool:
        return self.process == os.getpid() and self.loop.is_running()


_found: _FoundLoop | None = None


def _zarr_loop() -> asyncio.AbstractEventLoop:
    """Zarr's event loop in this process. Threads that look for it at the same time find the same one."""
    global _found  # noqa: PLW0603 - one loop per process
    found = _found
    if found is None or not found.is_usable:
        _found = found = _FoundLoop(_LoopFinder.find(), os.getpid())
    return found.loop


class _LoopFinder(MemoryStore):
    """An empty store that records the event loop on which Zarr reads it."""

    loop: asyncio.AbstractEventLoop | None = None

    @classmethod
    def find(cls) -> asyncio.AbstractEventLoop:
        """Let Zarr look for a group in an empty store, and return the loop that it did so on."""
        store = cls()
        with suppress(FileNotFoundError, zarr.errors.GroupNotFoundError):
            zarr.open_group(store, mode="r+", zarr_format=3)  # for "r" Zarr would copy the store
        if store.loop is None or not store.loop.is_running():
            raise RuntimeError(
                f"fxdask cannot find the event loop of zarr {zarr.__version__}; install an earlier version of zarr 3"
            )
        return store.loop

    async def get(self, *args: Any, **named: Any) -> Buffer | None:
        """Record the loop; the store is empty, so there is no value."""
        self.loop = asyncio.get_running_loop()
        return None
