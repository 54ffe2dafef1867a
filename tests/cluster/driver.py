"""A program for the host of the client: ``driver.py JOB SCHEDULER ...``; prints JSON."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from distributed import Client

from fxdask import batch_score
from fxdask.execution.connection import connected
from fxdask.planning import score_plan

SECONDS_TO_BE_BUSY = 120


def done_files(folder):
    """The marker of each finished block, and the file of each finished chunk of labels, in a folder."""
    found = (file for name in ("blocks_done", "labels") for file in Path(folder).rglob(f"{name}/c/*"))
    return [file for file in found if file.name.isdigit()]


def wait_for_workers(address, count):
    with Client(address) as client:
        client.wait_for_workers(int(count), timeout=60)
        return list(client.scheduler_info(n_workers=-1)["workers"])


def wait_until_busy(address, host, folder, count):
    """Wait until ``count`` files are done and the worker at a host runs a task; return the worker's process id."""

    def running(dask_worker):
        import os

        return dask_worker.ip, os.getpid(), len(dask_worker.state.executing)

    deadline = time.monotonic() + SECONDS_TO_BE_BUSY
    with Client(address) as client:
        while len(done_files(folder)) < int(count) and time.monotonic() < deadline:
            time.sleep(0.02)
        while time.monotonic() < deadline:
            for ip, pid, n_running in client.run(running, on_error="ignore").values():
                if ip == host and n_running:
                    return pid
            time.sleep(0.02)
    raise TimeoutError(f"the worker at {host} ran no task within {SECONDS_TO_BE_BUSY} s")


def score(address, model, samples, out):
    """Score with one task per chunk, so that few samples make many tasks."""
    score_plan.BYTES_PER_TASK = 1
    with connected(address):
        found = asdict(batch_score(model, samples, out))
    return {name: value for name, value in found.items() if "process" in name}


if __name__ == "__main__":
    job, *words = sys.argv[1:]
    jobs = {"wait_for_workers": wait_for_workers, "wait_until_busy": wait_until_busy, "score": score}
    print(json.dumps(jobs[job](*words)), flush=True)
