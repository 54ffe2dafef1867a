"""Retries of transient storage errors, and one-sentence messages for the other ones."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import zarr.errors

from fxdask.errors import FxdaskError, StoreReadError, StoreWriteError
from fxdask.store.damage import damaged

__all__ = ["reading", "retried", "writing"]

log = logging.getLogger(__name__)

RETRY_DELAYS = (0.5, 2.0, 8.0)
"""Seconds before each retry."""

# A busy or unreachable server may recover; a full disk, a missing file or a refused permission does not.
TRANSIENT_ERRNOS = {
    errno.EAGAIN,
    errno.EBUSY,
    errno.ECONNABORTED,
    errno.ECONNREFUSED,
    errno.ECONNRESET,
    errno.EHOSTUNREACH,
    errno.EINTR,
    errno.EIO,
    errno.EMFILE,
    errno.ENETDOWN,
    errno.ENETUNREACH,
    errno.ENFILE,
    errno.ENOBUFS,
    errno.EPIPE,
    errno.ESTALE,
    errno.ETIMEDOUT,
}
CLIENTS_OF_OBJECT_STORES = ("aiobotocore", "aiohttp", "botocore")

UNREADABLE = (
    *(ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, ZeroDivisionError),
    *(RuntimeError, MemoryError),
)
"""What Zarr and its codecs raise if metadata or chunks are damaged."""

RESUME = "solve that problem and run the same call again to resume"

_this_thread = threading.local()

P = ParamSpec("P")
T = TypeVar("T")


def retried(work: Callable[P, T]) -> Callable[P, T]:
    """Retry a function on transient storage errors; it must be safe to run twice.

    Examples
    --------
    >>> results = iter([TimeoutError(), 3])
    >>> @retried
    ... def read():
    ...     result = next(results)
    ...     if isinstance(result, Exception):
    ...         raise result
    ...     return result
    >>> read()
    3
    """

    @wraps(work)
    def with_retries(*args: P.args, **named: P.kwargs) -> T:
        if getattr(_this_thread, "is_retrying", False):
            return work(*args, **named)  # only the outer one of nested functions retries
        _this_thread.is_retrying = True
        try:
            return _retry(lambda: work(*args, **named))
        finally:
            _this_thread.is_retrying = False

    return with_retries


def _retry(work: Callable[[], T]) -> T:
    for pause in (*RETRY_DELAYS, None):
        try:
            return work()
        except Exception as error:
            if pause is None or not _is_transient(error):
                if isinstance(error, FxdaskError) or not _is_of_storage(error):
                    raise
                raise _unreadable(getattr(error, "filename", None) or "from storage", error) from error
            log.warning("%s; retrying in %g s", error, pause)
        time.sleep(pause)
    raise AssertionError("the last attempt returns or raises")


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error, or its cause, may disappear on a retry."""
    if error is None:
        return False
    return (
        isinstance(error, (TimeoutError, ConnectionError))
        or (isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS)
        or _is_lost_connection(error)
        or _is_transient(error.__cause__)
    )


def _is_lost_connection(error: BaseException) -> bool:
    """Whether the client of an object store lost its server; such clients have exceptions of their own."""
    name = type(error).__name__
    return _is_of_client(error) and any(word in name for word in ("Connect", "Timeout", "Disconnected", "HTTPClient"))


def _is_of_client(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in CLIENTS_OF_OBJECT_STORES


@contextmanager
def reading(url: str, name: str) -> Iterator[None]:
    """Report a failed read in one sentence that names the array: wrong checksums, bad metadata, a lost server."""
    try:
        yield
    except FxdaskError:
        raise
    except (*UNREADABLE, zarr.errors.BaseZarrError) as error:
        raise damaged(url, f"{name} cannot be read ({_flat(error)})") from error
    except Exception as error:
        if not _is_of_storage(error):
            raise
        raise _unreadable(f"{name} of {url}", error) from error


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Report a failed write in one sentence that says what to do."""
    try:
        yield
    except FxdaskError:
        raise
    except Exception as error:
        if not _is_of_storage(error):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            remedy = "free some disk space and run the same call again to resume"
        else:
            remedy = RESUME
        raise StoreWriteError(f"could not write to {url}: {_reason(error)}; {remedy}") from error


def _unreadable(what: str, error: BaseException) -> StoreReadError:
    return StoreReadError(f"could not read {what}: {_reason(error)}; {RESUME}")


def _is_of_storage(error: BaseException) -> bool:
    return isinstance(error, OSError) or _is_of_client(error)


def _reason(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or _flat(error)


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())
