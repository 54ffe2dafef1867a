"""Foreign bytes at every reader: mutated files end in an error of fxdask of one line, and nothing worse.

Without --full a few inputs with a fixed seed, with --full 100,000 for each target.
"""

import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from fxdask.errors import StoreFormatError

from .engine import MOST_BYTES, MOST_RESERVED, Fuzzer
from .results import Examples, ResultsFiles, SchedulerFiles
from .sources import IdxFiles, NpyFiles, ParquetFiles, ScoreTables, ZarrArrays
from .stores import (
    Leases,
    Manifests,
    Marks,
    ModelArrays,
    ModelHeaders,
    ResumedModels,
    ScoresAndRankings,
)
from .words import CommandWords

MEMORY_DISK = Path("/dev/shm")
INPUTS = {
    ModelHeaders: 30,
    ModelArrays: 60,
    ScoresAndRankings: 200,
    Manifests: 200,
    Marks: 80,
    ResumedModels: 150,
    Leases: 400,
    ScoreTables: 400,
    IdxFiles: 1000,
    NpyFiles: 500,
    ZarrArrays: 200,
    ParquetFiles: 300,
    ResultsFiles: 500,
    Examples: 150,
    SchedulerFiles: 1000,
    CommandWords: 100,
}
"""Inputs of a short run, about a second for each target."""
FULL = 100_000
MOST_SECONDS = {False: 20.0, True: 1.0}
"""A short run shares the machine with other tests, so only a reader that hangs is stopped."""


@pytest.fixture
def parent():
    """A folder in memory, if there is such a disk, because every input is written to a file."""
    folder = tempfile.mkdtemp(prefix="fxdask-fuzz-", dir=MEMORY_DISK if MEMORY_DISK.is_dir() else None)
    yield Path(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.parametrize("target", INPUTS, ids=lambda target: target.__name__)
def test_foreign_bytes_end_in_our_own_errors(target, parent, pytestconfig):
    is_full = pytestconfig.getoption("--full")
    fuzzer = Fuzzer(target, parent, seconds=MOST_SECONDS[is_full])
    outcome = fuzzer.run(FULL if is_full else INPUTS[target], seed=target.__name__)
    print(f"{target.__name__}: {outcome}")
    assert outcome.inputs > len(fuzzer.target.seeds)
    assert bool(outcome.refused) == target.refuses
    assert not outcome.findings, "\n\n".join(outcome.findings.values())


class Careless(IdxFiles):
    """A reader with the faults that the invariants forbid, chosen by the first byte of its input."""

    def feed(self, place, content):
        fault = content[:1]
        if fault == b"k":
            raise KeyError("header")
        if fault == b"w":
            (self.folder.parent / "elsewhere" / "file").touch()
        if fault == b"m":
            bytearray(2 * MOST_BYTES)
        if fault == b"r":
            np.empty(2 * MOST_BYTES, np.uint8)
        if fault == b"c":
            try:
                bytearray(2 * MOST_RESERVED)
            except MemoryError as error:
                raise StoreFormatError("damaged") from error
        while fault == b"h":
            pass


@pytest.mark.parametrize(
    ("fault", "problem"),
    [
        (b"k", "raises KeyError"),
        (b"w", "writes outside of its folder"),
        (b"m", "uses more than 64 MiB"),
        (b"c", "uses more than 64 MiB"),
        (b"h", "takes too long"),
    ],
)
def test_the_fuzzer_finds_each_fault(fault, problem, parent):
    fuzzer = Fuzzer(Careless, parent, seconds=0.2)
    fuzzer.target.mutate = lambda rng, content: fault
    assert [found for found, _ in fuzzer.run(1).findings] == [problem]


def test_memory_that_is_only_reserved_is_no_finding(parent):
    fuzzer = Fuzzer(Careless, parent, seconds=5)
    fuzzer.target.mutate = lambda rng, content: b"r"
    outcome = fuzzer.run(1)
    assert outcome.refused.total() == 1
    assert not outcome.findings
