"""Scoring in a separate process that is killed, and the files that it leaves."""

import time

import numpy as np
import pytest
import zarr
from processes import PythonProcess

from fxdask import FisherNetworkClassifier

PROGRAM = """
import sys, time
import fxdask
from fxdask.planning import score_plan
from fxdask.tasks import score as score_tasks
score_plan.BYTES_PER_TASK = 1
read = score_tasks.read_pieces
def slow(*arguments):
    time.sleep(0.05)
    return read(*arguments)
score_tasks.read_pieces = slow
fxdask.batch_score(*sys.argv[1:])
"""


def wide_in(folder):
    """A model and a test set of 40 chunks, both stored in a folder."""
    rng = np.random.default_rng(3)
    X = rng.standard_normal((4_000, 30)).astype(np.float32)
    X[::2] *= 1.3
    y = np.arange(4_000) % 2
    model = FisherNetworkClassifier(200, 5, store=folder / "model.zarr").fit(X[:600], y[:600])
    zarr.create_array(folder / "X.zarr", data=X, chunks=(100, 30))
    return model, X, y


def begun(tmp_path):
    """The hidden folders of unfinished scores."""
    return list(tmp_path.glob(".out.zarr.next-*"))


def kill_while_scoring(tmp_path):
    """Start scoring in a separate process and send it SIGKILL after it has written some chunks."""
    arguments = [tmp_path / "model.zarr", tmp_path / "X.zarr", tmp_path / "out.zarr"]
    process = PythonProcess("-c", PROGRAM, *arguments)
    try:
        for _ in range(3_000):
            (folder,) = begun(tmp_path) or [None]
            if folder and len([file for file in (folder / "labels" / "c").glob("*") if file.suffix == ""]) >= 5:
                return
            assert process.poll() is None, "the process ended before it could be killed"
            time.sleep(0.01)
        pytest.fail("no chunks were written within 30 s")
    finally:
        process.kill()
        process.wait()


def scored(folder):
    """The labels and scores in a store."""
    group = zarr.open_group(folder, mode="r")
    return group["labels"][:], group["scores"][:]
