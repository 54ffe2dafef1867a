"""One BLAS thread while fxdask computes in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from threadpoolctl import threadpool_limits

__all__ = ["one_blas_thread"]

_lock = Lock()
_users = 0
_limits: threadpool_limits | None = None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread: the parallelism is in the tasks, and the last bits must not depend on it.

    The limit belongs to the whole process, so overlapping uses from several threads share one:
    the first sets it, the last restores what was there.
    """
    global _users, _limits  # noqa: PLW0603 - the limit itself is global to the process
    with _lock:
        if _users == 0:
            _limits = threadpool_limits(limits=1, user_api="blas")
        _users += 1
    try:
        yield
    finally:
        with _lock:
            _users -= 1
            if _users == 0 and _limits is not None:
                _limits.restore_original_limits()
                _limits = None
