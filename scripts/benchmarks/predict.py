"""Labelling a Dask array on two worker processes, compared with local threads, and single tasks that label few rows."""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import dask
import dask.array as da
import numpy as np
from distributed import Client

from benchmarks.limits import COPIED, copied
from benchmarks.measure import Ratio, in_turn, report, save
from benchmarks.workers import workers
from fxdask import FisherNetworkClassifier

THREADS, WORKERS, SUBMITTED, HERE = "local threads", "two workers", "one task, 1,000 rows", "here, 1,000 rows"
ROWS_OF_A_TASK = 1_000
LONGEST_TASK = 0.2


@click.command()
@click.option("--samples", default=2_000_000)
@click.option("--inputs", default=50)
@click.option("--rows-per-chunk", default=100_000)
@click.option("--training", default=20_000, help="Samples that the model is fitted on.")
@click.option("--classes", default=3)
@click.option("--selected", default=10, help="Nodes selected for each class.")
@click.option("--combine", default="joint", type=click.Choice(["joint", "sum", "log", "scaled"]))
@click.option("--repeats", default=5)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def predict(file: Path | None, repeats: int, rows_per_chunk: int, **shape: Any) -> None:
    """Label a persisted Dask array on two workers, and the same rows on two local threads."""
    with predict_work(rows_per_chunk, **shape) as work:
        started = time.perf_counter()
        work[WORKERS]()
        first = time.perf_counter() - started
        seconds = in_turn(work, repeats)
    described = ", ".join(f"{option} {value:,}" if isinstance(value, int) else value for option, value in shape.items())
    ratios = [Ratio(WORKERS, THREADS, 1.3), Ratio(SUBMITTED, THREADS), Ratio(THREADS, COPIED)]
    figures = report(described, seconds, ratios)
    task = statistics.median(seconds[SUBMITTED])
    verdict = "ok" if task <= LONGEST_TASK else "MISSED"
    click.echo(f"one task that labels 1,000 rows: {task:.3f} s, at most {LONGEST_TASK} s  {verdict}")
    click.echo(f"the first call on workers that have never seen a model: {first:.2f} s")
    save(figures | {"first_call": first}, file)


@contextmanager
def predict_work(rows_per_chunk: int, **shape: Any) -> Iterator[dict[str, Callable[[], object]]]:
    """Labelling the same rows on two threads and on two workers, and few rows in one task."""
    rng = np.random.default_rng(0)
    clf = fitted_model(rng, **shape)
    X = rng.standard_normal((shape["samples"], shape["inputs"]), dtype=np.float32)
    few, local, expected = X[:ROWS_OF_A_TASK], da.from_array(X, chunks=(rows_per_chunk, -1)), clf.predict(X)
    with workers("4GiB") as client:
        persisted = scattered(client, X, rows_per_chunk)

        def on_threads() -> None:
            with dask.config.set(scheduler="threads", num_workers=2):
                assert np.array_equal(clf.predict(local).compute(), expected)

        def on_workers() -> None:
            assert np.array_equal(clf.predict(persisted).compute(), expected)

        yield {
            THREADS: on_threads,
            WORKERS: on_workers,
            SUBMITTED: lambda: client.submit(clf.predict, few, pure=False).result(),
            HERE: lambda: clf.predict(few),
            COPIED: copied(X.nbytes),
        }


def scattered(client: Client, X: np.ndarray, rows_per_chunk: int) -> da.Array:
    """The rows as a Dask array whose chunks are in the memory of the workers."""
    chunks = [X[start : start + rows_per_chunk] for start in range(0, len(X), rows_per_chunk)]
    futures = client.scatter(chunks, hash=False)
    return da.concatenate(
        [da.from_delayed(future, rows.shape, rows.dtype) for future, rows in zip(futures, chunks, strict=True)]
    ).persist()


def fitted_model(  # noqa: PLR0913 - one for each option
    rng: np.random.Generator, *, samples: int, inputs: int, training: int, classes: int, selected: int, combine: str
) -> FisherNetworkClassifier:
    """A model of classes that differ in mean and spread."""
    y = np.arange(training) % classes
    X = rng.standard_normal((training, inputs), dtype=np.float32) * (1 + 0.3 * y[:, None]) + 0.2 * y[:, None]
    return FisherNetworkClassifier(2_000, selected, combine=combine).fit(X.astype(np.float32), y)
