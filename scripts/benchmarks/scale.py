"""Growth of time and memory with nodes and samples, and a fit on samples larger than the workers' memory."""

import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from distributed import Client

from benchmarks.measure import save
from benchmarks.workers import evidence, process_ids, workers
from fxdask import FisherNetworkClassifier
from fxdask.sizes import format_bytes

MIB = 2**20


@click.command()
@click.option("--million", is_flag=True, help="Also fit 1,000,000 nodes, which takes about five minutes.")
@click.option("--beyond-memory", is_flag=True, help="Also fit 4 GiB of samples on workers of 512 MiB, and in memory.")
@click.option("--only-beyond-memory", is_flag=True, help="Run only that part.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder for data and stores.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def scale(million: bool, beyond_memory: bool, only_beyond_memory: bool, folder: Path | None, file: Path | None) -> None:
    """Increase nodes and samples on two single-threaded workers, and show the workers' counters."""
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-", dir=folder) as path:
        if not only_beyond_memory:
            figures["nodes"] = grow_nodes(Path(path), million=million)
            figures["samples"] = grow_samples(Path(path))
        if beyond_memory or only_beyond_memory:
            figures["beyond_memory"] = go_beyond_memory(Path(path))
    save(figures, file)


def write_samples(file: Path, n_samples: int, n_features: int) -> np.ndarray:
    """Write normal samples into a .npy file in parts; returns random labels of two classes."""
    rng = np.random.default_rng(0)
    out = np.lib.format.open_memmap(file, "w+", np.float32, (n_samples, n_features))
    for start in range(0, n_samples, 10_000):
        rows = out[start : start + 10_000]
        rows[...] = rng.standard_normal(rows.shape, dtype=np.float32)
    out.flush()
    return rng.integers(0, 2, n_samples)


def timed_fits(client: Client, file: Path, y: np.ndarray, n_nodes: int, repeats: int) -> tuple[float, dict]:
    """Median seconds of some fits, and the counters of the last one."""
    before = process_ids(client)
    seconds = []
    for _ in range(repeats):
        clf = FisherNetworkClassifier(n_nodes, store=file.with_name("model.zarr"), overwrite=True)
        started = time.perf_counter()
        clf.fit(file, y)
        seconds.append(time.perf_counter() - started)
    return statistics.median(seconds), evidence(client, clf.fit_info_, before)


def grow_nodes(folder: Path, *, million: bool) -> list[dict]:
    """From 10^3 to 10^5 nodes, optionally 10^6; 12,000 samples x 784 features."""
    y = write_samples(folder / "X.npy", 12_000, 784)
    rows: list[dict] = []
    with workers("1GiB") as client:
        for n_nodes, repeats in ((1_000, 5), (10_000, 5), (100_000, 1), *([(1_000_000, 1)] if million else [])):
            click.echo(f"\n{n_nodes:,} nodes, 12,000 samples x 784 features, two workers of 1 GiB")
            seconds, found = timed_fits(client, folder / "X.npy", y, n_nodes, repeats)
            linear = next((row["seconds"] * n_nodes / row["nodes"] for row in rows if row["nodes"] == 10_000), None)
            limit = "  limit 1.15" if n_nodes == 1_000_000 else ""
            grown = "" if linear is None else f", {seconds / linear:.3f} of {n_nodes // 10_000} x that of 10,000{limit}"
            click.echo(f"  {seconds:.2f} s{grown}")
            rows.append({"nodes": n_nodes, "seconds": seconds, "of_linear": linear and seconds / linear} | found)
    return rows


def grow_samples(folder: Path) -> list[dict]:
    """From 10^4 to 10^6 samples of 64 features; 2,000 nodes."""
    rows: list[dict] = []
    for n_samples in (10_000, 100_000, 1_000_000):
        y = write_samples(folder / "X.npy", n_samples, 64)
        click.echo(f"\n{n_samples:,} samples x 64 features, 2,000 nodes, two workers of 1 GiB")
        with workers("1GiB") as client:
            seconds, found = timed_fits(client, folder / "X.npy", y, 2_000, 3)
        rows.append({"samples": n_samples, "seconds": seconds} | found)
        each = [1e6 * row["seconds"] / row["samples"] for row in rows]
        click.echo(f"  {seconds:.2f} s, {each[-1]:.1f} us per sample, {each[-1] / each[0]:.2f} of the first")
    return rows


def go_beyond_memory(folder: Path, n_samples: int = 1_370_000, n_nodes: int = 2_016) -> dict:
    """Fit 4 GiB of samples on two workers of 512 MiB, and then in the memory of this process."""
    click.echo(f"\n{n_samples:,} samples x 784 features, {n_nodes:,} nodes, two workers of 512 MiB")
    y = write_samples(folder / "X.npy", n_samples, 784)
    clf = FisherNetworkClassifier(n_nodes, store=folder / "model.zarr", overwrite=True)
    with workers("512MiB") as client:
        before = process_ids(client)
        click.echo(clf.plan(folder / "X.npy", y))
        started = time.perf_counter()
        clf.fit(folder / "X.npy", y)
        seconds = time.perf_counter() - started
        found = evidence(client, clf.fit_info_, before)
    peak = max(found["worker_peaks"].values()) / (512 * MIB)
    click.echo(f"  {seconds:.1f} s; VmHWM {peak:.1%} of the limit at most (limit 80%)")
    in_memory = FisherNetworkClassifier(n_nodes)
    started = time.perf_counter()
    in_memory.fit(np.load(folder / "X.npy"), y)
    in_memory_seconds = time.perf_counter() - started
    same = clf.divergences_.tobytes() == in_memory.divergences_.tobytes()
    (memory,) = in_memory.fit_info_["peak_bytes_by_process"].values()
    held = in_memory.fit_info_["plan"]["values_held"]
    click.echo(
        f"  with values {held} on two threads: {in_memory_seconds:.1f} s, VmHWM {format_bytes(memory)}; "
        f"divergences {'the same to the last bit' if same else 'DIFFER'}"
    )
    return found | {
        "seconds": seconds,
        "peak_share": peak,
        "seconds_in_memory": in_memory_seconds,
        "values_held_in_memory": held,
        "same_divergences": same,
    }
