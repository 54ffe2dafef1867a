"""Leases: one call at a time works on a store, also if calls run on several machines.

A lease is a small file beside the store; it cannot be inside, because a store is replaced as a whole.
It names the host and the process of its holder, and the holder renews it while it works. The lease of
a dead process of this machine can be acquired at once, any other lease after a minute without renewal.

On a file system a lease is created exclusively (the file must not exist), and its age is measured by
the clock of the file system. Object stores offer neither: there the lease is written and read back,
its age is measured by the clocks of two machines, and two calls may both acquire it. Correctness does
not depend on the lease: equal jobs write equal bytes, and the mark of a block names its job.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import psutil

from fxdask.errors import StoreExistsError
from fxdask.store.layout import EARLIER_MANIFEST, MANIFEST
from fxdask.store.paths import files_at, is_local, is_partial, sibling_url
from fxdask.store.retry import retried, writing

__all__ = ["LAST_FILES", "Lease", "exclusive_lease", "lease_of_call", "working_call"]

log = logging.getLogger(__name__)

SECONDS_BETWEEN_RENEWALS = 10
SECONDS_UNTIL_EXPIRED = 60
CLOCK_TOLERANCE = 5.0
LAST_FILES = (*(f"{spec.name}/c/0" for spec in (MANIFEST, EARLIER_MANIFEST)), "_SUCCESS")
"""The files that finished stores and tables have, and unfinished ones have not."""


@dataclass(frozen=True, kw_only=True)
class Holder:
    """The call that holds a lease."""

    token: str
    host: str
    machine: str
    process: int
    process_started: float
    renewed: float
    """By the holder's clock."""

    @classmethod
    def this_call(cls) -> Holder:
        """This process, with a random token for this call."""
        process = psutil.Process()
        return cls(
            token=uuid4().hex,
            host=socket.gethostname(),
            machine=_machine(),
            process=process.pid,
            process_started=process.create_time(),
            renewed=time.time(),
        )

    @classmethod
    def from_json(cls, text: bytes) -> Holder | None:
        """The holder from the content of a lease; None if the content is incomplete or not a lease."""
        try:
            fields = json.loads(text)
            return cls(
                token=str(fields["token"]),
                host=str(fields["host"]),
                machine=str(fields["machine"]),
                process=int(fields["process"]),
                process_started=float(fields["process_started"]),
                renewed=float(fields["renewed"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def to_json(self) -> bytes:
        """The content of a lease that is renewed now."""
        return json.dumps(asdict(self) | {"renewed": time.time()}).encode()

    def description(self) -> str:
        """Process and host, for an error message."""
        return f"process {self.process} on {' '.join(self.host.split())}"

    def is_dead(self) -> bool:
        """Whether the holder was a process of this machine that has ended."""
        if self.machine != _machine():
            return False
        try:
            process = psutil.Process(self.process)
            is_another = abs(process.create_time() - self.process_started) > CLOCK_TOLERANCE
            return is_another or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except (psutil.AccessDenied, ValueError, OverflowError):
            return False


def _machine() -> str:
    """A name that two processes share only if each can see whether the other one runs."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        parts.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(parts)


@dataclass(frozen=True)
class LeaseState:
    """An existing lease: its holder, if the content is readable, and the seconds since its last renewal."""

    holder: Holder | None
    age: float

    @property
    def is_expired(self) -> bool:
        """Whether the holder is dead, or has not renewed the lease for a minute."""
        return self.age >= SECONDS_UNTIL_EXPIRED or (self.holder is not None and self.holder.is_dead())


class LeaseFile:
    """A lease as a file, on a local disk or on a shared one."""

    seconds_to_read_back = 0.0

    def __init__(self, path: str) -> None:
        self._file = Path(path)
        self._created_folders: list[Path] = []
        self.created_at = 0.0

    def create(self, holder: Holder) -> bool:
        """Create the lease unless it exists; exclusive also on network file systems."""
        self._created_folders += [folder for folder in self._file.parents if not folder.exists()]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._file.open("xb") as stream:
                try:
                    stream.write(holder.to_json())
                    stream.flush()
                except OSError:
                    self.remove()  # on a full disk an empty lease would block the next calls
                    raise
                self.created_at = os.fstat(stream.fileno()).st_mtime
        except FileExistsError:
            return False
        return True

    def read(self) -> LeaseState | None:
        """The state of the lease; None if there is none."""
        try:
            with self._file.open("rb") as stream:
                renewed, content = os.fstat(stream.fileno()).st_mtime, stream.read()
        except FileNotFoundError:
            return None
        return LeaseState(Holder.from_json(content), self._age(renewed))

    def holder(self) -> Holder | None:
        """The current holder; None if there is no lease."""
        try:
            return Holder.from_json(self._file.read_bytes())
        except FileNotFoundError:
            return None

    def acquire_expired(self, holder: Holder) -> bool:
        """Replace an expired lease; a guard file lets one call at a time do so."""
        draft, guard = self._temporary_file(), self._file.with_name(f"{self._file.name}-taken-over")
        try:
            guard.touch(exist_ok=False)
        except FileExistsError:
            with suppress(FileNotFoundError):
                if self._age(guard.stat().st_mtime) >= SECONDS_UNTIL_EXPIRED:
                    guard.unlink()  # left by a killed call; the next call can acquire the lease
            return False
        try:
            state = self.read()
            if state is None:
                return self.create(holder)
            if state.is_expired:
                draft.write_bytes(holder.to_json())
                self.created_at = draft.stat().st_mtime
                draft.replace(self._file)
            return state.is_expired
        finally:
            draft.unlink(missing_ok=True)
            guard.unlink(missing_ok=True)

    def renew(self, holder: Holder) -> None:
        """Set the file's time; its content stays."""
        os.utime(self._file)

    def remove(self) -> None:
        """Remove the lease, and the folders that were created for it and are still empty."""
        self._file.unlink(missing_ok=True)
        with suppress(OSError):  # a folder that is not empty stays
            while self._created_folders:
                self._created_folders.pop(0).rmdir()

    def _age(self, renewed: float) -> float:
        """Seconds since a time of this file system, measured by a new file because the clocks may differ."""
        clock = self._temporary_file()
        clock.touch()
        age = clock.stat().st_mtime - renewed
        clock.unlink()
        return age

    def _temporary_file(self) -> Path:
        return self._file.with_name(f"{self._file.name}-{uuid4().hex}")


class LeaseObject:
    """A lease as an object of an object store; of two concurrent writes the later one stays."""

    seconds_to_read_back = 0.5

    def __init__(self, url: str) -> None:
        self._files, self._path = files_at(url)
        self.created_at = 0.0

    def create(self, holder: Holder) -> bool:
        """Write the lease unless it exists."""
        if self.read() is not None:
            return False
        self.renew(holder)
        return True

    def acquire_expired(self, holder: Holder) -> bool:
        """Replace an expired lease."""
        state = self.read()
        if state is None or state.is_expired:
            self.renew(holder)
        return state is None or state.is_expired

    def read(self) -> LeaseState | None:
        """The state of the lease, its age by the clocks of two machines; None if there is none."""
        try:
            holder = Holder.from_json(self._files.cat_file(self._path))
        except FileNotFoundError:
            return None
        return LeaseState(holder, time.time() - holder.renewed if holder else SECONDS_UNTIL_EXPIRED)

    def holder(self) -> Holder | None:
        """The current holder; None if there is no lease."""
        state = self.read()
        return state.holder if state else None

    def renew(self, holder: Holder) -> None:
        """Write the lease again, with the current time."""
        self._files.pipe_file(self._path, holder.to_json())

    def remove(self) -> None:
        """Remove the lease."""
        self._files.rm_file(self._path)


def _record_of(url: str) -> LeaseFile | LeaseObject:
    """Where the lease of a store is kept."""
    name = sibling_url(url, "lease")
    return LeaseFile(name) if is_local(url) else LeaseObject(name)


class Lease:
    """The right to work on a store, renewed by a thread until it is released."""

    def __init__(self, url: str) -> None:
        self.url = url
        if not is_local(url):
            files_at(url)  # an error about an unusable URL must name the store, not its lease
        self._record = _record_of(url)
        self._me = Holder.this_call()
        self._released = threading.Event()
        self._renewal = threading.Thread(target=self._renew, name="fxdask-lease", daemon=True)

    def acquire(self) -> None:
        """Acquire a lease that is free or expired; refuse if another call holds it."""
        try:
            if not self._record.create(self._me):
                if not self._record.acquire_expired(self._me):
                    self._refuse()
                log.info("acquired the lease of %s, which another call had not released", self.url)
            time.sleep(self._record.seconds_to_read_back)
            self.check_held()
        except BaseException:
            self._remove_if_held()
            raise
        self._renewal.start()

    def _refuse(self) -> None:
        state = self._record.read()
        by = f" ({state.holder.description()}, last renewed {state.age:.0f} s ago)" if state and state.holder else ""
        raise StoreExistsError(
            f"another call is working on {self.url}{by}; wait until it ends, or choose another path; "
            f"if that call is dead, its lease expires {SECONDS_UNTIL_EXPIRED} s after the last renewal"
        )

    def _renew(self) -> None:
        while not self._released.wait(SECONDS_BETWEEN_RENEWALS):
            try:
                if self.is_held():
                    self._record.renew(self._me)
            except Exception as error:  # clients of object stores have exceptions of their own
                log.warning("could not renew the lease of %s: %s", self.url, error)

    def is_held(self) -> bool:
        """Whether this call still holds the lease."""
        holder = self._record.holder()
        return holder is not None and holder.token == self._me.token

    def check_held(self) -> None:
        """Refuse to continue if another call acquired the lease because this one did not renew it in time."""
        with writing(self.url):
            if not retried(self.is_held)():
                self._refuse()

    def remove_partial_files(self, url: str) -> None:
        """Remove partial files of killed writers from a store, if they are older than the lease."""
        if not is_local(url):
            return  # object stores have no partial objects
        for file in Path(url).rglob("*.partial"):
            with suppress(OSError):  # a writer that still runs may have renamed it
                if is_partial(file.name) and file.stat().st_mtime < self._record.created_at:
                    file.unlink()

    def release(self) -> None:
        """Stop the renewal and remove the lease."""
        self._released.set()
        self._renewal.join(SECONDS_BETWEEN_RENEWALS)  # bounded, because storage may not answer
        self._remove_if_held()

    def _remove_if_held(self) -> None:
        try:
            if self.is_held():
                self._record.remove()
        except Exception as error:  # must not hide an error of the work itself; the lease expires anyway
            log.warning("could not release the lease of %s: %s", self.url, error)


_held: ContextVar[tuple[Lease, ...]] = ContextVar("held leases of this call", default=())


class NoLease(Lease):
    """Stands for the lease of a finished store in a read-only folder, in which nobody can write."""

    def check_held(self) -> None:
        """Nobody else can acquire the lease."""


def _is_finished_and_read_only(url: str) -> bool:
    """Whether the store needs no lease, and can have none."""
    folder = Path(url).parent
    if not is_local(url) or not folder.is_dir() or os.access(folder, os.W_OK):
        return False
    return any(Path(url, name).is_file() for name in LAST_FILES)


@contextmanager
def exclusive_lease(url: str) -> Iterator[Lease]:
    """Hold the lease of a store for the time of a ``with`` block; refuse if another call holds it.

    Without it, two equal calls could each replace the result of the other. A finished store in a
    read-only folder needs none.
    """
    if _is_finished_and_read_only(url):
        yield NoLease(url)
        return
    with writing(url):
        lease = Lease(url)
        lease.acquire()
    before = _held.set((*_held.get(), lease))
    try:
        yield lease
    finally:
        _held.reset(before)
        lease.release()


def working_call(url: str) -> str | None:
    """Process and host of the call that is working on a store, or None; nothing is written."""
    try:
        holder = _record_of(url).holder()
        renewed = (
            Path(sibling_url(url, "lease")).stat().st_mtime if is_local(url) else holder.renewed if holder else 0.0
        )
    except OSError:
        return None
    is_old = time.time() - renewed >= SECONDS_UNTIL_EXPIRED
    return None if holder is None or is_old or holder.is_dead() else holder.description()


@contextmanager
def lease_of_call(url: str) -> Iterator[Lease]:
    """The lease that an outer ``with`` block of the same call holds, or an exclusive one for this block."""
    for held in _held.get():
        if held.url == url:
            yield held
            return
    with exclusive_lease(url) as lease:
        yield lease
