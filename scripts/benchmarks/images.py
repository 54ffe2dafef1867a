"""Ten classes of images, trained and tested on the given split: rules, selections, and the usual classifiers."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import click
import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis, QuadraticDiscriminantAnalysis
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.naive_bayes import GaussianNB

from benchmarks.labels import read_idx
from benchmarks.measure import save
from fxdask import FisherNetworkClassifier

FEW_NODES = 20
N_RANDOM = 100
QDA_SHRINKAGE = 1e-3

Images = tuple[np.ndarray, np.ndarray]


def images_of(folder: Path, part: str) -> Images:
    """(sample, pixel) images and (sample,) labels."""
    images, labels = (read_idx(folder, f"{part}-{what}-ubyte") for what in ("images-idx3", "labels-idx1"))
    return images.reshape(len(images), -1), labels


def scaled(images: np.ndarray) -> np.ndarray:
    """Every image with mean 0 and standard deviation 1, as the networks see it."""
    values = images.astype(np.float32)
    values -= values.mean(axis=1, keepdims=True)
    return values / values.std(axis=1, keepdims=True)


class Table:
    """Accuracy, log-loss and sure errors of each classifier, one entry per seed."""

    def __init__(self, test: Images) -> None:
        self.test, self.rows = test, []

    def add(self, name: str, seed: int, fit: Callable[[], Callable[[np.ndarray], np.ndarray]]) -> None:
        """Fit, and predict the probabilities of all test images."""
        started = time.perf_counter()
        predict_proba = fit()
        seconds = time.perf_counter() - started
        images, labels = self.test
        probability = predict_proba(images)
        wrong = probability.argmax(axis=1) != labels
        sure = int((wrong & (probability.max(axis=1) > 0.99)).sum())
        row = {
            "name": name,
            "seed": seed,
            "accuracy": 100 * float(1 - wrong.mean()),
            "log_loss": float(log_loss(labels, probability)),
            "sure_errors": f"{sure} of {int(wrong.sum())}",
            "fit_seconds": seconds,
        }
        self.rows.append(row)
        click.echo("{name:44} seed {seed}  {accuracy:6.2f}  {log_loss:7.3f}  {sure_errors}".format(**row))

    def print_means(self) -> None:
        """Print the mean and the range over the seeds."""
        for name in dict.fromkeys(row["name"] for row in self.rows):
            found = [row["accuracy"] for row in self.rows if row["name"] == name]
            loss = np.mean([row["log_loss"] for row in self.rows if row["name"] == name])
            click.echo(f"{name:44} {np.mean(found):6.2f}  ({min(found):.2f} to {max(found):.2f})  {loss:7.3f}")


def add_networks(table: Table, train: Images, nodes: int, seed: int) -> None:
    """The rules and selections, and QDA on the nodes of the joint rule and on random ones."""
    settings = {
        "paper's rule": {"combine": "sum"},
        "log rule": {"combine": "log"},
        "joint rule": {"combine": "joint"},
        "joint rule, joint selection": {"combine": "joint", "selection": "joint"},
        f"joint rule, {FEW_NODES} nodes": {"combine": "joint", "n_selected": FEW_NODES // 10},
        f"joint rule, joint selection, {FEW_NODES} nodes": {
            "combine": "joint",
            "selection": "joint",
            "n_selected": FEW_NODES // 10,
            "pool_size": 100,
        },
    }
    for name, parameters in settings.items():
        clf = FisherNetworkClassifier(nodes, normalize="sample", random_state=seed, **parameters)
        table.add(name, seed, lambda clf=clf: clf.fit(*train).predict_proba)
        if name == "joint rule":
            # The softmax without the temperature, from the same scores.
            table.add(
                "joint rule, T = 1", seed, lambda clf=clf: lambda X: softmax(np.asarray(clf.decision_function(X)))
            )
            add_qda(table, "shrunk QDA on the joint rule's nodes", clf.network_.weights, train, seed)
    rng = np.random.default_rng(seed)
    random = rng.standard_normal((N_RANDOM, train[0].shape[1]), dtype=np.float32)
    add_qda(table, f"shrunk QDA on {N_RANDOM} random nodes", random, train, seed)


def softmax(scores: np.ndarray) -> np.ndarray:
    """(sample, class) scores -> probabilities."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def add_qda(table: Table, name: str, weights: np.ndarray, train: Images, seed: int) -> None:
    """Gaussians with full covariances on projections."""

    def projected(images: np.ndarray) -> np.ndarray:
        return scaled(images) @ weights.T

    def fit() -> Callable[[np.ndarray], np.ndarray]:
        qda = QuadraticDiscriminantAnalysis(reg_param=QDA_SHRINKAGE).fit(projected(train[0]), train[1])
        return lambda images: qda.predict_proba(projected(images))

    table.add(name, seed, fit)


def add_others(table: Table, train: Images) -> None:
    """scikit-learn's classifiers on pixels."""
    others = {
        "LDA, shrunk, on pixels": LinearDiscriminantAnalysis(solver="lsqr", shrinkage="auto"),
        "Gaussian naive Bayes on pixels": GaussianNB(),
        "logistic regression on pixels": LogisticRegression(max_iter=100),
        "random forest on pixels": RandomForestClassifier(100, random_state=0, n_jobs=-1),
    }
    for name, classifier in others.items():
        table.add(name, 0, partial(fitted_on_pixels, classifier, train))


def fitted_on_pixels(classifier: ClassifierMixin, train: Images) -> Callable[[np.ndarray], np.ndarray]:
    """Fit a classifier -> its function of images that gives probabilities."""
    classifier.fit(scaled(train[0]), train[1])
    return lambda images: classifier.predict_proba(scaled(images))


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--nodes", default=10_000)
@click.option("--seeds", default=5, help="Seeds of the weights.")
@click.option("--others/--no-others", default=True, help="Also fit scikit-learn's classifiers.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def images(folder: Path, nodes: int, seeds: int, others: bool, file: Path | None) -> None:
    """Train on all training images in FOLDER (IDX files) and test on its test images."""
    train = images_of(folder, "train")
    table = Table(images_of(folder, "t10k"))
    if others:
        add_others(table, train)
    for seed in range(seeds):
        add_networks(table, train, nodes, seed)
    table.print_means()
    save(table.rows, file)
