"""Scoring from store to store, compared with the time that Dask takes to read and sum the same array."""

import multiprocessing
import shutil
import tempfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click
import dask.array as da
import numpy as np
import zarr

from benchmarks.limits import COPIED, copied
from benchmarks.measure import Ratio, in_turn, report, save
from benchmarks.workers import workers
from fxdask import FisherNetworkClassifier, batch_score, load
from fxdask.sizes import format_bytes, row_ranges
from fxdask.tasks.telemetry import peak_bytes

STANDARD_DEVIATIONS_OFF = 10
READ, SCORED, TAILS = "read and summed", "scored", "shifted into the tails"


@click.command()
@click.option("--samples", default=1_000_000)
@click.option("--inputs", default=784)
@click.option("--rows-per-chunk", default=8_192)
@click.option("--repeats", default=5)
@click.option("--compressed", is_flag=True, help="Compress the chunks as Zarr does by default.")
@click.option("--cluster", is_flag=True, help="Use two worker processes instead of two threads.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder for data and stores.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def score(  # noqa: PLR0913, PLR0917 - one for each option
    samples: int,
    inputs: int,
    rows_per_chunk: int,
    repeats: int,
    compressed: bool,
    cluster: bool,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Score a test set, and the same set shifted into the tails of every density, from Zarr to Zarr."""
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-", dir=folder) as path:
        make_data(Path(path), samples, inputs, rows_per_chunk, compressed=compressed)
        seconds, found = in_new_process(path, repeats, cluster)
    where = "two worker processes" if cluster else "threads"
    figures = report(
        f"{samples:,} x {inputs} float32 in Zarr chunks of {format_bytes(4 * inputs * rows_per_chunk)}"
        f"{', compressed' if compressed else ''}, 2 classes x 10 nodes of 6,000 samples, on {where}",
        seconds,
        [
            Ratio(SCORED, READ, 1.5),
            Ratio(TAILS, SCORED, 3.0),
            Ratio(TAILS, READ),
        ],
    )
    for name, facts in found.items():
        click.echo(f"{name}: {', '.join(f'{key} {value}' for key, value in facts.items())}")
    save(figures | {"evidence": found}, file)


def make_data(
    folder: Path, n_samples: int, n_features: int, rows_per_chunk: int = 8_192, *, compressed: bool = False
) -> None:
    """A model, a test set, and the same test set shifted into the tails."""
    shift = fit_model(folder, n_features)
    write_samples(folder, (n_samples, n_features), rows_per_chunk, shift, compressed=compressed)


def in_new_process(*arguments: Any) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """``measure`` in a new process, so that its peak memory does not include making the data."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(measure, arguments)


def fit_model(folder: Path, n_features: int) -> np.ndarray:
    """Fit two classes that differ in their spread; returns a shift that moves a sample out of every density."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((12_000, n_features), dtype=np.float32)
    X[6_000:] *= 1.1
    clf = FisherNetworkClassifier(2_000, combine="sum", store=folder / "model.zarr").fit(X, np.arange(12_000) // 6_000)
    network = clf.network_
    target = STANDARD_DEVIATIONS_OFF * network.spread.max(axis=0)
    return np.linalg.lstsq(network.weights.astype(float), target)[0].astype(np.float32)


def write_samples(
    folder: Path, shape: tuple[int, int], rows_per_chunk: int, shift: np.ndarray, *, compressed: bool
) -> None:
    """Write the test set, and the same set shifted."""
    rng = np.random.default_rng(1)
    settings: dict[str, Any] = {"shape": shape, "chunks": (rows_per_chunk, shape[1]), "dtype": "f4"}
    if not compressed:
        settings["compressors"] = None
    arrays = [zarr.create_array(folder / name, **settings) for name in ("X.zarr", "shifted.zarr")]
    for start, stop in row_ranges(shape[0], rows_per_chunk):
        rows = rng.standard_normal((stop - start, shape[1]), dtype=np.float32)
        rows[::2] *= 1.1
        for array, moved in zip(arrays, (0, shift), strict=True):
            array[start : start + len(rows)] = rows + moved


def measure(
    path: str, repeats: int, on_cluster: bool, with_copy: bool = False
) -> tuple[dict[str, list[float]], dict[str, dict]]:
    """Seconds of each benchmark, and the counters of the scoring processes."""
    folder = Path(path)
    clf = load(folder / "model.zarr")
    evidence: dict[str, dict] = {}

    def scored(name: str, data: str) -> None:
        shutil.rmtree(folder / "scored.zarr", ignore_errors=True)
        result = batch_score(folder / "model.zarr" if on_cluster else clf, folder / data, folder / "scored.zarr")
        evidence[name] = {
            "samples a second": f"{result.samples_per_second:,.0f}",
            "decided by exact sums": f"{result.exact_share:.2e}",
            "densities summed": f"{result.summed_share:.2e}",
            "tasks": result.chunks_by_process,
            "read": {process: format_bytes(count) for process, count in result.bytes_read_by_process.items()},
            "VmHWM": {process: format_bytes(count) for process, count in result.peak_bytes_by_process.items()},
        }

    work: dict[str, Callable[[], object]] = {
        READ: lambda: da.from_zarr(folder / "X.zarr").sum().compute(),
        SCORED: lambda: scored(SCORED, "X.zarr"),
        TAILS: lambda: scored(TAILS, "shifted.zarr"),
    }
    if with_copy:
        work[COPIED] = copied(zarr.open_array(folder / "X.zarr", mode="r").nbytes)
    with workers("1GiB") if on_cluster else nullcontext():
        seconds = in_turn(work, repeats)
    evidence["this process"] = {"VmHWM": format_bytes(peak_bytes()), "limit": "1.0 GiB"}
    return seconds, evidence
