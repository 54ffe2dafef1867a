"""How far probabilities can be trusted: every rule on the digits, with and without its temperature."""

from dataclasses import asdict, dataclass
from pathlib import Path

import click
import numpy as np
from scipy.special import softmax
from sklearn.base import BaseEstimator, clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import StratifiedKFold
from sklearn.naive_bayes import GaussianNB
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.measure import save
from fxdask import FisherNetworkClassifier
from fxdask.kernels.combination.table import COMBINATIONS

N_FOLDS = 5
N_BINS = 20
SURE = 0.99


@dataclass(frozen=True, kw_only=True)
class Quality:
    """The probabilities of one classifier on samples that it was not fitted to."""

    accuracy: float
    log_loss: float
    calibration_error: float
    n_errors: int
    sure_errors: float
    """Share of the wrong labels with a probability above 0.99."""


def quality(probabilities: np.ndarray, truth: np.ndarray) -> Quality:
    """(sample, class) probabilities, (sample,) class codes -> how good they are."""
    confidence, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == truth
    bins = np.minimum((confidence * N_BINS).astype(int), N_BINS - 1)
    gaps = np.bincount(bins, right, N_BINS) - np.bincount(bins, confidence, N_BINS)
    wrong = confidence[~right]
    return Quality(
        accuracy=float(right.mean()),
        log_loss=float(log_loss(truth, probabilities, labels=range(probabilities.shape[1]))),
        calibration_error=float(np.abs(gaps).sum() / len(truth)),
        n_errors=len(wrong),
        sure_errors=float((wrong > SURE).mean()) if len(wrong) else 0.0,
    )


@dataclass(frozen=True)
class HeldOut:
    """Probabilities of all samples, each predicted by the fit that did not see it."""

    truth: np.ndarray
    alone: np.ndarray
    """(sample, class) softmax of the scores"""
    given: np.ndarray
    """(sample, class) what ``predict_proba`` gives"""
    temperature: float | None
    """Mean over the folds; None for classifiers that have none."""


def compared(n_nodes: int) -> dict[str, BaseEstimator]:
    """The network with every rule, calibrated by scikit-learn, and the usual classifiers, by name."""
    rules = {rule: FisherNetworkClassifier(n_nodes, combine=rule) for rule in COMBINATIONS}
    joint = clone(rules["joint"])
    return rules | {
        "joint, joint selection": clone(joint).set_params(selection="joint"),
        "joint, calibrated by scikit-learn": CalibratedClassifierCV(joint, method="temperature", ensemble=False, cv=3),
        "Gaussian naive Bayes": GaussianNB(),
        "logistic regression": make_pipeline(StandardScaler(), LogisticRegression(max_iter=1_000)),
    }


def held_out(classifier: BaseEstimator, X: np.ndarray, y: np.ndarray, seed: int) -> HeldOut:
    """Fit and predict every fold."""
    folds = []
    for train, test in StratifiedKFold(N_FOLDS, shuffle=True, random_state=seed).split(X, y):
        classifier.fit(X[train], y[train])
        given = classifier.predict_proba(X[test])
        alone, temperature = given, None
        if isinstance(classifier, FisherNetworkClassifier):
            alone, temperature = softmax(classifier.decision_function(X[test]), axis=1), classifier.temperature_
        folds.append((y[test], alone, given, temperature))
    truth, alone, given, temperatures = zip(*folds, strict=True)
    mean = None if None in temperatures else float(np.mean(temperatures))
    return HeldOut(*map(np.concatenate, (truth, alone, given)), mean)


@click.command()
@click.option("--nodes", default=4_000)
@click.option("--seed", default=0, help="Seed of the folds.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def probabilities(nodes: int, seed: int, file: Path | None) -> None:
    """Cross-validate the probabilities of every rule on the 8x8 digits, without and with the temperature."""
    X, y = load_digits(return_X_y=True)
    click.echo(
        f"{len(X):,} digits, {N_FOLDS} folds, {nodes:,} nodes; T is the temperature. Calibration errors are of "
        f"{N_BINS} bins.\nA sure error is a wrong label whose probability is above {SURE}.\n"
    )
    click.echo(f"{'':34}{'accuracy':>9}{'T':>8}{'log-loss':>10}{'calibration error':>19}{'sure errors':>14}")
    rows = []
    for name, classifier in compared(nodes).items():
        found = held_out(classifier, X, y, seed)
        measured = {"given": quality(found.given, found.truth)}
        if found.temperature is not None:
            measured = {"without a temperature": quality(found.alone, found.truth)} | measured
        for position, (kind, values) in enumerate(measured.items()):
            temperature = found.temperature if kind == "given" else 1.0
            show("" if position else name, temperature, values)
            rows.append({"name": name, "probabilities": kind, "temperature": temperature} | asdict(values))
    save(rows, file)


def show(name: str, temperature: float | None, found: Quality) -> None:
    """Print one line of the table."""
    shown = "" if temperature is None else f"{temperature:.2f}"
    sure = f"{found.sure_errors:.0%} of {found.n_errors}"
    click.echo(
        f"{name:34}{found.accuracy:9.2%}{shown:>8}{found.log_loss:10.3f}{found.calibration_error:19.2%}{sure:>14}"
    )
