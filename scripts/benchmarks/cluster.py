"""How many blocks one scheduler can feed: the graph of a fit, with blocks that sleep instead of working."""

import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import numpy as np
from distributed import Client

from benchmarks.measure import save
from benchmarks.workers import workers
from fxdask.execution.fit import fit_blocks
from fxdask.kernels.preprocessing import Preprocessing
from fxdask.kernels.selection import top_nodes
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize
from fxdask.sizes import format_bytes
from fxdask.tasks import fit as fit_tasks
from fxdask.tasks.fit import FitSummary
from fxdask.tasks.job import FitJob
from fxdask.tasks.telemetry import TaskCounters, peak_bytes, this_worker

N_SELECTED, N_CLASSES, NODES_PER_BLOCK = 10, 2, 96
SECONDS_OF_A_BLOCK = (1, 10, 100)
HEADINGS = (
    "workers",
    "blocks",
    "block ms",
    "seconds",
    "to first",
    "blocks/s",
    "idle",
    "sched. ms",
    "caller ms",
    "worker ms",
    "sched. memory",
)


@click.command()
@click.option("--workers", "worker_counts", type=int, multiple=True, default=(2, 8, 32))
@click.option("--blocks", "block_counts", type=int, multiple=True, default=(1_000, 10_000, 100_000))
@click.option("--ideal", default=10.0, help="Seconds that all blocks would take if no worker ever waited.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def cluster(worker_counts: tuple[int, ...], block_counts: tuple[int, ...], ideal: float, file: Path | None) -> None:
    """Run the graph of a fit with sleeping blocks: blocks a second, idle share, and the scheduler's time and memory."""
    click.echo(
        "idle: share of the workers' time in which they run no block; sched., caller, worker ms: processor time for "
        "one block, of the scheduler, of the process that called fit, and of a worker\n"
    )
    click.echo("".join(f"{heading:>12}" for heading in HEADINGS))
    rows = []
    for n_workers in worker_counts:
        with workers("512MiB", n_workers, nanny=False) as client:
            fed(client, n_workers, 10 * n_workers, 0.0)  # loads libraries
            for n_blocks in sorted(block_counts):
                rows.append(fed(client, n_workers, n_blocks, ideal * n_workers / n_blocks))
                click.echo(line(rows[-1]))
    per_block = max(max(row["scheduler_seconds"], row["caller_seconds"]) for row in rows)
    click.echo(f"\none block costs the scheduler or the caller {1000 * per_block:.2f} ms at most")
    for seconds in SECONDS_OF_A_BLOCK:
        click.echo(f"blocks of {seconds} s keep {int(seconds / per_block):,} threads busy")
    save({"rows": rows, "seconds_per_block": per_block}, file)


def fed(client: Client, n_workers: int, n_blocks: int, seconds: float) -> dict[str, Any]:
    """Run so many blocks that each sleep so long."""
    times: list[float] = []
    before, started = processor_seconds(client), time.perf_counter()
    with patch.object(fit_tasks, "fit_block", sleeping_block):
        found = fit_blocks(job(n_blocks), np.array(seconds), None, lambda *_: times.append(time.perf_counter()))
    taken = time.perf_counter() - started
    used = {name: (each - before[name]) / n_blocks for name, each in processor_seconds(client).items()}
    assert sum(stats.blocks for stats in found.workers.values()) == len(times) == n_blocks
    return {
        "workers": n_workers,
        "blocks": n_blocks,
        "block_seconds": seconds,
        "seconds": taken,
        "seconds_to_first": times[0] - started,
        "blocks_per_second": (n_blocks - 1) / (times[-1] - times[0]),
        "idle": 1 - n_blocks * seconds / (n_workers * taken),
        "scheduler_peak": client.run_on_scheduler(peak_bytes),
    } | used


def line(row: dict[str, Any]) -> str:
    """One line of the table."""
    cells = (
        str(row["workers"]),
        f"{row['blocks']:,}",
        f"{1000 * row['block_seconds']:.3g}",
        f"{row['seconds']:.1f}",
        f"{row['seconds_to_first']:.1f}",
        f"{row['blocks_per_second']:,.0f}",
        f"{row['idle']:.0%}",
        *(f"{1000 * row[f'{name}_seconds']:.2f}" for name in ("scheduler", "caller", "worker")),
        format_bytes(row["scheduler_peak"]),
    )
    return "".join(f"{cell:>12}" for cell in cells)


def processor_seconds(client: Client) -> dict[str, float]:
    """Processor time of all processes so far."""
    return {
        "scheduler_seconds": client.run_on_scheduler(time.process_time),
        "caller_seconds": time.process_time(),
        "worker_seconds": sum(client.run(time.process_time).values()),
    }


def job(n_blocks: int) -> FitJob:
    """A fit of so many blocks, on few samples."""
    counts, n_features = (500,) * N_CLASSES, 16
    size = FitSize(
        n_nodes=n_blocks * NODES_PER_BLOCK, n_features=n_features, class_counts=counts, n_selected=N_SELECTED
    )
    return FitJob(
        plan=plan_fit(size, NODES_PER_BLOCK),
        seed=0,
        preprocessing=Preprocessing(None, np.zeros(n_features, np.float32), None, 1.0),
        codes=np.repeat(np.arange(N_CLASSES), counts),
        priors=np.full(N_CLASSES, 1 / N_CLASSES),
        class_norms=np.ones(N_CLASSES),
        criterion="extended_fisher",
        location="interquartile_mean",
        spread="mad",
        shrink_spread=True,
    )


def sleeping_block(job: FitJob, samples: np.ndarray, probes: None, index: int) -> FitSummary:
    """Stands in for ``fit_block``: sleeps for the seconds that the samples tell, and returns a summary as large."""
    if samples:
        time.sleep(float(samples))
    scores = np.random.default_rng(index).standard_normal((N_CLASSES, NODES_PER_BLOCK))
    return FitSummary(
        top=top_nodes(scores, job.plan.block(index).start, N_SELECTED),
        source_counts=np.zeros((N_CLASSES, len(SPREAD_SOURCES)), np.int64),
        workers=this_worker(TaskCounters()),
        n_resumed=0,
        divergences={},
    )
