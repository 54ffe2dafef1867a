"""The paper's experiment compared with the same number of networks in plain NumPy."""

import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np
from scipy.stats import trim_mean

import fxdask
from benchmarks.measure import save
from fxdask.experiment.datasets import read_images

N_NODES, N_SELECTED = 10_000, 10
AT_LEAST = 30
TIMED_PAIRS = ((0, 1), (3, 8), (4, 9))


@click.command()
@click.argument("dataset", type=click.Choice(["mnist", "fashion_mnist"]))
@click.option("--data", type=click.Path(exists=True), help="Folder of the IDX files.")
@click.option("--seeds", default=10)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures.")
def reproduce(dataset: str, data: str | None, seeds: int, file: Path | None) -> None:
    """Compare all 45 pairs and both criteria with as many networks in plain NumPy (three are timed)."""
    images = read_images(dataset, data)
    each = [_timed_network(images, pair, i) for i, pair in enumerate(TIMED_PAIRS)]
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-") as folder:
        started = time.perf_counter()
        result = fxdask.reproduce(dataset, data, seeds, out=folder, verbose=True)
        seconds = time.perf_counter() - started
    n_networks = 2 * len(result.pairs) * seeds
    plain = sum(each) / len(each) * n_networks
    verdict = "ok" if plain / seconds >= AT_LEAST else "MISSED"
    click.echo(f"{n_networks} networks of {N_NODES:,} nodes on {images.facts.title}")
    click.echo(f"  fxdask {seconds:.1f} s, including reading and writing")
    click.echo(f"  plain NumPy {', '.join(f'{one:.1f}' for one in each)} s a network, {plain:,.0f} s for all of them")
    click.echo(f"  ratio {plain / seconds:.1f}, at least {AT_LEAST}  {verdict}")
    for process, work in result.results.facts["processes"].items():
        click.echo(
            f"  {process}: {work['blocks']} blocks, {work['pairs']} pairs, VmHWM {work['peak_bytes'] / 2**20:.0f} MiB"
        )
    for row in result.results.summary():
        click.echo("  " + ", ".join(f"{k} {v if isinstance(v, str) else f'{v:.2f}'}" for k, v in row.items()))
    figures: dict[str, Any] = {"seconds": seconds, "plain": each, "networks": n_networks, "ratio": plain / seconds}
    save(figures | {"summary": result.results.summary()}, file)


def _timed_network(images: Any, pair: tuple[int, int], seed: int) -> float:
    train, test = (
        [rows[labels == k] for k in pair]
        for rows, labels in (
            (images.train_images, images.train_labels),
            (images.test_images, images.test_labels),
        )
    )
    started = time.perf_counter()
    accuracy = plain_network(train, test, seed)
    seconds = time.perf_counter() - started
    click.echo(f"plain NumPy, pair {pair[0]}-{pair[1]}: {accuracy:.2%} in {seconds:.1f} s")
    return seconds


def plain_network(train: list[np.ndarray], test: list[np.ndarray], seed: int) -> float:
    """Fit and score one network of the extended criterion -> the share of correct labels."""
    rng = np.random.default_rng(seed)
    weights = rng.standard_normal((N_NODES, train[0].shape[1]), dtype=np.float32)
    values = [weights @ _normalized(images).T for images in train]
    location = [trim_mean(z, 0.25, axis=1) for z in values]
    spread = []
    for z in values:
        middle = np.median(z, axis=1, keepdims=True)
        spread.append(np.median(np.abs(z - middle), axis=1).astype(float) / 0.6745)
    difference = rng.standard_normal(N_NODES)
    shift = difference - (location[1] - location[0])
    variance = spread[0] ** 2 + spread[1] ** 2
    chosen = [np.argsort(-(difference**2 / variance - np.log(2 * s**2 / variance)))[:N_SELECTED] for s in spread]
    correct = 0
    for k, images in enumerate(test):
        preprocessed = _normalized(images)
        scores = []
        for j in (0, 1):
            nodes = chosen[j]
            points = (weights[nodes] @ preprocessed.T).astype(float) + (shift[nodes, None] if k else 0)
            trained = values[j][nodes].astype(float) + (shift[nodes, None] if j else 0)
            width = (4 / (3 * trained.shape[1])) ** 0.2 * spread[j][nodes]
            total = np.zeros(len(images))
            for at, z, b in zip(points, trained, width, strict=True):
                total += np.exp(-0.5 * ((at[:, None] - z) / b) ** 2).sum(axis=1) / (np.sqrt(2 * np.pi) * b * len(z))
            scores.append(total)
        correct += int((scores[k] > scores[1 - k]).sum())
    return correct / sum(map(len, test))


def _normalized(images: np.ndarray) -> np.ndarray:
    rows = images.astype(np.float32)
    return (rows - rows.mean(axis=1, keepdims=True)) / rows.std(axis=1, keepdims=True)
