"""The memory of a task that a plan predicts, compared with what NumPy allocates while the task runs."""

import tracemalloc

import dask
import numpy as np
import pytest
import zarr

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.execution import score as score_graphs
from fxdask.tasks import fit as tasks
from fxdask.tasks import score as score_tasks
from fxdask.tasks.telemetry import resident_bytes

MIB = 2**20


def traced(task, peaks):
    """The same task; it also appends its peak of allocated bytes to ``peaks``."""

    def run(*arguments):
        tracemalloc.start()
        try:
            return task(*arguments)
        finally:
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()

    return run


@pytest.fixture
def peaks(monkeypatch):
    """The peak of allocated bytes of each block's task."""
    found = []
    monkeypatch.setattr(tasks, "fit_block", traced(tasks.fit_block, found))
    with dask.config.set(num_workers=1):
        yield found


def samples(kind, shape, dtype, folder):
    X = (np.random.default_rng(0).standard_normal(shape) * 20 + 100).astype(dtype)
    if kind == "numpy":
        return X
    if kind == "npy":
        np.save(folder / "X.npy", X)
        return folder / "X.npy"
    zarr.create_array(folder / "X.zarr", data=X, chunks=(3_000, max(1, shape[1] // 2)))
    return folder / "X.zarr"


@pytest.mark.parametrize(
    ("kind", "shape", "dtype", "normalize", "megabytes", "parameters"),
    [
        ("numpy", (12_000, 100), np.float32, None, None, {}),
        ("npy", (3_000, 784), np.uint8, None, None, {}),
        ("npy", (12_000, 784), np.uint8, "sample", None, {}),
        ("npy", (20_000, 200), np.float64, "feature", None, {}),
        ("npy", (1_500, 8_192), np.float32, "sample", None, {}),
        ("zarr", (40_000, 200), np.float32, None, None, {"spread": "std"}),
        ("npy", (100_000, 8), np.float32, None, 32, {}),
        ("npy", (100_000, 8), np.float32, None, 32, {"location": "mean", "spread": "std"}),
        ("zarr", (100_000, 60), np.float64, "sample", 100, {}),
        ("numpy", (120_000, 20), np.uint8, None, 60, {}),
    ],
)
def test_no_fit_task_uses_more_memory_than_planned(
    kind, shape, dtype, normalize, megabytes, parameters, peaks, tmp_path
):
    X, y = samples(kind, shape, dtype, tmp_path), np.arange(shape[0]) % 3
    limit = None if megabytes is None else int((resident_bytes() + megabytes * MIB) / 0.6)
    clf = FisherNetworkClassifier(
        64,
        5,
        combine="sum",  # the rule learns after the blocks, whose memory is measured here
        normalize=normalize,
        memory_limit=limit,
        store=tmp_path / "model.zarr",
        **parameters,
    )
    plan = clf.plan(X, y)
    assert plan.is_streamed == (megabytes is not None)
    clf.fit(X, y)
    assert len(peaks) == plan.n_blocks
    assert MIB < max(peaks) <= plan.task_bytes


def test_many_classes_use_no_more_memory_than_planned(peaks, tmp_path):
    X, y = samples("numpy", (60_000, 20), np.float32, tmp_path), np.arange(60_000) % 80
    clf = FisherNetworkClassifier(400, 1, combine="sum", memory_limit=int((resident_bytes() + 75 * MIB) / 0.6))
    plan = clf.plan(X, y)
    assert plan.is_streamed
    assert plan.kept_counts == plan.class_counts
    clf.fit(X, y)
    assert len(peaks) == plan.n_blocks
    assert MIB < max(peaks) <= plan.task_bytes


@pytest.mark.parametrize(
    ("kind", "shape", "dtype", "normalize", "parameters"),
    [
        ("npy", (40_000, 100), np.float32, None, {}),
        ("zarr", (40_000, 100), np.float64, "feature", {"combine": "log"}),
        ("npy", (20_000, 784), np.uint8, "sample", {}),
        ("numpy", (60_000, 20), np.float32, None, {"n_selected": 100}),
        ("numpy", (200_000, 2), np.float32, None, {"n_selected": 1}),
    ],
)
def test_no_scoring_task_uses_more_memory_than_planned(
    kind, shape, dtype, normalize, parameters, tmp_path, monkeypatch
):
    data = samples(kind, shape, dtype, tmp_path)
    head = (np.random.default_rng(0).standard_normal((400, shape[1])) * 20 + 100).astype(dtype)
    clf = FisherNetworkClassifier(300, normalize=normalize, **parameters).fit(head, np.arange(400) % 2)
    clf.predict(head)  # makes the density tables, which belong to the model and not to a task
    found, plans, score = [], [], score_graphs.score

    def planned(job, handle, plan, *rest):
        plans.append(plan)
        return score(job, handle, plan, *rest)

    monkeypatch.setattr(score_tasks, "score_rows", traced(score_tasks.score_rows, found))
    monkeypatch.setattr(score_graphs, "score", planned)
    with dask.config.set(num_workers=1):
        fxdask.batch_score(clf, data, tmp_path / "out.zarr", likelihood=True)
    (plan,) = plans
    assert len(found) == plan.n_tasks
    assert max(found) <= plan.task_bytes + 2 * MIB
    assert plan.task_bytes < 3 * max(found) + 8 * MIB, "the estimate is not much too high"
