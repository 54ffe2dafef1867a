"""Compare the network with the usual classifiers on two data sets, from Zarr store to Zarr store.

scripts/run runs it. A folder as argument keeps the stores, and a second run then loads the models
instead of fitting them again. Without an argument, a new temporary folder is used.
"""

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import zarr
from sklearn.base import ClassifierMixin
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.metrics import log_loss
from sklearn.model_selection import train_test_split
from sklearn.naive_bayes import GaussianNB

import fxdask
from fxdask import FisherNetworkClassifier

# A third of the paper's nodes gives about the same accuracies in less time.
N_NODES = 3_000
N_WIDE, N_INPUTS, N_SAMPLES = 10, 50, 2_500
WIDER = 2.1


@dataclass(frozen=True)
class Data:
    """A split data set, and the start of its stores' names."""

    name: str
    X_train: np.ndarray
    X_test: np.ndarray
    y_train: np.ndarray
    y_test: np.ndarray


@dataclass(frozen=True)
class Result:
    """One line of a table; seconds are those of fitting and labelling."""

    accuracy: float
    log_loss: float
    seconds: float


def digits() -> Data:
    """scikit-learn's 8x8 digits, with equal shares of each digit in both parts."""
    X, y = load_digits(return_X_y=True)
    return Data("digits", *train_test_split(X, y, stratify=y, random_state=0))


def variances() -> Data:
    """Two classes of equal means: along 10 hidden directions of 50, one is wider than the other."""
    rng = np.random.default_rng(0)
    y = np.arange(2 * N_SAMPLES) % 2
    X = rng.standard_normal((len(y), N_INPUTS))
    X[y == 1, :N_WIDE] *= WIDER
    rotation, _ = np.linalg.qr(rng.standard_normal((N_INPUTS, N_INPUTS)))
    X = X @ rotation
    return Data("variances", X[:N_SAMPLES], X[N_SAMPLES:], y[:N_SAMPLES], y[N_SAMPLES:])


def usual(classifier: ClassifierMixin, data: Data) -> Result:
    """Fit one of scikit-learn's classifiers, and label the test samples."""
    started = time.perf_counter()
    classifier.fit(data.X_train, data.y_train)
    probabilities = classifier.predict_proba(data.X_test)
    seconds = time.perf_counter() - started
    correct = classifier.classes_[probabilities.argmax(axis=1)] == data.y_test
    return Result(correct.mean(), log_loss(data.y_test, probabilities), seconds)


def ours(classifier: FisherNetworkClassifier, data: Data, folder: Path, name: str) -> Result:
    """Fit into a store, and score the test samples from their store into another one."""
    model, samples, scores = (folder / f"{data.name}-{part}.zarr" for part in (name, "samples", f"{name}-scores"))
    started = time.perf_counter()
    classifier.set_params(store=model).fit(data.X_train, data.y_train)
    # Scores of an earlier run are replaced.
    result = fxdask.batch_score(classifier, samples, scores, data.y_test, overwrite=True)
    seconds = time.perf_counter() - started
    return Result(result.accuracy, log_loss(data.y_test, classifier.predict_proba(data.X_test)), seconds)


def compare(
    data: Data,
    folder: Path,
    networks: Mapping[str, tuple[str, FisherNetworkClassifier]],
    others: Mapping[str, ClassifierMixin],
) -> None:
    """Print a table of all classifiers; ``networks`` have a line's text and the name of their store."""
    zarr.create_array(folder / f"{data.name}-samples.zarr", data=data.X_test, overwrite=True)
    width = max(map(len, [*networks, *others]))
    print(f"\n  {'':{width}}  accuracy  log-loss  seconds")
    for text, (name, network) in networks.items():
        print_line(text, width, ours(network, data, folder, name))
    for text, classifier in others.items():
        print_line(text, width, usual(classifier, data))


def print_line(text: str, width: int, result: Result) -> None:
    print(f"  {text:{width}}  {result.accuracy:8.1%}  {result.log_loss:8.2f}  {result.seconds:7.1f}")


def chosen_folder() -> Path:
    """Return the folder for the stores: the argument, or a new temporary one."""
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where to keep the stores")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="fxdask-run-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def show_digits(folder: Path) -> None:
    data = digits()
    print(f"Digits: 8x8 images of 10 classes, {len(data.X_train):,} to train and {len(data.X_test):,} to test.")
    print(f"Each class keeps 10 of {N_NODES:,} random projections. Only the rule that joins their densities differs.")
    paper = partial(FisherNetworkClassifier.paper, n_nodes=N_NODES, normalize=None)
    compare(
        data,
        folder,
        {
            "fxdask, the paper's rule: sum of densities": ("sum", paper()),
            "fxdask, sum of log densities": ("log", paper(combine="log")),
            "fxdask, joint densities": ("joint", paper(combine="joint")),
        },
        {
            "Gaussian naive Bayes": GaussianNB(),
            "LDA": LinearDiscriminantAnalysis(),
            "random forest": RandomForestClassifier(random_state=0, n_jobs=-1),
        },
    )


def show_variances(folder: Path) -> None:
    data = variances()
    print(
        f"\nVariances: two classes with equal means in {N_INPUTS} inputs, {N_SAMPLES:,} samples to train and to test."
    )
    print(f"They differ along {N_WIDE} hidden directions, where one has {WIDER} times the deviation of the other.")
    paper = partial(FisherNetworkClassifier.paper, n_nodes=N_NODES, normalize=None)
    compare(
        data,
        folder,
        {
            "fxdask, nodes by Fisher's criterion": ("fisher", paper(criterion="fisher")),
            "fxdask, nodes by the extended criterion": ("extended", paper()),
            "fxdask, the same, joint densities, n_selected=25": (
                "joint",
                paper(combine="joint", n_selected=25),
            ),
        },
        {
            "LDA": LinearDiscriminantAnalysis(),
            "random forest": RandomForestClassifier(random_state=0, n_jobs=-1),
            "QDA, which knows that the classes are normal": QuadraticDiscriminantAnalysis(),
        },
    )


def main() -> None:
    """Show both data sets, and where the stores are."""
    folder = chosen_folder()
    show_digits(folder)
    show_variances(folder)
    print("\nEvery model of fxdask is a Zarr store, and scored the test samples of a second store into a third:\n")
    for name in ("joint", "samples", "joint-scores"):
        print(f"  {folder}/digits-{name}.zarr")


if __name__ == "__main__":
    main()
