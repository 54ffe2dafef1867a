"""Every stage of a fit goes on after a worker died in it, not only the blocks, which are marked in the store."""

import logging

import numpy as np
import zarr
from distributed import Client

import fxdask
from fxdask.execution.scan import probe_samples
from fxdask.store.sources import ZarrAddress

from .conftest import dask_processes

RNG = np.random.default_rng(5)
X = RNG.standard_normal((200, 6)).astype(np.float32)
Y = np.arange(200) % 2
X[Y == 1] *= 2

DYING_ONCE = """
import os
import signal
from pathlib import Path
from fxdask.tasks import fit, pool, scan

def dying_once(module, name):
    function = getattr(module, name)
    def dies(*arguments, **options):
        try:
            Path({folder!r}, name).touch(exist_ok=False)
        except FileExistsError:
            return function(*arguments, **options)
        os.kill(os.getpid(), signal.SIGKILL)
    setattr(module, name, dies)

for name in ("scan_rows", "norm_rows", "probe_rows"):
    dying_once(scan, name)
dying_once(pool, "sum_products")
dying_once(fit, "project_rows")
"""
STAGES = ("scan_rows", "norm_rows", "probe_rows", "sum_products", "project_rows")


def test_stages_that_store_nothing_are_sent_again(tmp_path, caplog):
    for name in ("cluster", "died"):
        (tmp_path / name).mkdir()
    zarr.create_array(tmp_path / "X.zarr", data=X, chunks=(50, 6))
    preload = tmp_path / "dying_once.py"
    preload.write_text(DYING_ONCE.format(folder=str(tmp_path / "died")))
    settings = {
        "DASK_DISTRIBUTED__WORKER__PRELOAD": str(preload),
        "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
    }
    want = fxdask.FisherNetworkClassifier(100, 3, selection="joint").fit(X, Y)
    caplog.set_level(logging.WARNING, "fxdask")
    with dask_processes(tmp_path / "cluster", len(STAGES) + 1, **settings) as address, Client(address):
        got = fxdask.FisherNetworkClassifier(100, 3, selection="joint", store=tmp_path / "m.zarr")
        got.fit(tmp_path / "X.zarr", Y)
        chosen = np.array([3, 50, 199])
        probes = probe_samples(ZarrAddress(str(tmp_path / "X.zarr")), *X.shape, chosen)
    assert np.array_equal(got.divergences_, want.divergences_)
    assert np.array_equal(got.selected_nodes_, want.selected_nodes_)
    assert np.array_equal(probes, X[chosen])
    assert {path.name for path in (tmp_path / "died").iterdir()} == set(STAGES)
    assert caplog.text.count("workers were lost") == len(STAGES)
