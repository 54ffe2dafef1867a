"""Who works on a place: one call at a time, whichever machine it runs on.

A lease is a small file beside the store, which is replaced as a whole and could not keep it inside.
It names the host and the process, and is renewed while they work. A process of this machine that
is gone loses it at once, any other after a minute without renewal.

On a file system a lease is made by creating a file that must not exist, and its age is told by the
file system's own clock. Object stores offer neither: there the lease is written and read back, its
age is told by the clocks of the two machines, and two calls may both get it. Correctness does not
rest on it: equal jobs write equal bytes, and the mark of a block names its job.
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
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

import psutil

from fxdask.errors import StoreExistsError
from fxdask.store.paths import files_at, is_local, is_partial, sibling_url
from fxdask.store.retry import retried, writing

__all__ = ["Lease", "exclusive_lease"]

log = logging.getLogger(__name__)

SECONDS_BETWEEN_RENEWALS = 10
SECONDS_UNTIL_FREE = 60
CLOCK_TOLERANCE = 5.0


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who has a lease."""

    token: str
    host: str
    machine: str
    process: int
    process_started: float
    renewed: float
    """By the holder's clock."""

    @classmethod
    def this_call(cls) -> Holder:
        """This process, with a name for this call of it."""
        me = psutil.Process()
        return cls(
            token=uuid4().hex,
            host=socket.gethostname(),
            machine=_machine(),
            process=me.pid,
            process_started=me.create_time(),
            renewed=time.time(),
        )

    @classmethod
    def from_json(cls, text: bytes) -> Holder | None:
        """Who wrote this; None where it is cut short, or no lease."""
        try:
            found = json.loads(text)
            return cls(
                token=str(found["token"]),
                host=str(found["host"]),
                machine=str(found["machine"]),
                process=int(found["process"]),
                process_started=float(found["process_started"]),
                renewed=float(found["renewed"]),
            )
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError):
            return None

    def to_json(self) -> bytes:
        """As it is written down, renewed now."""
        return json.dumps(asdict(self) | {"renewed": time.time()}).encode()

    def in_words(self) -> str:
        """For an error message."""
        return f"process {self.process} on {' '.join(self.host.split())}"

    def is_gone(self) -> bool:
        """Whether this was a process of this machine that is no more."""
        if self.machine != _machine():
            return False
        try:
            process = psutil.Process(self.process)
            another = abs(process.create_time() - self.process_started) > CLOCK_TOLERANCE
            return another or process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except (psutil.AccessDenied, ValueError, OverflowError):
            return False


def _machine() -> str:
    """A name that two processes share only if each can tell whether the other lives."""
    words = [socket.gethostname()]
    with suppress(OSError):
        words.append(Path("/proc/sys/kernel/random/boot_id").read_text().strip())
        words.append(os.readlink("/proc/self/ns/pid"))
    return " ".join(words)


@dataclass(frozen=True)
class Found:
    """A lease that is there: whose it is, if that can be read, and the seconds since it was renewed."""

    holder: Holder | None
    age: float

    @property
    def is_free(self) -> bool:
        """Whether whoever had it is gone, or was not heard of for a minute."""
        return self.age >= SECONDS_UNTIL_FREE or (self.holder is not None and self.holder.is_gone())


class LeaseFile:
    """A lease as a file, on a disk of this machine or on one that several share."""

    seconds_to_read_back = 0.0

    def __init__(self, path: str) -> None:
        self._file = Path(path)
        self._made: list[Path] = []
        self.created_at = 0.0

    def create(self, holder: Holder) -> bool:
        """Put it there, unless there is one; exclusive also on network file systems."""
        self._made += [folder for folder in self._file.parents if not folder.exists()]
        self._file.parent.mkdir(parents=True, exist_ok=True)
        try:
            with self._file.open("xb") as stream:
                try:
                    stream.write(holder.to_json())
                    stream.flush()
                except OSError:
                    self.remove()  # a full disk: empty, it would keep everybody out
                    raise
                self.created_at = os.fstat(stream.fileno()).st_mtime
        except FileExistsError:
            return False
        return True

    def read(self) -> Found | None:
        """What is there, if anything."""
        try:
            with self._file.open("rb") as stream:
                renewed, content = os.fstat(stream.fileno()).st_mtime, stream.read()
        except FileNotFoundError:
            return None
        return Found(Holder.from_json(content), self._age(renewed))

    def holder(self) -> Holder | None:
        """Whose it is."""
        try:
            return Holder.from_json(self._file.read_bytes())
        except FileNotFoundError:
            return None

    def take_over(self, holder: Holder) -> bool:
        """Put it in the place of one that is free, as long as that is so; one call at a time may."""
        draft, guard = self._aside(), self._file.with_name(f"{self._file.name}-taken-over")
        try:
            guard.touch(exist_ok=False)
        except FileExistsError:
            with suppress(FileNotFoundError):
                if self._age(guard.stat().st_mtime) >= SECONDS_UNTIL_FREE:
                    guard.unlink()  # somebody was killed while at it; the next call may
            return False
        try:
            found = self.read()
            if found is None:
                return self.create(holder)
            if found.is_free:
                draft.write_bytes(holder.to_json())
                self.created_at = draft.stat().st_mtime
                draft.replace(self._file)
            return found.is_free
        finally:
            draft.unlink(missing_ok=True)
            guard.unlink(missing_ok=True)

    def renew(self, holder: Holder) -> None:
        """Its time is all that counts."""
        os.utime(self._file)

    def remove(self) -> None:
        """Take it away, and folders that were made for it and have stayed empty."""
        self._file.unlink(missing_ok=True)
        with suppress(OSError):  # something was put there
            while self._made:
                self._made.pop(0).rmdir()

    def _age(self, renewed: float) -> float:
        """Seconds since a time of this file system: from a file that is made now, as its clock may be another one."""
        now = self._aside()
        now.touch()
        age = now.stat().st_mtime - renewed
        now.unlink()
        return age

    def _aside(self) -> Path:
        return self._file.with_name(f"{self._file.name}-{uuid4().hex}")


class LeaseObject:
    """A lease as an object of an object store, of which two that come at the same time get the later one."""

    seconds_to_read_back = 0.5

    def __init__(self, url: str) -> None:
        self._files, self._path = files_at(url)
        self.created_at = 0.0

    def create(self, holder: Holder) -> bool:
        """Put it there, unless there is one."""
        if self.read() is not None:
            return False
        self.renew(holder)
        return True

    def take_over(self, holder: Holder) -> bool:
        """Put it in the place of one that is free."""
        found = self.read()
        if found is None or found.is_free:
            self.renew(holder)
        return found is None or found.is_free

    def read(self) -> Found | None:
        """The age is told by two machines' clocks."""
        try:
            holder = Holder.from_json(self._files.cat_file(self._path))
        except FileNotFoundError:
            return None
        return Found(holder, time.time() - holder.renewed if holder else SECONDS_UNTIL_FREE)

    def holder(self) -> Holder | None:
        """Whose it is."""
        found = self.read()
        return found.holder if found else None

    def renew(self, holder: Holder) -> None:
        """Written anew, with the time."""
        self._files.pipe_file(self._path, holder.to_json())

    def remove(self) -> None:
        """Take it away."""
        self._files.rm_file(self._path)


class Lease:
    """The right to work on a place, renewed by a thread until it is given back."""

    def __init__(self, url: str) -> None:
        self.url = url
        if not is_local(url):
            files_at(url)  # a URL that leads nowhere is told by its own name, not by that of a lease
        name = sibling_url(url, "lease")
        self._place = LeaseFile(name) if is_local(url) else LeaseObject(name)
        self._me = Holder.this_call()
        self._given_back = threading.Event()
        self._renewing = threading.Thread(target=self._renew, name="fxdask-lease", daemon=True)

    def take(self) -> None:
        """Take the place, from nobody or from somebody who is gone; refuse otherwise."""
        try:
            if not self._place.create(self._me):
                if not self._place.take_over(self._me):
                    self._refuse()
                log.info("%s was taken over from a call that is gone", self.url)
            time.sleep(self._place.seconds_to_read_back)
            self.check_held()
        except BaseException:
            self._remove_if_mine()
            raise
        self._renewing.start()

    def _refuse(self) -> None:
        found = self._place.read()
        who = f" ({found.holder.in_words()}, heard of {found.age:.0f} s ago)" if found and found.holder else ""
        raise StoreExistsError(
            f"another call is working on {self.url}{who}; wait for its end, or choose another path: if it is gone, "
            f"the same call takes over {SECONDS_UNTIL_FREE} s after it was last heard of"
        )

    def _renew(self) -> None:
        while not self._given_back.wait(SECONDS_BETWEEN_RENEWALS):
            try:
                if self.is_held():
                    self._place.renew(self._me)
            except Exception as error:  # of whatever client; the next time may do
                log.warning("the lease of %s could not be renewed: %s", self.url, error)

    def is_held(self) -> bool:
        """Whether nobody has taken the place over."""
        holder = self._place.holder()
        return holder is not None and holder.token == self._me.token

    def check_held(self) -> None:
        """Refuse to go on where another call took the place over, as this one had not been heard of for too long."""
        with writing(self.url):
            if not retried(self.is_held)():
                self._refuse()

    def remove_partial_files(self, url: str) -> None:
        """Remove what killed writers left half-written in a store, if it is older than the lease."""
        if not is_local(url):
            return  # an object is there whole or not at all
        for file in Path(url).rglob("*.partial"):
            with suppress(OSError):  # whoever still was at it has renamed it
                if is_partial(file.name) and file.stat().st_mtime < self._place.created_at:
                    file.unlink()

    def release(self) -> None:
        """Leave the place to others."""
        self._given_back.set()
        self._renewing.join(SECONDS_BETWEEN_RENEWALS)  # it may be waiting for storage that does not answer
        self._remove_if_mine()

    def _remove_if_mine(self) -> None:
        try:
            if self.is_held():
                self._place.remove()
        except Exception as error:  # of whatever client: why the work failed matters more, and leases end by themselves
            log.warning("the lease of %s could not be given back: %s", self.url, error)


@contextmanager
def exclusive_lease(url: str) -> Iterator[Lease]:
    """Refuse to work on what another call is working on; its end, however it comes, lifts that.

    Two that finished the same would move each other's result away.
    """
    with writing(url):
        lease = Lease(url)
        lease.take()
    try:
        yield lease
    finally:
        lease.release()
