"""Feed mutated files to one reader, and check after every input what must always hold.

A reader of foreign bytes may raise an error of fxdask, whose message is one line, and nothing else. It
may not use more than 64 MiB, not take longer than a second, and write nothing outside of its folder.
An input that ends at a line where none ended before is kept and mutated further, so that inputs get deeper
into a reader over time.
"""

import contextlib
import os
import random
import re
import resource
import signal
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fxdask.errors import FxdaskError

from .mutations import mutated

MOST_BYTES = 64 * 2**20
MOST_RESERVED = 64 * MOST_BYTES
MOST_KEPT = 400
LARGEST_KEPT = 2**16
MOST_FINDINGS = 10
INPUTS_PER_LIMIT = 500
TIMES_TO_RETRY = 3


class TookTooLong(BaseException):
    """Raised by the alarm; no reader may catch it."""


class Target:
    """One kind of foreign bytes: valid files in a folder, and the reader to which changed ones are fed."""

    mutate = staticmethod(mutated)
    refuses = True
    """Whether the reader raises an error for foreign bytes; else it returns nothing, or answers by an exit status."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.seeds = self.valid_files()

    def valid_files(self):
        """A list of (place, content), made by fxdask itself; a place is a path inside the folder."""
        raise NotImplementedError

    def feed(self, place, content):
        """Write the content to its place, and read it as users do."""
        with self.changed_file(place, content):
            self.read(place)

    @contextlib.contextmanager
    def changed_file(self, place, content):
        """The file has other content for the time of a ``with`` block."""
        file = self.folder / place
        before = file.read_bytes() if file.exists() else None
        file.write_bytes(content)
        try:
            yield
        finally:
            if before is None:
                file.unlink(missing_ok=True)
            else:
                file.write_bytes(before)

    def read(self, place):
        """Read the file at a place as users do."""
        raise NotImplementedError


@dataclass
class Outcome:
    """What a run found: the inputs, how many were accepted and refused, and what must not happen."""

    inputs: int = 0
    accepted: int = 0
    refused: Counter = field(default_factory=Counter)
    findings: dict = field(default_factory=dict)

    def __str__(self):
        refused = ", ".join(f"{count:,} {name}" for name, count in self.refused.most_common())
        return f"{self.inputs:,} inputs: {self.accepted:,} accepted; {refused}; {len(self.findings)} findings"


class Fuzzer:
    """Runs one target in a folder of its own, in a parent folder where nothing else may appear."""

    def __init__(self, make_target, parent, *, seconds):
        self.parent, self.seconds = Path(parent), seconds
        self.elsewhere = self.parent / "elsewhere"
        self.elsewhere.mkdir()
        (self.parent / "given").mkdir()
        self.target = make_target(self.parent / "given")
        self.kept = list(self.target.seeds)
        self.seen = set()
        self.outcome = Outcome()

    def run(self, n_inputs, seed=0):
        """Feed the valid files, then so many mutated ones."""
        rng = random.Random(seed)
        with contextlib.chdir(self.elsewhere), alarm_raises():
            for place, content in self.target.seeds:
                self.try_one(place, content)
            assert self.outcome.accepted == len(self.target.seeds), f"a valid file is refused: {self.outcome}"
            for index in range(n_inputs):
                if index % INPUTS_PER_LIMIT == 0:
                    limit_memory()
                place, content = rng.choice(self.kept if rng.random() < 0.7 else self.target.seeds)
                self.try_one(place, self.target.mutate(rng, content))
                if len(self.outcome.findings) >= MOST_FINDINGS:
                    break
        return self.outcome

    def try_one(self, place, content):
        """Feed one input and check what must hold after it."""
        self.outcome.inputs += 1
        error = self.error_of(place, content)
        if error is None:
            self.outcome.accepted += 1
        else:
            self.outcome.refused[type(error).__name__] += 1
        where = lines_of(error)
        problem = self.problem_with(error, place, content)
        if problem:
            self.outcome.findings.setdefault((problem, where[-1:]), description(problem, place, content, error))
        if where not in self.seen and len(content) <= LARGEST_KEPT and len(self.kept) < MOST_KEPT:
            self.seen.add(where)
            self.kept.append((place, content))

    def error_of(self, place, content):
        """The exception of one input, or None."""
        signal.setitimer(signal.ITIMER_REAL, self.seconds)
        try:
            self.target.feed(place, content)
        except (Exception, TookTooLong) as error:
            return error
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
        return None

    def problem_with(self, error, place, content):
        """What is wrong with the end of one input, or an empty string."""
        if any(map(wants_memory, chain_of(error))):
            error, used = self.error_without_limit(place, content)
            if used > MOST_BYTES or any(map(wants_memory, chain_of(error))):
                return "uses more than 64 MiB"
        # A busy machine can stop any program for a second, so only an input that is slow again and again counts.
        if isinstance(error, TookTooLong):
            again = (self.error_of(place, content) for _ in range(TIMES_TO_RETRY))
            return "takes too long" if all(isinstance(each, TookTooLong) for each in again) else ""
        if error is not None and not isinstance(error, FxdaskError):
            return f"raises {type(error).__name__}"
        if error is not None and len(str(error).splitlines()) != 1:
            return "raises a message that is not one line"
        if sorted(os.listdir(self.parent)) != ["elsewhere", "given"] or os.listdir(self.elsewhere):
            return "writes outside of its folder"
        return ""

    def error_without_limit(self, place, content):
        """The exception of one input that may reserve 4 GiB, and the bytes that it used.

        Arrow reserves what a page of Parquet claims to need before it reads the page. The system gives memory only
        where something is written.
        """
        limits = resource.getrlimit(resource.RLIMIT_DATA)
        limit_memory(MOST_RESERVED)
        Path("/proc/self/clear_refs").write_text("5")  # VmHWM begins anew
        before = bytes_of("VmRSS")
        try:
            return self.error_of(place, content), bytes_of("VmHWM") - before
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, limits)


def lines_of(error):
    """The lines of code that an exception passed, as a key of the outcome."""
    return tuple(
        (frame.f_code.co_filename, number)
        for each in chain_of(error)
        for frame, number in traceback.walk_tb(each.__traceback__)
    )


def chain_of(error):
    """An exception, what caused it, and so on."""
    found = []
    while error is not None and len(found) < 10:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def wants_memory(error):
    """Whether this is an error of memory, but not of Zarr's codec of texts.

    For the number of texts that a chunk claims to have, the codec takes 8 bytes each before it reads any of them, and
    fxdask cannot look into a compressed chunk.
    """
    if not isinstance(error, MemoryError):
        return False
    frames = [frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__)]
    return not frames[-1].endswith("vlen.pyx")


def description(problem, place, content, error):
    """A finding as text: the problem, the input, and the traceback."""
    shown = content if len(content) <= 1500 else content[:1500] + b"..."
    trace = "" if error is None else "".join(traceback.format_exception(error))[-2500:]
    return f"{problem}: {place}, {len(content)} bytes\n{shown!r}\n{trace}"


def limit_memory(most_bytes=MOST_BYTES):
    """Let this process allocate no more than so many bytes besides what it has now; more raises a MemoryError."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (bytes_of("VmData") + most_bytes, hard))


def bytes_of(name):
    """One of the figures that the system has of the memory of this process."""
    (kilobytes,) = re.findall(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(kilobytes) * 1024


@contextlib.contextmanager
def alarm_raises():
    """Raise TookTooLong when the timer of a ``with`` block rings; the limit of memory ends with it, too."""

    def stop(signum, frame):
        raise TookTooLong

    earlier, limits = signal.signal(signal.SIGALRM, stop), resource.getrlimit(resource.RLIMIT_DATA)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, earlier)
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def measured(fuzzer, n_inputs, seed):
    """Run a fuzzer -> its outcome, and its inputs per second."""
    started = time.perf_counter()
    outcome = fuzzer.run(n_inputs, seed)
    return outcome, outcome.inputs / (time.perf_counter() - started)
