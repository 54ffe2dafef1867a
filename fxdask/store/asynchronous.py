"""Run coroutines of Zarr stores and wait for their results.

Zarr's own synchronous calls run on one event loop in a thread of its own. Coroutines of fxdask must run on
the same loop, because the connections of an object store belong to the loop that opened them. Zarr
has no public name for its loop, so a store that records where it is read finds it.

A local folder has no connections, so its coroutines run in the calling thread: where all processors are
busy, as in a fit, every switch to another thread and back waits for its turn.
"""

from __future__ import annotations

import asyncio
import atexit
import os
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import zarr
import zarr.errors
from numpy.typing import NDArray
from zarr.abc.buffer import Buffer
from zarr.abc.store import Store
from zarr.storage import LocalStore, MemoryStore, StorePath

__all__ = ["exists", "read_values", "run", "run_at"]

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


def run_at(store: Store, work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that uses this store alone: for a local folder in this thread, else as :func:`run`."""
    # A thread with a running loop, as in notebooks, cannot run another one.
    if not isinstance(store, LocalStore) or _running_loop() is not None:
        return run(work)
    with _own_loop() as loop:
        return loop.run_until_complete(work)


def read_values(array: zarr.Array, selection: Any) -> NDArray:
    """Values of an array, for short reads; Zarr itself reads many chunks of a local folder at the same time."""
    values: Any = array.async_array.getitem(selection)
    return np.asarray(run_at(array.store, values))


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


class _InThisThread(ThreadPoolExecutor):
    """Runs everything at once in the thread that asks for it."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        """Run the function and return its result as a Future that is done."""
        done: Future[T] = Future()
        try:
            done.set_result(fn(*args, **kwargs))
        except BaseException as error:
            done.set_exception(error)
            if not isinstance(error, Exception):
                raise
        return done


_idle_loops: list[asyncio.AbstractEventLoop] = []
"""Loops of this process that no thread uses now."""
_parents_loops: list[asyncio.AbstractEventLoop] = []
"""Kept in a forked child, because closing them would change what its parent waits for."""


@contextmanager
def _own_loop() -> Iterator[asyncio.AbstractEventLoop]:
    """An event loop that no other thread uses meanwhile."""
    try:
        loop = _idle_loops.pop()
    except IndexError:
        loop = asyncio.new_event_loop()
        loop.set_default_executor(_InThisThread(1))
    try:
        yield loop
    finally:
        _cancel_left_tasks(loop)
        _idle_loops.append(loop)


def _cancel_left_tasks(loop: asyncio.AbstractEventLoop) -> None:
    """Cancel what an error left unfinished: the next user of the loop would go on with it, in a store of others."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))


@atexit.register
def _close_idle_loops() -> None:
    while _idle_loops:
        _idle_loops.pop().close()


def _forget_loops() -> None:
    _parents_loops.extend(_idle_loops)
    _idle_loops.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_loops)


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
