"""Models have the same bytes whatever the number of threads that BLAS uses."""

import os
import subprocess
import sys
from unittest.mock import patch

from small import chunk_files
from threadpoolctl import threadpool_info

PROGRAM = """
import sys
import numpy as np
from fxdask import FisherNetworkClassifier

folder = sys.argv[1]
rng = np.random.default_rng(0)
y = np.arange(900) % 3
X = (rng.standard_normal((900, 50)) * (1 + y[:, None] / 4)).astype(np.float32)
options = {"nodes_per_block": 300, "normalize": None}
FisherNetworkClassifier(1000, 5, store=f"{folder}/top.zarr", keep_projections="all", **options).fit(X, y)
clf = FisherNetworkClassifier(600, 3, store=f"{folder}/joint.zarr", selection="joint", **options).fit(X, y)
np.save(f"{folder}/scores.npy", clf.decision_function(X))
"""


def test_the_number_of_blas_threads_changes_no_byte(tmp_path):
    """One of them in a process of its own, because NumPy reads the number of threads when it is imported."""
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    with patch.object(sys, "argv", ["-c", str(here)]):
        exec(PROGRAM, {})
    pools = [pool["num_threads"] for pool in threadpool_info() if pool["user_api"] == "blas"]
    threads = 2 if max(pools) == 1 else 1  # another number than here
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": str(threads)}
    subprocess.run([sys.executable, "-c", PROGRAM, str(there)], check=True, env=environment)
    for name in ("top.zarr", "joint.zarr"):
        stored = chunk_files(here / name)
        assert len(stored) > 15
        assert stored == chunk_files(there / name)
    assert (here / "scores.npy").read_bytes() == (there / "scores.npy").read_bytes()
