"""Time of a structured fit compared with the matrix product that it replaces, and with a Gaussian fit."""

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measure import Ratio, in_turn, report, save
from benchmarks.workers import workers
from fxdask import FisherNetworkClassifier
from fxdask.sizes import format_bytes

VALUES_OF_A_PRODUCT = 2**26  # the product is computed for so many values, and its time is extrapolated


class Shape:
    """Samples, features and nodes of a fit, with random samples of two classes."""

    def __init__(self, n_samples: int, n_features: int, n_nodes: int) -> None:
        rng = np.random.default_rng(0)
        self.X = rng.standard_normal((n_samples, n_features), dtype=np.float32)
        self.y = np.arange(n_samples) % 2
        self.X[self.y == 1, : n_features // 8] *= 1.2
        self.n_nodes = n_nodes
        self.text = f"{n_samples:,} samples x {n_features:,} features, {n_nodes:,} nodes"


@click.command()
@click.option("--repeats", default=5)
@click.option("--only", type=click.Choice(["narrow", "wide", "widest", "nodes"]), multiple=True, help="Run only this.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def structured(repeats: int, only: tuple[str, ...], file: Path | None) -> None:
    """Compare structured fits into a store with np.matmul(W, X.T, out=...) on all BLAS threads."""
    figures: dict[str, Any] = {}
    if not only or "narrow" in only:
        figures["narrow"] = against_product(Shape(12_000, 784, 10_000), repeats, 0.8)
    if not only or "wide" in only:
        figures["wide"] = against_product(Shape(12_000, 16_384, 16_384), repeats, 0.1)
    if not only or "widest" in only:
        figures["widest"] = against_product(Shape(2_000, 262_144, 262_144), 1, None)
    if not only or "nodes" in only:
        figures["nodes"] = many_nodes(12_000, 784, 10**6)
    save(figures, file)


def against_product(shape: Shape, repeats: int, limit: float | None) -> dict:
    """The fit and the product in turn; a large product is computed for some of its nodes and extrapolated."""
    computed = max(384, min(shape.n_nodes, VALUES_OF_A_PRODUCT // len(shape.X) * 784 // shape.X.shape[1]))
    computed = shape.n_nodes if shape.X.shape[1] <= 784 else computed
    W = np.random.default_rng(1).standard_normal((computed, shape.X.shape[1]), dtype=np.float32)
    given = np.empty((computed, len(shape.X)), np.float32)
    folder = Path(tempfile.mkdtemp(prefix="fxdask-bench-"))
    found: dict[str, Any] = {}

    def fit() -> None:
        clf = FisherNetworkClassifier(
            shape.n_nodes, projection="structured", store=folder / "model.zarr", overwrite=True, verbose=False
        ).fit(shape.X, shape.y)
        found.update(clf.fit_info_)

    product, name = "product, memory given", "structured fit, store"
    try:
        seconds = in_turn({product: lambda: np.matmul(W, shape.X.T, out=given), name: fit}, repeats)
    finally:
        shutil.rmtree(folder)
    share = shape.n_nodes / computed
    seconds[product] = [time_ * share for time_ in seconds[product]]
    how = f"; product extrapolated from {computed:,} nodes" if share > 1 else ""
    figures = report(f"\n{shape.text}{how}", seconds, [Ratio(name, product, limit)])
    click.echo(f"blocks of {found['plan']['nodes_per_block']:,} nodes, VmHWM {_peak(found)}")
    return figures | {"fit": found}


def many_nodes(n_samples: int, n_features: int, n_nodes: int) -> dict:
    """A fit of very many nodes on two workers of 1 GiB, against a Gaussian fit of a tenth of the nodes."""
    shape = Shape(n_samples, n_features, n_nodes)
    folder, seconds, found = Path(tempfile.mkdtemp(prefix="fxdask-bench-")), {}, {}
    try:
        for projection, nodes in (("gaussian", n_nodes // 10), ("structured", n_nodes)):
            clf = FisherNetworkClassifier(nodes, projection=projection, store=folder / f"{projection}.zarr")
            with workers("1GiB"):
                started = time.perf_counter()
                clf.fit(shape.X, shape.y)
                seconds[projection] = [(time.perf_counter() - started) * n_nodes / nodes]
            found[projection] = clf.fit_info_
    finally:
        shutil.rmtree(folder)
    title = f"\n{shape.text}, two workers of 1 GiB; the Gaussian fit extrapolated from {n_nodes // 10:,} nodes"
    figures = report(title, seconds, [Ratio("structured", "gaussian", 0.5)])
    for projection, info in found.items():
        click.echo(f"{projection}: workers' VmHWM {_peak(info)}")
    return figures | {"fits": found}


def _peak(info: dict) -> str:
    return " and ".join(map(format_bytes, info["peak_bytes_by_process"].values()))
