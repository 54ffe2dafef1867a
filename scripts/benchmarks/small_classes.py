"""Accuracy with few training samples in each class, beside shrunk LDA."""

from pathlib import Path

import click
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from benchmarks.accuracy import SMALL
from benchmarks.measure import save
from fxdask import FisherNetworkClassifier

SAMPLES_PER_CLASS = (2, 3, 5, 8)
MOST_TESTED = 300
LARGEST_GAP = 5.0


def drawn(y: np.ndarray, per_class: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """(sample,) labels -> indices of so many training samples of each class, and of test samples."""
    rng = np.random.default_rng(seed)
    trained = np.concatenate([rng.choice(np.flatnonzero(y == k), per_class, replace=False) for k in np.unique(y)])
    rest = np.setdiff1d(np.arange(len(y)), trained)
    return trained, rng.choice(rest, min(len(rest), MOST_TESTED), replace=False)


def compared(nodes: int, seed: int) -> dict[str, BaseEstimator]:
    """Everything that is compared, by name."""
    return {
        "defaults": FisherNetworkClassifier(nodes, random_state=seed),
        'selection="joint"': FisherNetworkClassifier(nodes, random_state=seed, selection="joint"),
        "shrink_spread=False": FisherNetworkClassifier(nodes, random_state=seed, shrink_spread=False),
        "LDA": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
    }


@click.command("small-classes")
@click.option("--draws", default=10, show_default=True, help="Random training sets of each size.")
@click.option("--first-draw", default=0, show_default=True, help="Seed of the first one.")
@click.option("--nodes", default=2_000, show_default=True)
@click.option("--setting", "names", multiple=True, help="Only these settings, by their names in the table.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def small_classes(draws: int, first_draw: int, nodes: int, names: tuple[str, ...], file: Path | None) -> None:
    """Train on 2, 3, 5 and 8 samples of each class of four data sets, and average the accuracies."""
    found: dict[str, dict[str, dict[str, list[float]]]] = {}
    click.echo(f"{'samples a class':>15}  {'setting':22}" + "".join(f"{name:>15}" for name in (*SMALL, "average")))
    for per_class in SAMPLES_PER_CLASS:
        shares: dict[str, dict[str, list[float]]] = {}
        for data, load in SMALL.items():
            X, y = load(return_X_y=True)
            for seed in range(first_draw, first_draw + draws):
                trained, tested = drawn(y, per_class, seed)
                for name, estimator in compared(nodes, seed).items():
                    if not names or name in names:
                        score = estimator.fit(X[trained], y[trained]).score(X[tested], y[tested])
                        shares.setdefault(name, {}).setdefault(data, []).append(100 * score)
        for name, of_data in shares.items():
            means = [float(np.mean(of_data[data])) for data in SMALL]
            cells = "".join(f"{mean:15.1f}" for mean in (*means, np.mean(means)))
            click.echo(f"{per_class:>15}  {name:22}{cells}")
        found[str(per_class)] = shares
    if not names or {"defaults", "LDA"} <= set(names):
        gaps = [np.mean(list(of["LDA"].values())) - np.mean(list(of["defaults"].values())) for of in found.values()]
        verdict = "ok" if max(gaps) <= LARGEST_GAP else "MISSED"
        click.echo(f"LDA above the defaults by at most {max(gaps):.1f} points, limit {LARGEST_GAP:.0f}  {verdict}")
    save({"figures": found}, file)
