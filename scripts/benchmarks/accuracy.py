"""Accuracy of rules, selections and normalisations on public data sets, beside the usual classifiers."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np
from sklearn.base import BaseEstimator
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, train_test_split
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.labels import read_idx
from benchmarks.measure import save
from fxdask import FisherNetworkClassifier

SMALL = {"iris": load_iris, "wine": load_wine, "breast cancer": load_breast_cancer, "digits": load_digits}
IMAGES = ("mnist", "fashion_mnist")
ARRAYS = ("isolet", "madelon")
N_TRAINED, N_TESTED = 15_000, 5_000

Split = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def splits(name: str, folder: Path | None, seed: int, folds: int = 5) -> Iterator[Split]:
    """Training samples, test samples and their labels; of images only the training part is used."""
    if name in SMALL:
        X, y = SMALL[name](return_X_y=True)
        for train, test in StratifiedKFold(folds, shuffle=True, random_state=seed).split(X, y):
            yield X[train], X[test], y[train], y[test]
        return
    assert folder is not None, "the command leaves out what needs a folder"
    if name in IMAGES:
        images, y = (read_idx(folder / name, f"train-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
        X, sizes = images.reshape(len(images), -1), {"train_size": N_TRAINED, "test_size": N_TESTED}
    else:
        with np.load(folder / "small" / f"{name}.npz") as arrays:
            X, y, sizes = arrays["X"], arrays["y"].ravel(), {"test_size": 0.2}
    yield tuple(train_test_split(X, y, stratify=y, random_state=seed, **sizes))


def settings(n_nodes: int) -> dict[str, Callable[[int], BaseEstimator]]:
    """Everything that is compared, by name; each makes an estimator for a seed."""

    def network(**parameters: Any) -> Callable[[int], BaseEstimator]:
        return lambda seed: FisherNetworkClassifier(n_nodes, random_state=seed, **parameters)

    compared: dict[str, Callable[[int], BaseEstimator]] = {"defaults": network()}
    for combine, selection in (("sum", "top"), ("log", "top"), ("joint", "joint")):
        compared[f"{combine}, {selection}, auto"] = network(combine=combine, selection=selection)
    for normalize in (None, "feature", "sample"):
        compared[f"joint, top, {normalize or 'none'}"] = network(combine="joint", normalize=normalize)
    return compared | {
        "LDA": lambda _: LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "Gaussian naive Bayes": lambda _: GaussianNB(),
        "logistic regression": lambda _: make_pipeline(StandardScaler(), LogisticRegression(max_iter=300)),
        "random forest": lambda seed: RandomForestClassifier(200, random_state=seed, n_jobs=-1),
    }


@click.command()
@click.option(
    "--data", "folder", type=click.Path(path_type=Path), help="Folder of mnist, fashion_mnist and small/*.npz."
)
@click.option("--only", multiple=True, help="Only these data sets.")
@click.option("--seeds", default=5, help="Seeds of weights, folds and splits.")
@click.option("--folds", default=5, help="Folds of the small data sets.")
@click.option("--setting", "chosen", multiple=True, help="Only these settings, by their names in the table.")
@click.option("--nodes", default=4_000)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def accuracy(  # noqa: PLR0913 - one parameter for each option
    *,
    folder: Path | None,
    only: tuple[str, ...],
    seeds: int,
    folds: int,
    chosen: tuple[str, ...],
    nodes: int,
    file: Path | None,
) -> None:
    """Cross-validate rules, selections and normalisations; large sets are split, images within their training part."""
    names = only or (*SMALL, *(ARRAYS + IMAGES if folder else ()))
    rows = []
    for name in names:
        click.echo(f"\n{name}")
        for setting, make in settings(nodes).items():
            if chosen and setting not in chosen:
                continue
            found = []
            for seed in range(seeds):
                for train, test, labels, truth in splits(name, folder, seed, folds):
                    found.append(100 * make(seed).fit(train, labels).score(test, truth))
            rows.append({"data": name, "setting": setting, "accuracy": float(np.mean(found)), "runs": len(found)})
            click.echo(f"{setting:28}{np.mean(found):8.2f}  +- {np.std(found) / np.sqrt(len(found)):.2f}")
    save(rows, file)
