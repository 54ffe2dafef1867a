"""What workers and scheduler hold of a fit does not grow with the number of its blocks."""

import time
import warnings
from contextlib import nullcontext

import dask
import numpy as np

import fxdask

N_BLOCKS = 150
MOST_HELD = 10
"""The results of the last merges."""


def test_results_of_blocks_do_not_stay_on_the_workers(client, tmp_path, monkeypatch):
    """Workers of many blocks would fill their memory with them, and Dask would pause them for good."""
    X = np.random.default_rng(0).standard_normal((60, 5), dtype=np.float32)
    held = []

    def count(done, total):
        for _ in range(100 if done == total == N_BLOCKS else 0):
            held.append(sum(client.run(lambda dask_worker: len(dask_worker.data)).values()))
            if held[-1] <= MOST_HELD:
                break
            time.sleep(0.1)  # a worker frees a result a moment after its merge

    with monkeypatch.context() as patched:
        patched.setattr("fxdask.workflows.fit.progress_bar", lambda *_, **__: nullcontext(count))
        clf = fxdask.FisherNetworkClassifier(N_BLOCKS, 2, nodes_per_block=1, store=tmp_path / "model.zarr")
        clf.fit(X, np.arange(60) % 2)
    assert clf.fit_info_["n_blocks"] == N_BLOCKS
    assert held[-1] <= MOST_HELD


def test_a_graph_of_many_blocks_gives_no_warning(client, tmp_path):
    """Dask would advise a user who cannot change the graph."""
    X = np.random.default_rng(0).standard_normal((60, 5), dtype=np.float32)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1kB"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = fxdask.FisherNetworkClassifier(40, 2, nodes_per_block=4, store=tmp_path / "model.zarr")
        clf.fit(X, np.arange(60) % 2)
    assert clf.fit_info_["n_blocks"] == 10
