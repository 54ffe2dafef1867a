"""One BLAS thread while fxdask multiplies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

import threadpoolctl

__all__ = ["one_blas_thread"]

_lock = Lock()
_users = 0
_limit: Any = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread: the parallelism is in the tasks, and a product's last bits depend on its threads.

    The limit belongs to the whole process, so overlapping tasks share one: the first sets it,
    the last restores what was there. It serves as a decorator too. Dask's nannies set the same
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


@cache
def _controller() -> threadpoolctl.ThreadpoolController:
    """Looking for the loaded libraries takes milliseconds, so it is done once."""
    return threadpoolctl.ThreadpoolController()


def _take_control() -> None:
    """Let this thread set OpenBLAS's limit, where threadpoolctl (3.7 on) reserves that to the thread that set it last.

    The thread of the first task need not be that of the last.
    """
    clear = getattr(threadpoolctl.OpenBLASController, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)
