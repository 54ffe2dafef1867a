"""Fit and score on a Dask cluster of this machine: two worker processes, data and results in Zarr stores.

    python local_cluster.py [FOLDER]

Run it twice with a folder: the second run loads the finished model and scores. For another cluster, replace
LocalCluster(...) by its address: Client("tcp://scheduler:8786").
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import zarr
from dask.distributed import Client, LocalCluster

import fxdask

N_TRAIN, N_TEST, N_FEATURES = 2_000, 20_000, 50


def make_data(folder: Path) -> None:
    """Two classes with the same mean; ten of 50 features vary more in the second class."""
    rng = np.random.default_rng(0)
    for name, n_samples in (("train", N_TRAIN), ("test", N_TEST)):
        y = np.arange(n_samples) % 2
        X = rng.standard_normal((n_samples, N_FEATURES), dtype=np.float32)
        X[y == 1, :10] *= 2.5
        zarr.create_array(folder / f"{name}.zarr", data=X, chunks=(5_000, N_FEATURES), overwrite=True)
        np.save(folder / f"{name}-labels.npy", y)


def main(folder: Path) -> None:
    """Fit into a store, score the test set into another one, and show what each worker did."""
    make_data(folder)
    model = folder / "model.zarr"
    with LocalCluster(n_workers=2, threads_per_worker=1) as cluster, Client(cluster):
        clf = fxdask.FisherNetworkClassifier(n_nodes=1_000, n_selected=10, store=model)
        print(clf.plan(folder / "train.zarr", folder / "train-labels.npy").n_blocks, "blocks of nodes")
        clf.fit(folder / "train.zarr", folder / "train-labels.npy")
        scores = fxdask.batch_score(
            model, folder / "test.zarr", folder / "scored.zarr", folder / "test-labels.npy", overwrite=True
        )
    print(f"{scores.accuracy:.1%} of {N_TEST:,} samples are right")
    labels = zarr.open_group(folder / "scored.zarr")["labels"]
    print("labels in", labels.store_path.store.root.name, labels.shape)


if __name__ == "__main__":  # worker processes import this file, too
    if len(sys.argv) > 1:
        Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
