"""Limiting BLAS to one thread while fxdask multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import threadpoolctl

__all__ = ["blas_of_numpy", "one_blas_thread"]

_lock = Lock()
_users = 0
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread: tasks already run in parallel, and threads affect the last bits of a product.

    The limit applies to the whole process, so overlapping tasks share it: the first task sets it and
    the last one restores the previous limit. It is also a decorator. Dask's nannies set the same
    limit by environment variables, but not every worker has a nanny.
    """
    global _users, _limit  # noqa: PLW0603 - the limit itself is global to the process
    with _lock:
        if _users == 0:
            _take_control()
            _limit = _controller().limit(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0:
                _take_control()
                _limit.restore_original_limits()
                _take_control()


def blas_of_numpy() -> dict[str, Any] | None:
    """What threadpoolctl knows of the library that multiplies NumPy's matrices; None if it does not know it."""
    found = [library for library in threadpoolctl.threadpool_info() if library["user_api"] == "blas"]
    # NumPy's wheels bring their own library, and SciPy's another one; elsewhere both use the same.
    of_wheel = [library for library in found if Path(library["filepath"]).parent.name == "numpy.libs"]
    return (of_wheel or found or [None])[0]


@cache
def _controller() -> threadpoolctl.ThreadpoolController:
    """The controller, made once because its search for loaded libraries takes milliseconds."""
    return threadpoolctl.ThreadpoolController()


def _take_control() -> None:
    """Let this thread set the limit of OpenBLAS.

    From version 3.7 on, threadpoolctl allows this only to the thread that set the limit before, but
    here the first and the last task may run on different threads.
    """
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
