"""One-dimensional kernel densities compared with other packages, and the responses of all nodes."""

import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import click
import numpy as np
from KDEpy import FFTKDE
from scipy.stats import gaussian_kde
from sklearn.neighbors import KernelDensity

from benchmarks.measure import Ratio, in_turn, report, save
from fxdask import FisherNetworkClassifier
from fxdask.kernels.density.bandwidth import silverman
from fxdask.kernels.density.cells import LARGEST_ERROR
from fxdask.kernels.density.exact import log_density
from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.scratch import Scratch
from fxdask.tasks.threads import one_blas_thread

N_DENSITIES, N_SAMPLES, N_POINTS = 20, 6_000, 100_000
POINTS_PER_LOOKUP = 2**14


def tabulated(values: np.ndarray, points: np.ndarray, bandwidth: np.ndarray) -> np.ndarray:
    """(density, sample) and (density, point) -> (density, point) densities, including the time to make the tables."""
    tables = [DensityTable(row, float(width)) for row, width in zip(np.sort(values, axis=1), bandwidth, strict=True)]
    lookup, scratch = Lookup(tables), Scratch()
    found = np.empty(points.shape)
    for start in range(0, points.shape[1], POINTS_PER_LOOKUP):
        part = slice(start, start + POINTS_PER_LOOKUP)
        found[:, part] = lookup(points[:, part], scratch).logs
    return np.exp(found, out=found)


def fft_and_interpolation(values: np.ndarray, points: np.ndarray, bandwidth: np.ndarray) -> np.ndarray:
    """KDEpy on its default grid, with linear interpolation."""
    found = np.empty(points.shape)
    for row, at, width, out in zip(values, points, bandwidth, found, strict=True):
        grid, density = FFTKDE(kernel="gaussian", bw=float(width)).fit(row.astype(float)).evaluate()
        out[...] = np.interp(at, grid, density, left=0, right=0)
    return found


def with_scikit_learn(row: np.ndarray, at: np.ndarray, width: float) -> np.ndarray:
    return np.exp(KernelDensity(bandwidth=width).fit(row[:, None]).score_samples(at[:, None]))


def with_scipy(row: np.ndarray, at: np.ndarray, width: float) -> np.ndarray:
    return gaussian_kde(row, bw_method=width / row.std(ddof=1))(at)


def errors(found: np.ndarray, values: np.ndarray, points: np.ndarray, bandwidth: np.ndarray) -> tuple[float, float]:
    """Smallest and largest error of the densities at some points, relative to their peaks."""
    shares = []
    for got, row, at, width in zip(found, np.sort(values, axis=1), points, bandwidth, strict=True):
        exact = np.exp(log_density(at[:2_000], row, width))
        shares.append(np.abs(got[:2_000] - exact).max() / exact.max())
    return min(shares), max(shares)


@click.command()
@click.option("--repeats", default=5)
@click.option(
    "--reference-points", default=5_000, help="Points at which the slow packages are timed, before scaling up."
)
@click.option("--nodes", default=10_000, help="Nodes whose responses are timed; 0 skips this.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def density(repeats: int, reference_points: int, nodes: int, file: Path | None) -> None:
    """Compare tables with scikit-learn, SciPy and KDEpy, and responses with exact sums."""
    rng = np.random.default_rng(0)
    values = (20 * rng.standard_normal((N_DENSITIES, N_SAMPLES))).astype(np.float32)
    points = (20 * rng.standard_normal((N_DENSITIES, N_POINTS))).astype(np.float32)
    bandwidth = np.array([silverman(row, float(row.std())) for row in values])
    with one_blas_thread():
        seconds = in_turn(
            {
                "fxdask, tables made and looked up": lambda: tabulated(values, points, bandwidth),
                "KDEpy FFTKDE and np.interp": lambda: fft_and_interpolation(values, points, bandwidth),
            },
            repeats,
        )
        factor = N_DENSITIES * N_POINTS / reference_points
        for name, run in (("scikit-learn KernelDensity", with_scikit_learn), ("scipy gaussian_kde", with_scipy)):
            alone = in_turn({name: _once(run, values, points[:, :reference_points], bandwidth)}, 1)[name][0]
            seconds[name] = [alone * factor] * repeats
        figures = report(
            f"{N_DENSITIES} densities of {N_SAMPLES:,} samples at {N_POINTS:,} points each, one thread "
            f"(scikit-learn and SciPy: one density at {reference_points:,} points, times {factor:g})",
            seconds,
            [
                Ratio("scikit-learn KernelDensity", "fxdask, tables made and looked up", at_least=500),
                Ratio("scipy gaussian_kde", "fxdask, tables made and looked up", at_least=100),
                Ratio("KDEpy FFTKDE and np.interp", "fxdask, tables made and looked up", at_least=1),
            ],
        )
    for name, run in (("fxdask", tabulated), ("KDEpy and np.interp", fft_and_interpolation)):
        low, high = errors(run(values, points, bandwidth), values, points, bandwidth)
        limit = f"   limit {LARGEST_ERROR:g}" if name == "fxdask" else ""
        click.echo(f"error of {name}: {low:.1e} to {high:.1e} of the peak{limit}")
        figures[f"errors of {name}"] = [low, high]
    bound = max(DensityTable(np.sort(row), float(width)).error for row, width in zip(values, bandwidth, strict=True))
    click.echo(f"stated bound of fxdask: {bound:.1e} of the density itself")
    save([figures, responses(nodes)] if nodes else [figures], file)


def _once(run: Callable[..., Any], values: np.ndarray, points: np.ndarray, bandwidth: np.ndarray) -> Callable[[], Any]:
    row, at, width = values[0].astype(float), points[0].astype(float), float(bandwidth[0])
    return lambda: run(row, at, width)


def responses(n_nodes: int, n_samples: int = 12_000, n_images: int = 100) -> dict[str, Any]:
    """Time all nodes' activations of some images from a store of all projections: binned and exact."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_samples, 784), dtype=np.float32)
    X[n_samples // 2 :] *= 1.1
    images = rng.standard_normal((n_images, 784), dtype=np.float32)
    click.echo(f"\nResponses of {n_nodes:,} nodes x 2 classes to {n_images} images, {n_samples // 2:,} samples a class")
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-") as folder:
        clf = FisherNetworkClassifier(n_nodes, store=f"{folder}/model.zarr", keep_projections="all")
        clf.fit(X, np.arange(n_samples) // (n_samples // 2))
        clf.responses(images[:1])
        quick, binned = _timed(clf, images, 5)
        (exact_seconds, *_), exact = _timed(clf.set_params(density="exact"), images, 1)
    plain_seconds = _plain_sums(n_nodes, n_samples // 2, n_images)
    # A density's peak is at least its largest value at any of the images.
    error = (np.abs(binned - exact) / exact.max(axis=0)).max()
    middle = statistics.median(quick)
    click.echo(f"  binned {middle:.2f} s; largest difference {error:.1e} of the peak")
    for name, seconds in (("the float64 sum as NumPy writes it", plain_seconds), ('density="exact"', exact_seconds)):
        click.echo(f"  {name} {seconds:.1f} s: {seconds / middle:.0f} x as long, at least 50")
    return {"binned": quick, "exact": exact_seconds, "plain": plain_seconds, "error": error}


def _plain_sums(n_nodes: int, n_samples: int, n_images: int, share: float = 0.02) -> float:
    """Seconds for the kernels of all nodes in plain NumPy on two threads, scaled up from a share of the nodes."""
    rng = np.random.default_rng(1)
    values, points = rng.standard_normal(n_samples, dtype=np.float32), rng.standard_normal((n_images, 1))

    def one(_: int) -> np.ndarray:
        return np.exp(-0.5 * ((points - values) / 0.2) ** 2).sum(axis=1) / (np.sqrt(2 * np.pi) * 0.2 * n_samples)

    n_densities = int(2 * n_nodes * share)
    with ThreadPoolExecutor(2) as pool:
        started = time.perf_counter()
        list(pool.map(one, range(n_densities)))
        return (time.perf_counter() - started) / share


def _timed(clf: FisherNetworkClassifier, images: np.ndarray, repeats: int) -> tuple[list[float], np.ndarray]:
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        found = clf.responses(images)
        seconds.append(time.perf_counter() - started)
    return seconds, found
