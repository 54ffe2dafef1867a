"""Storage that fails: what may pass is tried again, and what remains is told in one sentence."""

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

from fxdask.errors import FxdaskError, StoreFormatError, StoreReadError, StoreWriteError

__all__ = ["reading", "retried", "writing"]

log = logging.getLogger(__name__)

RETRY_DELAYS = (0.5, 2.0, 8.0)
"""Seconds between one try and the next."""

# A full disk, a missing file or a refusal stays what it is; a server that is busy or away may come back.
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

_this_thread = threading.local()

P = ParamSpec("P")
T = TypeVar("T")


def retried(work: Callable[P, T]) -> Callable[P, T]:
    """A function that reads or writes, and may do so twice, tried again while its storage fails in a way that may pass.

    Examples
    --------
    >>> tries = iter([TimeoutError(), 3])
    >>> @retried
    ... def read():
    ...     found = next(tries)
    ...     if isinstance(found, Exception):
    ...         raise found
    ...     return found
    >>> read()
    3
    """

    @wraps(work)
    def tried_again(*args: P.args, **named: P.kwargs) -> T:
        if getattr(_this_thread, "is_trying", False):
            return work(*args, **named)  # one that tries again called another: only the outer one does
        _this_thread.is_trying = True
        try:
            return _tried(lambda: work(*args, **named))
        finally:
            _this_thread.is_trying = False

    return tried_again


def _tried(work: Callable[[], T]) -> T:
    for pause in (*RETRY_DELAYS, None):
        try:
            return work()
        except Exception as error:
            if pause is None or not _is_transient(error):
                if isinstance(error, FxdaskError) or not _is_of_storage(error):
                    raise
                raise _unreadable(getattr(error, "filename", None) or "from storage", error) from error
            log.warning("%s; trying again in %g s", error, pause)
        time.sleep(pause)
    raise AssertionError("the last try returns or raises")


def _is_transient(error: BaseException | None) -> bool:
    """Whether an error, or the one that it was raised for, is of the kind that goes away."""
    if error is None:
        return False
    return (
        isinstance(error, (TimeoutError, ConnectionError))
        or (isinstance(error, OSError) and error.errno in TRANSIENT_ERRNOS)
        or _is_lost_connection(error)
        or _is_transient(error.__cause__)
    )


def _is_lost_connection(error: BaseException) -> bool:
    """Whether a client of an object store gave up on its server: these have exceptions of their own."""
    name = type(error).__name__
    return _is_of_client(error) and any(word in name for word in ("Connect", "Timeout", "Disconnected", "HTTPClient"))


def _is_of_client(error: BaseException) -> bool:
    return type(error).__module__.partition(".")[0] in CLIENTS_OF_OBJECT_STORES


@contextmanager
def reading(url: str, name: str) -> Iterator[None]:
    """Turn what cannot be read into a sentence with the array's name: wrong checksums, odd metadata, a lost server."""
    try:
        yield
    except FxdaskError:
        raise
    except (ValueError, TypeError, KeyError, OverflowError, RuntimeError, zarr.errors.BaseZarrError) as error:
        raise StoreFormatError(f"{url} is damaged: {name} cannot be read ({_flat(error)})") from error
    except Exception as error:
        if not _is_of_storage(error):
            raise
        raise _unreadable(f"{name} of {url}", error) from error


@contextmanager
def writing(url: str) -> Iterator[None]:
    """Turn the storage's refusal of a write into one sentence that says what to do."""
    try:
        yield
    except FxdaskError:
        raise
    except Exception as error:
        if not _is_of_storage(error):
            raise
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            remedy = "free some room and make the same call again: it takes up the work"
        else:
            remedy = "once that is mended the same call takes up the work"
        raise StoreWriteError(f"could not write to {url}: {_reason(error)}; {remedy}") from error


def _unreadable(what: str, error: BaseException) -> StoreReadError:
    return StoreReadError(
        f"could not read {what}: {_reason(error)}; once that is mended the same call takes up the work"
    )


def _is_of_storage(error: BaseException) -> bool:
    return isinstance(error, OSError) or _is_of_client(error)


def _reason(error: BaseException) -> str:
    return (isinstance(error, OSError) and error.strerror) or _flat(error)


def _flat(error: BaseException) -> str:
    return " ".join(str(error).split())
