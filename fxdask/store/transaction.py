"""One job's store from its beginning to its end: begin, resume, finish, replace; the same for every kind of store.

A job works under the lease of its final path. Models are worked on at that path itself, so that a
fit that was stopped is visible there; a finished model that is to be replaced stays until the new
one, in a hidden folder beside it, is complete. Scores are always worked on in such a folder. The
folder's name holds the digest of the job, so that an equal call finds it and no other does. Object
stores cannot rename, so there every job works at the final path.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from fxdask.errors import FxdaskError, StoreExistsError, StoreFormatError
from fxdask.store.group import peek_header, refuse_foreign_files, remove_group, replace_store
from fxdask.store.layout import ARRAY_NAMES
from fxdask.store.lease import Lease
from fxdask.store.paths import working_url

__all__ = ["Transaction"]

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """The work of one job on what shall be at the path of its lease."""

    lease: Lease
    kind: str
    url: str
    """Where the work is done."""
    header: Mapping[str, Any] | None
    """The header of what an earlier call left there; None where there is nothing to resume."""
    overwrite: bool

    @classmethod
    def in_place(cls, lease: Lease, kind: str, job: str, *, overwrite: bool) -> Transaction:
        """Work at the final path; beside it if a store is to be replaced.

        What the header there says is not compared with the job yet: the caller can tell the differences in words.
        """
        url, header = lease.url, peek_header(lease.url)
        replaceable = header is None or header["kind"] == kind
        if overwrite and header is not None and replaceable:
            refuse_foreign_files(url, ARRAY_NAMES[kind])
        if overwrite and replaceable:
            hidden = working_url(url, job[:16])
            if hidden == url:
                # An object store has no path beside: the earlier store is removed first.
                header = header if header is not None and header.get("job") == job else None
            elif header is not None or peek_header(hidden) is not None:
                url, header = hidden, peek_header(hidden)
        return cls(lease=lease, kind=kind, url=url, header=header, overwrite=overwrite)

    @classmethod
    def beside(cls, lease: Lease, kind: str, job: str, *, overwrite: bool) -> Transaction:
        """Work in a hidden folder beside the final path, and resume what the same job left there."""
        _refuse_what_is_there(lease.url, kind, overwrite=overwrite)
        url = working_url(lease.url, job[:16])
        return cls(lease=lease, kind=kind, url=url, header=_left_by(url, kind, job), overwrite=overwrite)

    @property
    def is_finished(self) -> bool:
        """Whether an equal call has done everything but perhaps the last step, :meth:`replace`."""
        return self.header is not None and bool(self.header["finished"])

    def remove_partial_files(self) -> None:
        """Remove what killed writers left half-written."""
        self.lease.remove_partial_files(self.url)

    def replace(self) -> None:
        """Move the finished store to its final path, in place of the one that it replaces."""
        self.lease.check_held()
        if self.url != self.lease.url:
            self._refuse_newcomer()
        replace_store(self.url, self.lease.url)

    def _refuse_newcomer(self) -> None:
        """Refuse what was not asked to be replaced: another program may have put it there meanwhile."""
        try:
            _refuse_what_is_there(self.lease.url, self.kind, overwrite=self.overwrite)
        except StoreExistsError as error:
            raise StoreExistsError(
                f"{error}; it was put there while this call was working, and the {self.kind} are in {self.url}"
            ) from None

    def abandon(self) -> None:
        """Remove what was begun; a failure to do so must not hide why the work failed."""
        with suppress(FxdaskError, OSError):
            if self.lease.is_held():
                remove_group(self.url)


def _left_by(url: str, kind: str, job: str) -> Mapping[str, Any] | None:
    """The header of what the same job began at this path; damaged stores are begun anew."""
    try:
        header = peek_header(url)
    except (StoreFormatError, StoreExistsError) as error:
        log.info("beginning anew: %s", error)
        return None
    return header if header is not None and header["kind"] == kind and header.get("job") == job else None


def _refuse_what_is_there(url: str, kind: str, *, overwrite: bool) -> None:
    header = peek_header(url)
    if header is None:
        return
    if header["kind"] != kind:
        raise StoreExistsError(f"{url} holds a {header['kind']}, which {kind} never replace; choose another path")
    # An unfinished store is no result yet: the call that began it was stopped.
    if header["finished"] and not overwrite:
        raise StoreExistsError(
            f"{url} holds {kind} already; choose another path, or pass overwrite=True to replace them"
        )
    refuse_foreign_files(url, ARRAY_NAMES[kind])
