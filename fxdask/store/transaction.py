"""The life of one job's store: start, resume, finish, replace; the same for models, scores and score tables.

A job holds the lease of its final path. A model is written at that path itself, so that an
interrupted fit is visible there. If it replaces a finished model, it is written in a hidden folder
beside that path, and the earlier model stays until the new one is finished. Scores are always
written in such a folder. The name of the folder contains the digest of the job, so that only an
equal call finds it. Object stores cannot rename: there a job writes at the final path unless it
replaces a finished store, and then the finished objects are copied, which the server does.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from glob import escape
from pathlib import Path
from typing import Any

from fxdask.errors import FxdaskError, StoreExistsError, StoreFormatError
from fxdask.store.files import copy_objects
from fxdask.store.group import begin_group, peek_header, refuse_foreign_files, remove_group, replace_store
from fxdask.store.layout import ARRAY_NAMES
from fxdask.store.lease import LAST_FILES, Lease
from fxdask.store.paths import hidden_url, is_local
from fxdask.store.retry import writing
from fxdask.store.score_table import KIND, peek_table, refuse_foreign_files_of_table, remove_table

__all__ = ["Transaction", "is_finished_at", "unfinished_beside"]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoreKind:
    """How a kind of store is recognised and removed."""

    peek_header: Callable[[str], Mapping[str, Any] | None]
    """The header at a path, None if nothing is there, an error if it is something else."""
    refuse_foreign_files: Callable[[str], None]
    remove: Callable[[str], None]


STORE_KINDS = {
    **{
        kind: StoreKind(peek_header, partial(refuse_foreign_files, names=names), remove_group)
        for kind, names in ARRAY_NAMES.items()
    },
    KIND: StoreKind(peek_table, refuse_foreign_files_of_table, remove_table),
}


@dataclass(frozen=True, kw_only=True)
class Transaction:
    """The work of one job on the store at the path of its lease."""

    lease: Lease
    kind: str
    url: str
    """Where the job writes."""
    header: Mapping[str, Any] | None
    """The header of an earlier call's store at ``url``; None if there is nothing to resume."""
    overwrite: bool

    @classmethod
    def in_place(cls, lease: Lease, kind: str, job: str, *, overwrite: bool) -> Transaction:
        """Write at the final path, or beside it if a store is replaced.

        The caller compares the header with the job, because it can describe the differences.
        """
        url, header = lease.url, peek_header(lease.url)
        replaceable = header is None or header["kind"] == kind
        if overwrite and header is not None and replaceable:
            refuse_foreign_files(url, ARRAY_NAMES[kind])
        if overwrite and replaceable:
            hidden = hidden_url(url, job[:16])
            if not is_local(url) and header is not None and not header["finished"]:
                header = header if header.get("job") == job else None
            elif header is not None or peek_header(hidden) is not None:
                url, header = hidden, peek_header(hidden)
        return cls(lease=lease, kind=kind, url=url, header=header, overwrite=overwrite)

    @classmethod
    def beside(cls, lease: Lease, kind: str, job: str, *, overwrite: bool) -> Transaction:
        """Write in a hidden folder beside the final path, and resume what the same job left there.

        If the same job is finished at the final path, that is the store.
        """
        if not overwrite:
            header = STORE_KINDS[kind].peek_header(lease.url)
            if header is not None and header["finished"] and (header["kind"], header.get("job")) == (kind, job):
                return cls(lease=lease, kind=kind, url=lease.url, header=header, overwrite=False)
        _refuse_existing(lease.url, kind, overwrite=overwrite)
        url = hidden_url(lease.url, job[:16])
        if not is_local(url) and not (overwrite and _is_finished(lease.url, url, kind)):
            url = lease.url
        return cls(lease=lease, kind=kind, url=url, header=_resumable_header(url, kind, job), overwrite=overwrite)

    @property
    def is_finished(self) -> bool:
        """Whether an equal call finished the store; the last step, :meth:`replace`, may be missing."""
        return self.header is not None and bool(self.header["finished"])

    def remove_partial_files(self) -> None:
        """Remove the partial files of killed writers."""
        self.lease.remove_partial_files(self.url)

    def replace(self) -> None:
        """Move the finished store to its final path, and remove the store that it replaces."""
        self.lease.check_held()
        if self.url != self.lease.url:
            self._refuse_new_store()
            if not is_local(self.url):
                self._copy_objects()
                return
        replace_store(self.url, self.lease.url)

    def _copy_objects(self) -> None:
        """Replace the earlier store of an object store; if that is interrupted, an equal call does it again."""
        final, kind = self.lease.url, self.kind
        with writing(final):
            if kind == KIND:
                remove_table(final)
            else:
                begin_group(final, kind, ARRAY_NAMES[kind])
            copy_objects(self.url, final, last=("zarr.json", *LAST_FILES))
            STORE_KINDS[kind].remove(self.url)

    def _refuse_new_store(self) -> None:
        """Refuse to replace a store that another program wrote to the final path meanwhile."""
        try:
            _refuse_existing(self.lease.url, self.kind, overwrite=self.overwrite)
        except StoreExistsError as error:
            raise StoreExistsError(
                f"{error}; it was written there while this call was running: the new store of kind {self.kind!r} "
                f"is complete in {self.url}, so move either of them and make the same call again"
            ) from None

    def abandon(self) -> None:
        """Remove the unfinished store; an error in doing so must not hide the error of the work."""
        with suppress(FxdaskError, OSError):
            if self.lease.is_held():
                STORE_KINDS[self.kind].remove(self.url)


def is_finished_at(url: str) -> bool:
    """Whether a finished store of any kind is at this path."""
    for kind in STORE_KINDS.values():
        with suppress(StoreExistsError, StoreFormatError):
            header = kind.peek_header(url)
            if header is not None:
                return bool(header["finished"])
    return False


def unfinished_beside(url: str) -> list[str]:
    """The hidden folders in which interrupted calls wrote a store that belongs at this path, the newest first."""
    if not is_local(url):
        return []
    final = Path(hidden_url(url, ""))
    found = [folder for folder in final.parent.glob(f"{escape(final.name)}*") if folder.is_dir()]
    return [str(folder) for folder in sorted(found, key=lambda folder: folder.stat().st_mtime, reverse=True)]


def _is_finished(final: str, hidden: str, kind: str) -> bool:
    """Whether there is a finished store to replace, or one that only has to be moved."""
    headers = map(STORE_KINDS[kind].peek_header, (final, hidden))
    return any(header is not None and header["finished"] for header in headers)


def _resumable_header(url: str, kind: str, job: str) -> Mapping[str, Any] | None:
    """The header of the same job's store at this path; None if there is none, or if it is damaged."""
    try:
        header = STORE_KINDS[kind].peek_header(url)
    except (StoreFormatError, StoreExistsError) as error:
        log.info("starting again from scratch: %s", error)
        return None
    return header if header is not None and header["kind"] == kind and header.get("job") == job else None


def _refuse_existing(url: str, kind: str, *, overwrite: bool) -> None:
    header = STORE_KINDS[kind].peek_header(url)
    if header is None:
        return
    if header["kind"] != kind:
        raise StoreExistsError(
            f"{url} holds a store of kind {header['kind']!r}, which one of kind {kind!r} never replaces; "
            "choose another path"
        )
    # An unfinished store holds no result, so it may be replaced.
    if header["finished"] and not overwrite:
        raise StoreExistsError(
            f"{url} already holds a finished store of kind {kind!r}; choose another path, or pass overwrite=True"
        )
    STORE_KINDS[kind].refuse_foreign_files(url)
