"""Structured fits on worker processes: the same bytes as on local threads."""

import dask.array as da
import numpy as np
import pytest
import zarr
from small import chunk_files

import fxdask
from fxdask import FisherNetworkClassifier

Y = np.arange(1_500) % 3
X = (np.random.default_rng(0).standard_normal((1_500, 20)) * (1 + 0.2 * Y[:, None])).astype(np.float32)
PARAMETERS = {"n_nodes": 600, "n_selected": 4, "nodes_per_block": 100, "projection": "structured"}


@pytest.fixture(scope="module", params=["top", "joint"])
def reference(request, tmp_path_factory):
    """The same plan on local threads."""
    store = tmp_path_factory.mktemp("reference") / "model.zarr"
    return FisherNetworkClassifier(**PARAMETERS, selection=request.param, store=store).fit(X, Y), store


@pytest.mark.parametrize("kind", ["dask", "zarr"])
def test_a_fit_on_workers_writes_the_same_bytes(client, reference, kind, tmp_path):
    threaded, its_store = reference
    data = da.from_array(X, chunks=(333, 7))
    if kind == "zarr":
        data = tmp_path / "X.zarr"
        zarr.create_array(data, data=X, chunks=(200, 11))
    store = tmp_path / "model.zarr"
    clf = FisherNetworkClassifier(**PARAMETERS, selection=threaded.selection, store=store).fit(data, Y)
    assert len(clf.fit_info_["blocks_by_process"]) == 2
    assert chunk_files(store) == chunk_files(its_store)
    loaded = fxdask.load(store)
    assert loaded.projection_ == "structured"
    assert np.array_equal(loaded.predict_log_proba(X), threaded.predict_log_proba(X))
    assert np.array_equal(clf.predict(da.from_array(X, chunks=(400, 20))).compute(), threaded.predict(X))
    assert np.array_equal(clf.responses(X[:2], X_train=X), threaded.responses(X[:2], X_train=X))
