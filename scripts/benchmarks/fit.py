"""Time of a fit compared with the matrix product alone, with plain NumPy, and on two processes."""

import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from pathlib import Path

import click
import numpy as np
from distributed import Client, LocalCluster
from scipy import stats

from benchmarks.measure import Ratio, in_turn, report, save
from fxdask import FisherNetworkClassifier
from fxdask.sizes import format_bytes
from fxdask.tasks.telemetry import peak_bytes


def plain_numpy(X: np.ndarray, y: np.ndarray, n_nodes: int, n_selected: int = 10) -> np.ndarray:
    """The same selection in memory, with the statistics of NumPy and SciPy."""
    W = np.random.default_rng(0).standard_normal((n_nodes, X.shape[1]), dtype=np.float32)
    Z = W @ (X - X.mean(axis=0)).T
    own = [Z[:, y == k] for k in (0, 1)]
    location = [stats.trim_mean(z, 0.25, axis=1) for z in own]
    spread = [np.median(np.abs(z - np.median(z, axis=1, keepdims=True)), axis=1) / 0.6745 for z in own]
    variance = spread[0] ** 2 + spread[1] ** 2
    fisher = (location[1] - location[0]) ** 2 / variance
    thresholds = [2 * np.log(np.sqrt(2 * sigma**2 / variance)) for sigma in spread]
    return np.array([np.argsort(threshold - fisher)[:n_selected] for threshold in thresholds])


PRODUCT, GIVEN = "W @ X.T", "W @ X.T, memory given"
FIT, STORED, STRUCTURED = "fit", "fit, store", "fit, store, structured"
THREADS, PROCESSES, PLAIN = "fit, store, workers idle", "fit, store, two processes", "plain NumPy"
LOCAL, ON_CLUSTER = (PRODUCT, GIVEN, FIT, STORED, STRUCTURED, PLAIN), (THREADS, PROCESSES)


def fit_seconds(
    shape: tuple[int, int, int], repeats: int, names: Sequence[str], evidence: dict[str, dict]
) -> dict[str, list[float]]:
    """Samples, features and nodes -> seconds of each round of this work.

    Work on threads is measured before workers run beside it: even idle ones take some of the processors' time.
    ``evidence`` gets the ``fit_info_`` of the last fit of each name.
    """
    samples, features, nodes = shape
    rng = np.random.default_rng(0)
    X = rng.standard_normal((samples, features), dtype=np.float32)
    y = np.arange(samples) % 2
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-") as path:
        fitted = partial(_fitted, (X, y), nodes, (Path(path), evidence))
        W = rng.standard_normal((nodes, features), dtype=np.float32)
        given = np.empty((nodes, samples), np.float32)
        work: dict[str, Callable[[], object]] = {
            PRODUCT: lambda: W @ X.T,
            GIVEN: lambda: np.matmul(W, X.T, out=given),
            FIT: fitted(FIT, stored=False),
            STORED: fitted(STORED),
            STRUCTURED: fitted(STRUCTURED, projection="structured"),
            PLAIN: lambda: plain_numpy(X, y, nodes),
        }
        seconds = in_turn({name: work[name] for name in LOCAL if name in names and name != PLAIN}, repeats)
        if PLAIN in names:
            # In rounds of its own: it frees gigabytes, which the work after it has to get from the system again.
            seconds |= in_turn({PLAIN: work[PLAIN]}, repeats)
        if not set(ON_CLUSTER) & set(names):
            return seconds
        on_processes = fitted(PROCESSES)
        with (
            LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
            Client(cluster, set_as_default=False) as client,
        ):

            def on_cluster() -> None:
                with client.as_current():
                    on_processes()

            return seconds | in_turn({THREADS: fitted(THREADS), PROCESSES: on_cluster}, repeats)


def _fitted(
    samples: tuple[np.ndarray, np.ndarray],
    nodes: int,
    results: tuple[Path, dict[str, dict]],
    name: str,
    *,
    stored: bool = True,
    projection: str = "gaussian",
) -> Callable[[], None]:
    """A fit, each into a new store: a file system takes longer to make files just after it deleted some."""
    folder, evidence = results
    numbers = count()

    def run() -> None:
        store = folder / f"{name} {next(numbers)}" if stored else None
        clf = FisherNetworkClassifier(nodes, combine="sum", store=store, projection=projection)
        clf.fit(*samples)
        evidence[name] = clf.fit_info_

    return run


@click.command()
@click.option("--samples", default=12_000)
@click.option("--inputs", default=784)
@click.option("--nodes", default=10_000)
@click.option("--repeats", default=5)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def fit(samples: int, inputs: int, nodes: int, repeats: int, file: Path | None) -> None:
    """Compare fits on local threads and two processes with W @ X.T on all BLAS threads, and with plain NumPy."""
    evidence: dict[str, dict] = {}
    seconds = fit_seconds((samples, inputs, nodes), repeats, (*LOCAL, *ON_CLUSTER), evidence)
    figures = report(
        f"{samples} samples x {inputs} features, {nodes} nodes, two classes, NumPy input, store on local disk",
        seconds,
        [
            Ratio(STORED, PRODUCT, 1.5),
            Ratio(STORED, GIVEN, 1.65),
            Ratio(FIT, PRODUCT),
            Ratio(FIT, GIVEN, 1.5),
            Ratio(STORED, PLAIN),
            Ratio(STRUCTURED, GIVEN, 0.8),
            Ratio(PROCESSES, THREADS, 1.15),
        ],
    )
    click.echo()
    info = evidence[PROCESSES]
    for process, blocks in info["blocks_by_process"].items():
        read, peak = (info[f"{what}_by_process"][process] for what in ("bytes_read", "peak_bytes"))
        click.echo(f"worker {process}: {blocks} blocks, {format_bytes(read)} read, VmHWM {format_bytes(peak)}")
    click.echo(f"this process, which also ran plain NumPy: VmHWM {format_bytes(peak_bytes())}")
    save(figures | {"evidence": evidence}, file)
