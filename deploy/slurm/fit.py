"""Fit on workers that Slurm starts.

Edit the three lines below, then run this with a Python that all machines see under the same path and that has fxdask
and dask-jobqueue. It starts the workers as jobs, fits, and ends them. A job that ends before the fit is replaced. If
this program ends before the fit, the same call resumes from the store.
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
QUEUE, ACCOUNT = "compute", None  # EDIT 1 of 3: the partition and the account (None: Slurm's default)
JOBS = 4  # EDIT 2 of 3: the number of jobs, with one worker each
SAMPLES, LABELS, MODEL = "/shared/X.zarr", "/shared/y.npy", "/shared/model.zarr"  # EDIT 3 of 3: seen by all machines
# --- The rest needs no changes ---

NODES, SELECTED = 10_000, 10
CORES = 4  # of a job; it runs as many tasks at a time
MEMORY = "16 GiB"  # of a job's worker
MINUTES = 240  # that a job may run
INTERFACE = None  # the network interface, such as "ib0", where machines have more than one
SECONDS_BETWEEN_LOOKS = 30  # between checks that all jobs run

NANNY_MEBIBYTES = 512  # for the nanny process, and for what a worker allocates between two checks of its memory
SECONDS_TO_LEAVE = 300  # a worker hands its results over and leaves this long before Slurm ends the job


def slurm_cluster() -> SLURMCluster:
    """A scheduler in this process, whose jobs are workers; no job is submitted yet.

    Other users of the machines reach its ports, so all connections use TLS, with certificates created for this run.
    Their files are beside the model, readable only by their owner.
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
        death_timeout=120,  # a worker without its scheduler ends before its time limit
        worker_extra_args=["--lifetime", f"{MINUTES * 60 - SECONDS_TO_LEAVE}s", "--lifetime-stagger", "60s"],
    )


@contextmanager
def jobs_replaced(cluster: SLURMCluster):
    """Keep the number of jobs constant during the block, by replacing jobs that end."""
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
    # kill, and Slurm if this is a job itself, would end the program before it can end its jobs. Ctrl-C is handled in
    # the same way, because dask-jobqueue would treat it as a normal end.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: sys.exit("stopped by a signal; the same call resumes from the store"))
    main()
