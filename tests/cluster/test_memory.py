"""Workers with little memory: plans fit into it, tasks stay within it, and too little is refused."""

import os

import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

from fxdask import FisherNetworkClassifier
from fxdask.errors import MemoryPlanError
from fxdask.execution import fit as fit_graphs
from fxdask.store.columns import StagedCodes
from fxdask.tasks.telemetry import peak_bytes

LIMIT = 420 * 2**20
# Few selected nodes and the rule that learns least, because the memory of the blocks is looked at.
NETWORK = {"n_nodes": 100, "nodes_per_block": 50, "n_selected": 1, "combine": "sum"}


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Samples whose projections onto one tile of nodes exceed the memory of a worker."""
    rng = np.random.default_rng(0)
    file = tmp_path_factory.mktemp("data") / "X.npy"
    X = rng.standard_normal((400_000, 20), dtype=np.float32)
    np.save(file, X)
    return file, X, rng.integers(0, 2, len(X))


@pytest.fixture(scope="module")
def in_memory(many):
    """The same fit on local threads without a limit."""
    _, X, y = many
    clf = FisherNetworkClassifier(**NETWORK).fit(X, y)
    assert clf.fit_info_["plan"]["values_held"] == "of all samples"
    return clf


@pytest.fixture(scope="module")
def small_workers(in_memory):
    """Two worker processes with nannies, which would restart them at 95% of the limit.

    ``in_memory`` is fitted before the cluster starts, because fits use the cluster from then on.
    """
    with (
        LocalCluster(n_workers=2, threads_per_worker=1, memory_limit=LIMIT, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


@pytest.mark.parametrize("kind", ["npy", "numpy", "no store"])
def test_samples_larger_than_a_worker_give_the_same_values(many, in_memory, small_workers, tmp_path, kind, monkeypatch):
    file, X, y = many
    jobs, fit_blocks = [], fit_graphs.fit_blocks
    monkeypatch.setattr(fit_graphs, "fit_blocks", lambda job, *rest: jobs.append(job) or fit_blocks(job, *rest))
    data = X if kind == "numpy" else file
    processes = small_workers.run(os.getpid)
    store, kept = None if kind == "no store" else tmp_path / "model.zarr", "table" if kind == "npy" else "selected"
    clf = FisherNetworkClassifier(**NETWORK, store=store, keep_projections=kept)
    plan = clf.plan(data, y)
    assert plan.is_streamed
    assert plan.resources.limit == LIMIT
    assert plan.resources.processes == 2
    clf.fit(data, y)
    assert clf.divergences_.tobytes() == in_memory.divergences_.tobytes()
    assert clf.network_.bandwidth.tobytes() == in_memory.network_.bandwidth.tobytes()
    assert np.array_equal(clf.predict(X[:2_000]), in_memory.predict(X[:2_000]))
    read = clf.fit_info_["bytes_read_by_process"]
    assert sum(read.values()) == plan.bytes_read > 0
    assert len(read) == 2, "both workers read samples"
    assert isinstance(jobs[0].codes, StagedCodes) == (kind != "no store"), "no task holds the codes of all samples"
    assert small_workers.run(os.getpid) == processes, "no worker was restarted"
    assert max(small_workers.run(peak_bytes).values()) < 0.8 * LIMIT
    assert max(clf.fit_info_["peak_bytes_by_process"].values()) <= max(small_workers.run(peak_bytes).values())


def test_projections_that_workers_cannot_hold_are_refused_before_anything_is_written(many, small_workers, tmp_path):
    file, _, y = many
    clf = FisherNetworkClassifier(**NETWORK, store=tmp_path / "model.zarr", keep_projections="all")
    with pytest.raises(MemoryPlanError, match=r'keep_projections="all" needs .* but a task may use'):
        clf.fit(file, y)
    assert not (tmp_path / "model.zarr").exists()


def test_a_memory_limit_below_that_of_the_workers_applies(many, small_workers):
    file, _, y = many
    with pytest.raises(MemoryPlanError, match=r"of the limit of 100.0 MiB less the \d+\.\d MiB already in use"):
        FisherNetworkClassifier(**NETWORK, memory_limit="100 MiB").plan(file, y)


def test_few_samples_are_read_once_by_each_worker(small_workers, tmp_path):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3_000, 10)).astype(np.float32)
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(500, 10))
    clf = FisherNetworkClassifier(2_000, 5, nodes_per_block=100).fit(tmp_path / "X.zarr", np.arange(3_000) % 2)
    assert clf.fit_info_["n_blocks"] == 20
    assert all(read == X.nbytes for read in clf.fit_info_["bytes_read_by_process"].values())
