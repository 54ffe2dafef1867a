"""What workers and scheduler hold of a fit does not grow with the number of its blocks."""

import warnings

import dask
import numpy as np

import fxdask

N_BLOCKS = 150
MOST_HELD = 40
"""Results of blocks that wait for their merge, and of running ones; each merge takes eight."""


def test_results_of_blocks_do_not_stay_on_the_workers(client, tmp_path, monkeypatch):
    """Workers of many blocks would fill their memory with them, and Dask would pause them for good."""
    X = np.random.default_rng(0).standard_normal((60, 5), dtype=np.float32)
    held = []

    def count(done, total):
        if total == N_BLOCKS and done % 25 == 0:
            held.append(sum(client.run(lambda dask_worker: len(dask_worker.data)).values()))

    with monkeypatch.context() as patched:
        patched.setattr("fxdask.workflows.fit.progress_bar", lambda *_, **__: _Reporting(count))
        clf = fxdask.FisherNetworkClassifier(N_BLOCKS, 2, nodes_per_block=1, store=tmp_path / "model.zarr")
        clf.fit(X, np.arange(60) % 2)
    assert clf.fit_info_["n_blocks"] == N_BLOCKS
    assert len(held) == N_BLOCKS // 25
    assert max(held) <= MOST_HELD


def test_a_graph_of_many_blocks_gives_no_warning(client, tmp_path):
    """Dask would advise a user who cannot change the graph."""
    X = np.random.default_rng(0).standard_normal((60, 5), dtype=np.float32)
    with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1kB"}), warnings.catch_warnings():
        warnings.simplefilter("error")
        clf = fxdask.FisherNetworkClassifier(40, 2, nodes_per_block=4, store=tmp_path / "model.zarr")
        clf.fit(X, np.arange(60) % 2)
    assert clf.fit_info_["n_blocks"] == 10


class _Reporting:
    """A progress bar that passes every report on."""

    def __init__(self, report):
        self._report = report

    def __enter__(self):
        return self._report

    def __exit__(self, *_):
        pass
