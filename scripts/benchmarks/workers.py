"""A scheduler and workers in separate processes, and their counters."""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import click
from distributed import Client

from fxdask.sizes import format_bytes
from fxdask.tasks.telemetry import peak_bytes, resident_bytes

SECONDS_TO_END = 20


@contextmanager
def workers(
    memory_limit: str, n_workers: int = 2, *, nanny: bool = True, settings: Mapping[str, str] | None = None
) -> Iterator[Client]:
    """A connected client of one scheduler and single-threaded workers on loopback, each under a nanny or alone.

    ``settings`` are environment variables of the scheduler.
    """
    dask = [sys.executable, "-m", "dask"]
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-") as folder:
        scheduler_file = Path(folder) / "scheduler.json"
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "cwd": folder}
        options = ["--scheduler-file", str(scheduler_file), "--no-dashboard"]
        scheduler = [*dask, "scheduler", "--host", "127.0.0.1", "--port", "0", *options]
        processes = [subprocess.Popen(scheduler, env={**os.environ, **(settings or {})}, **quiet)]
        try:
            while not (scheduler_file.exists() and scheduler_file.stat().st_size):
                time.sleep(0.1)
            one = [*dask, "worker", *options, "--nthreads", "1", "--memory-limit", memory_limit]
            one.append("--nanny" if nanny else "--no-nanny")
            processes += [subprocess.Popen(one, **quiet) for _ in range(n_workers)]
            with Client(scheduler_file=str(scheduler_file)) as client:
                client.wait_for_workers(n_workers, timeout=60 + 10 * n_workers)
                client.run(resident_bytes)
                yield client
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                try:
                    process.wait(SECONDS_TO_END)
                except subprocess.TimeoutExpired:
                    process.kill()  # a worker may wait for a scheduler that ended before it
                    process.wait()


def evidence(client: Client, info: dict, before: dict[str, int]) -> dict:
    """Print and return the counters of scheduler and workers after a fit."""
    after = client.run(os.getpid)
    found = {
        "workers_restarted": sorted(set(before.values()) - set(after.values())),
        "scheduler_peak": client.run_on_scheduler(peak_bytes),
        "worker_peaks": client.run(peak_bytes),
        "blocks": info["blocks_by_process"],
        "bytes_read": info["bytes_read_by_process"],
        "bytes_read_planned": info["plan"]["bytes_read"],
        "bytes_per_task_planned": info["plan"]["bytes_per_task"],
        "rows_repeated": info["rows_repeated"],
    }
    click.echo(f"  scheduler: VmHWM {format_bytes(found['scheduler_peak'])}")
    for process, blocks in found["blocks"].items():
        peak, read = info["peak_bytes_by_process"][process], found["bytes_read"][process]
        click.echo(f"  worker {process}: {blocks} blocks, {format_bytes(read)} read, VmHWM {format_bytes(peak)}")
    read = sum(found["bytes_read"].values())
    click.echo(
        f"  {format_bytes(read)} read of {format_bytes(found['bytes_read_planned'])} planned, "
        f"{found['rows_repeated']} rows repeated, workers restarted: {len(found['workers_restarted'])}"
    )
    return found


def process_ids(client: Client) -> dict[str, int]:
    """Process id of every worker, to detect restarts."""
    return client.run(os.getpid)
