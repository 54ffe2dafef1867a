"""Whether structured nodes have the divergences of Gaussian ones: Kolmogorov-Smirnov tests on digits."""

from pathlib import Path

import click
import numpy as np
from scipy.stats import ks_2samp

from benchmarks.labels import read_idx
from benchmarks.measure import save
from fxdask import FisherNetworkClassifier

LEAST_P = 0.01


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--seeds", default=10)
@click.option("--nodes", default=10_000)
@click.option("--pair", type=int, nargs=2, default=(3, 5))
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def divergences(folder: Path, seeds: int, nodes: int, pair: tuple[int, int], file: Path | None) -> None:
    """Fit two digits of FOLDER (IDX files) by both projections; compare the divergences of all nodes."""
    images, y = (read_idx(folder, f"train-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    chosen = np.isin(y, pair)
    X, y = images[chosen].reshape(int(chosen.sum()), -1), y[chosen]
    rows = []
    for seed in range(seeds):
        of_gaussian, of_structured = (
            FisherNetworkClassifier.paper(n_nodes=nodes, projection=projection, random_state=seed)
            .fit(X, y)
            .divergences_
            for projection in ("gaussian", "structured")
        )
        p_values = [float(ks_2samp(a, b).pvalue) for a, b in zip(of_gaussian, of_structured, strict=True)]
        rows.append({"seed": seed, "p_values": p_values})
        click.echo(f"seed {seed}: p {', '.join(f'{p:.3f}' for p in p_values)} by class")
    n_equal = sum(min(row["p_values"]) > LEAST_P for row in rows)
    click.echo(f"{n_equal} of {seeds} seeds have p > {LEAST_P} for both classes")
    save(rows, file)
