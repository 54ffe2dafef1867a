"""Fit on workers that Slurm starts.

Edit the three lines below, then run this with a Python that all machines see under the same path and that has fxdask
and dask-jobqueue. It starts the workers as jobs, fits, and ends them. A job that ends before the fit does is replaced,
and if this program ends before the fit does, the same call goes on from what the store has.
"""

import signal
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

from dask.utils import parse_bytes
from dask_jobqueue import SLURMCluster
from distributed import Client, Security

import fxdask

# --- Edit these three lines ---
QUEUE, ACCOUNT = "compute", None  # EDIT 1 of 3: the partition, and who pays (None: what Slurm takes by itself)
JOBS = 4  # EDIT 2 of 3: how many jobs, each of them one worker
SAMPLES, LABELS, MODEL = "/shared/X.zarr", "/shared/y.npy", "/shared/model.zarr"  # EDIT 3 of 3: seen by all machines
# --- What follows may stay as it is ---

NODES, SELECTED = 10_000, 10
CORES = 4  # of a job, and so many tasks at a time
MEMORY = "16 GiB"  # of a job's worker
MINUTES = 240  # that a job may run
INTERFACE = None  # the network interface, such as "ib0", where machines have more than one
SECONDS_BETWEEN_LOOKS = 30  # at whether all jobs are there

NANNY_MEBIBYTES = 512  # for the process that watches the worker, and for what a worker takes between two looks
SECONDS_TO_LEAVE = 300  # before Slurm would end the job, a worker hands its results over and leaves


def slurm_cluster() -> SLURMCluster:
    """A scheduler in this process, and jobs that are workers; nothing is submitted yet.

    Other users of the machines reach its ports, so all of it speaks TLS, with certificates made for this run. Their
    files lie beside the model, readable by their owner alone.
    """
    beside_model = Path(MODEL).absolute().parent
    return SLURMCluster(
        queue=QUEUE,
        account=ACCOUNT,
        job_name="fxdask",
        cores=CORES,
        processes=1,
        memory=MEMORY,
        job_mem=f"{-(-parse_bytes(MEMORY) // 2**20) + NANNY_MEBIBYTES}M",
        walltime=str(MINUTES),
        nanny=True,
        interface=INTERFACE,
        protocol="tls://",
        security=Security.temporary(),
        shared_temp_directory=str(beside_model),
        log_directory=str(beside_model / "slurm-logs"),
        local_directory="${TMPDIR:-/tmp}",  # the job's own disk; its shell fills this in
        death_timeout=120,  # a worker whose scheduler is gone does not stay until its time is over
        worker_extra_args=["--lifetime", f"{MINUTES * 60 - SECONDS_TO_LEAVE}s", "--lifetime-stagger", "60s"],
    )


@contextmanager
def jobs_replaced(cluster: SLURMCluster):
    """As many jobs as were asked for, for the length of the block: one that ends is followed by another."""
    done = threading.Event()

    def look() -> None:
        cluster.scale(jobs=JOBS)
        while not done.wait(SECONDS_BETWEEN_LOOKS):
            cluster.scale(jobs=JOBS)

    looking = threading.Thread(target=look, daemon=True)
    looking.start()
    try:
        yield
    finally:
        done.set()
        looking.join()


def main() -> fxdask.FisherNetworkClassifier:
    """Start the jobs, fit, and end them, also after an error or Ctrl-C."""
    with slurm_cluster() as cluster, jobs_replaced(cluster), Client(cluster) as client:
        print("waiting for the first job to start ...", flush=True)
        client.wait_for_workers(1)
        classifier = fxdask.FisherNetworkClassifier(NODES, SELECTED, store=MODEL, verbose=True)
        classifier.fit(SAMPLES, LABELS)
    print(f"{MODEL} is complete: {classifier.fit_info_['blocks_by_process']}")
    return classifier


if __name__ == "__main__":
    # kill, and Slurm where this is a job itself, end a program at once; this way it ends its jobs first. After Ctrl-C,
    # which dask-jobqueue takes for a good end, it tells the same.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("told to end; the same call goes on from the store"))
    main()
