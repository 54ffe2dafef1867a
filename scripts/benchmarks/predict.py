"""Labelling a Dask array on two worker processes, compared with local threads, and single tasks that label few rows."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import dask
import dask.array as da
import numpy as np
from distributed import Client, wait

from benchmarks.measure import Ratio, in_turn, report, save
from benchmarks.workers import workers
from fxdask import FisherNetworkClassifier

THREADS, WORKERS, LOADED = "local threads", "two workers, persisted", "two workers, the model loaded"
FEW_ROWS = "submit, {:,} rows"


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
    rng = np.random.default_rng(0)
    clf = fitted_model(rng, **shape)
    X = rng.standard_normal((shape["samples"], shape["inputs"]), dtype=np.float32)
    few = X[:1_000]
    local = da.from_array(X, chunks=(rows_per_chunk, -1))
    expected = clf.predict(X)
    with workers("4GiB") as client:
        persisted = local.persist()
        wait(persisted)
        submitted = first_and_second(client, clf, few)

        def on_threads() -> None:
            with dask.config.set(scheduler="threads", num_workers=2):
                assert np.array_equal(clf.predict(local).compute(), expected)

        def on_workers() -> None:
            assert np.array_equal(clf.predict(persisted).compute(), expected)

        name = FEW_ROWS.format(len(few))
        work: dict[str, Callable[[], object]] = {
            THREADS: on_threads,
            WORKERS: on_workers,
            name: lambda: client.submit(clf.predict, few, pure=False).result(),
            "predict here, the same rows": lambda: clf.predict(few),
        }
        seconds = in_turn(work, repeats)
    described = ", ".join(f"{option} {value:,}" if isinstance(value, int) else value for option, value in shape.items())
    figures = report(described, seconds, [Ratio(WORKERS, THREADS, 1.3), Ratio(name, THREADS)])
    click.echo(f"client.submit(clf.predict, rows): first {submitted[0]:.3f} s, second {submitted[1]:.3f} s, at most 0.2 s")
    save(figures | {"submitted": submitted}, file)


def fitted_model(  # noqa: PLR0913 - one for each option
    rng: np.random.Generator, *, samples: int, inputs: int, training: int, classes: int, selected: int, combine: str
) -> FisherNetworkClassifier:
    """A model of classes that differ in mean and spread."""
    y = np.arange(training) % classes
    X = rng.standard_normal((training, inputs), dtype=np.float32) * (1 + 0.3 * y[:, None]) + 0.2 * y[:, None]
    return FisherNetworkClassifier(2_000, selected, combine=combine).fit(X.astype(np.float32), y)


def first_and_second(client: Client, clf: FisherNetworkClassifier, rows: np.ndarray) -> list[float]:
    """Seconds of the first and of the second task that labels a few rows."""
    import time
    found = []
    for _ in range(2):
        started = time.perf_counter()
        client.submit(clf.predict, rows, pure=False).result()
        found.append(time.perf_counter() - started)
    return found
