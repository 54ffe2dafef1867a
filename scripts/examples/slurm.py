"""Fit and score on workers that Slurm starts, with dask-jobqueue.

    python slurm.py FOLDER [--local]

All machines must see FOLDER, and this Python with fxdask and dask-jobqueue, under the same path. --local starts the
workers on this machine instead, to try the program without Slurm. deploy/slurm/fit.py is a longer version: it uses TLS
and replaces jobs that reach their time limit.
"""

import sys
from pathlib import Path

import numpy as np
from dask.distributed import Client, LocalCluster
from dask_jobqueue import SLURMCluster

import fxdask

N_JOBS = 2
JOB = {  # of one job, which is one worker
    "queue": None,  # the partition; None: Slurm's default
    "cores": 2,
    "memory": "4 GiB",
    "walltime": "00:30:00",
}


def start_cluster(folder: Path, is_local: bool) -> LocalCluster | SLURMCluster:
    """A cluster whose workers are jobs; they are submitted at once, and join when Slurm starts them."""
    if is_local:
        return LocalCluster(n_workers=N_JOBS, threads_per_worker=1)
    cluster = SLURMCluster(**JOB, processes=1, log_directory=str(folder / "slurm-logs"))
    cluster.scale(jobs=N_JOBS)
    return cluster


def main(folder: Path, is_local: bool) -> None:
    """Write the data, fit on the first workers that come, and score."""
    folder.mkdir(parents=True, exist_ok=True)
    y = np.arange(4_000) % 2
    X = np.random.default_rng(0).standard_normal((4_000, 20), dtype=np.float32)
    X[y == 1, :10] *= 3  # the same means, other variances
    np.save(folder / "train.npy", X[:2_000])
    np.save(folder / "test.npy", X[2_000:])
    with start_cluster(folder, is_local) as cluster, Client(cluster) as client:
        client.wait_for_workers(1, timeout=600)
        clf = fxdask.FisherNetworkClassifier(n_nodes=500, store=folder / "model.zarr")
        clf.fit(folder / "train.npy", y[:2_000])  # after an interruption, the same call resumes
        scores = fxdask.batch_score(clf, folder / "test.npy", folder / "scored.zarr", y[2_000:], overwrite=True)
    print(f"{scores.accuracy:.1%} right, {len(clf.fit_info_['blocks_by_process'])} processes fitted")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit("usage: python slurm.py FOLDER [--local]")
    main(Path(sys.argv[1]).absolute(), "--local" in sys.argv[2:])
