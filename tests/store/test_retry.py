"""Transient storage errors are retried, other errors are reported at once."""

import errno

import pytest
from processes import run_python

from fxdask.errors import StoreReadError, StoreWriteError
from fxdask.store import retry
from fxdask.store.retry import reading, retried, writing

# For one second the process may not open any file, so the operating system itself reports an error.
STARVED = """
import logging, resource, sys, threading
import numpy as np
from fxdask import FisherNetworkClassifier
from fxdask.execution import fit as fit_graphs

folder = sys.argv[1]
X, y = np.random.default_rng(0).standard_normal((400, 3)), np.arange(400) % 2
np.save(f"{folder}/X.npy", X)

def fit(name):
    clf = FisherNetworkClassifier(40, 2, nodes_per_block=10, store=f"{folder}/{name}")
    return clf.fit(f"{folder}/X.npy", y)

expected = fit("first.zarr")
logging.basicConfig(format="%(message)s")
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
fit_blocks = fit_graphs.fit_blocks

def starved(*args):
    threading.Timer(1.0, resource.setrlimit, (resource.RLIMIT_NOFILE, (soft, hard))).start()
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    return fit_blocks(*args)

fit_graphs.fit_blocks = starved
assert np.array_equal(fit("second.zarr").divergences_, expected.divergences_)
"""


def test_a_process_without_free_file_descriptors_retries(tmp_path):
    status, _, errors = run_python("-c", STARVED, tmp_path)
    assert status == 0, errors
    assert "Too many open files" in errors
    assert "retrying in 0.5 s" in errors


def failing(*errors):
    """A function that raises these errors one after the other, and counts its calls."""
    remaining = list(errors)

    @retried
    def work():
        work.calls += 1
        if remaining:
            with writing("store"):
                raise remaining.pop(0)
        return "done"

    work.calls = 0
    return work


@pytest.fixture
def no_pauses(monkeypatch):
    monkeypatch.setattr(retry, "RETRY_DELAYS", (0.0, 0.0, 0.0))


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    "error", [OSError(errno.EIO, "x"), OSError(errno.ESTALE, "x"), TimeoutError(), BrokenPipeError()]
)
def test_a_transient_error_is_tried_four_times(error):
    assert failing(*[error] * 3)() == "done"
    work = failing(*[error] * 4)
    with pytest.raises(StoreWriteError, match="could not write to store"):
        work()
    assert work.calls == 4


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.ENOENT, errno.EROFS, errno.EDQUOT])
def test_a_permanent_error_is_raised_at_once(number):
    work = failing(OSError(number, "x"))
    with pytest.raises(StoreWriteError):
        work()
    assert work.calls == 1


@pytest.mark.usefixtures("no_pauses")
def test_nested_functions_do_not_multiply_their_retries():
    inner = failing(*[OSError(errno.EIO, "x")] * 100)
    with pytest.raises(StoreWriteError):
        retried(inner)()
    assert inner.calls == 4


@pytest.mark.usefixtures("no_pauses")
def test_an_error_without_context_names_its_file():
    @retried
    def look():
        raise PermissionError(errno.EACCES, "Permission denied", "m.zarr/labels/c/0")

    with pytest.raises(StoreReadError, match="could not read m.zarr/labels/c/0: Permission denied; solve that problem"):
        look()


def test_a_failed_read_is_reported_in_one_sentence():
    message = "could not read labels of m.zarr: Input/output error; solve that problem"
    with pytest.raises(StoreReadError, match=message), reading("m.zarr", "labels"):
        raise OSError(errno.EIO, "Input/output error")
