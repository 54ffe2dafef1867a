"""Many callers on one cluster: right results, flat memory of the scheduler, and fair shares."""

import hashlib
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from multiprocessing.queues import Queue
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr
from distributed import Client

from benchmarks.measure import save
from benchmarks.workers import workers
from fxdask import FisherNetworkClassifier, batch_score
from fxdask.planning import score_plan
from fxdask.sizes import format_bytes
from fxdask.tasks.telemetry import resident_bytes

N_SAMPLES, N_FEATURES, ROWS_PER_CHUNK = 2_000, 20, 200
N_NODES, NODES_PER_BLOCK = 1_000, 100
LOOKS = 30
WARM_UP = 0.1
"""Share of the time in which the scheduler loads libraries and fills its logs; its memory then is not compared."""
SHORT_LOGS = {"DASK_DISTRIBUTED__ADMIN__LOW_LEVEL_LOG_LENGTH": "20", "DASK_DISTRIBUTED__ADMIN__LOG_LENGTH": "1000"}
"""Dask keeps the last 1,000 events of every client, which 16 callers fill in ten minutes: that is no growth."""
MOST_GROWTH, LEAST_SHARE = 1.1, 0.5


@click.command()
@click.option("--callers", type=click.IntRange(1), default=16)
@click.option("--workers", "n_workers", type=click.IntRange(1), default=2)
@click.option("--minutes", type=click.FloatRange(min=0, min_open=True), default=10.0)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def load(callers: int, n_workers: int, minutes: float, file: Path | None) -> None:
    """Let callers fit and score in a loop, each into its own stores, and compare every result with one of threads."""
    found = loaded(callers, n_workers, 60 * minutes)
    save(found, file)
    if not all(found["holds"].values()):
        sys.exit(1)


def loaded(n_callers: int, n_workers: int, seconds: float) -> dict[str, Any]:
    """Run the callers for so long -> rounds of each, memory of the scheduler, and what holds."""
    # Processes are forked from one that has imported the libraries, where that is possible.
    forked = "forkserver" in multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if forked else "spawn")
    if forked:
        context.set_forkserver_preload(["fxdask", "benchmarks.load", "numba"])
    with (
        tempfile.TemporaryDirectory(prefix="fxdask-bench-") as folder,
        workers("1GiB", n_workers, nanny=False, settings=SHORT_LOGS) as one,
    ):
        zarr.create_array(Path(folder, "X.zarr"), data=samples(), chunks=(ROWS_PER_CHUNK, N_FEATURES))
        ready, rounds, begin = context.Queue(), context.Queue(), context.Event()
        address = one.scheduler.address
        processes = [
            context.Process(target=call, args=(address, folder, number, seconds, (ready, begin, rounds)), daemon=True)
            for number in range(n_callers)
        ]
        try:
            for process in processes:
                process.start()
            for _ in processes:
                ready.get(timeout=600)
            begin.set()
            memory = watched(one, seconds)
            found = [rounds.get(timeout=300 + seconds) for _ in processes]
            for process in processes:
                process.join(60)
        finally:
            for process in processes:
                process.kill()
    return summary(dict(found), memory)


def samples() -> np.ndarray:
    """Two classes with other spreads."""
    X = np.random.default_rng(0).standard_normal((N_SAMPLES, N_FEATURES), dtype=np.float32)
    X[::2] *= 1.3
    return X


def call(address: str, folder: str, number: int, seconds: float, signals: tuple[Queue, Event, Queue]) -> None:
    """One caller: fit and score into stores of its own until the time is over, and compare their bytes."""
    ready, begin, rounds = signals
    score_plan.BYTES_PER_TASK = 1  # one task for each chunk, so that few samples make many tasks
    own = Path(folder, str(number))
    wanted, times, wrong, errors = fitted_and_scored(Path(folder, "X.zarr"), own, number), [], 0, []
    with Client(address):
        fitted_and_scored(Path(folder, "X.zarr"), own, number)  # loads libraries
        ready.put(number)
        begin.wait()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            started = time.monotonic()
            try:
                wrong += fitted_and_scored(Path(folder, "X.zarr"), own, number) != wanted
            except Exception as error:
                errors.append(f"{type(error).__name__}: {error}")
            times.append(time.monotonic() - started)
    rounds.put((number, {"seconds": times, "wrong": wrong, "errors": errors}))


def fitted_and_scored(X: Path, own: Path, number: int) -> str:
    """Fit and score into new stores -> a digest of all their files; the number is the random state."""
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    network = {"n_nodes": N_NODES, "n_selected": 3, "nodes_per_block": NODES_PER_BLOCK, "random_state": number}
    FisherNetworkClassifier(**network, store=own / "model.zarr").fit(X, np.arange(N_SAMPLES) % 2)
    batch_score(own / "model.zarr", X, own / "scored.zarr")
    digest = hashlib.sha256()
    for path in sorted(own.rglob("*")):
        digest.update(f"{path.relative_to(own)}\0".encode() + (path.read_bytes() if path.is_file() else b""))
    return digest.hexdigest()


def watched(client: Client, seconds: float) -> list[tuple[float, int]]:
    """(seconds, bytes) of the scheduler's memory, at intervals."""
    began, memory = time.monotonic(), []
    for look in range(1, LOOKS + 1):
        time.sleep(max(0.0, began + look * seconds / LOOKS - time.monotonic()))
        memory.append((time.monotonic() - began, client.run_on_scheduler(resident_bytes)))
        click.echo(f"{memory[-1][0]:7.0f} s   scheduler {format_bytes(memory[-1][1])}")
    return memory


def summary(found: dict[int, dict[str, Any]], memory: list[tuple[float, int]]) -> dict[str, Any]:
    """Print and return what holds."""
    counts = {number: len(caller["seconds"]) for number, caller in sorted(found.items())}
    middle, wrong = statistics.median(counts.values()), sum(caller["wrong"] for caller in found.values())
    settled = [held for _, held in memory[int(WARM_UP * len(memory)) :]]
    third = max(1, len(settled) // 3)
    first, last = statistics.median(settled[:third]), statistics.median(settled[-third:])
    longest = max(max(caller["seconds"], default=0.0) for caller in found.values())
    share = min(counts.values()) / middle if middle else 0.0
    click.echo(f"rounds of each caller: {', '.join(map(str, counts.values()))}; the longest took {longest:.1f} s")
    errors = [error for caller in found.values() for error in caller["errors"]]
    click.echo(f"{sum(counts.values())} rounds, {wrong} of them with other bytes than on threads, {len(errors)} failed")
    for error in sorted(set(errors)):
        click.echo(f"  {error}")
    click.echo(f"slowest caller / median: {share:.2f} (at least {LEAST_SHARE:g})")
    click.echo(f"scheduler, last third / first third: {last / first:.3f} (at most {MOST_GROWTH:g})")
    holds = {"right": not wrong and not errors, "fair": share >= LEAST_SHARE, "flat": last / first <= MOST_GROWTH}
    return {"rounds": counts, "callers": found, "scheduler_memory": memory, "growth": last / first, "holds": holds}
