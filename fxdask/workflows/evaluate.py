"""Measure how well a model labels test samples, from counts alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.execution import evaluate as graphs
from fxdask.execution.workers import check_reachable
from fxdask.kernels.evaluation import EvaluationCounts
from fxdask.progress import progress_bar
from fxdask.store.sources import location_of
from fxdask.tasks.evaluate import EvaluationJob
from fxdask.workflows.data import Samples, as_labels, as_samples
from fxdask.workflows.model import FittedModel
from fxdask.workflows.score import TrueLabels, checked_truth, planned_ranges
from fxdask.workflows.tables import named_features, with_label_column

__all__ = ["Evaluation", "LabelledSamples", "checked_test_data", "evaluate_model"]


@dataclass(frozen=True)
class LabelledSamples:
    """Checked test samples and their true labels."""

    samples: Samples
    truth: TrueLabels


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """How well a model labels test samples.

    Attributes
    ----------
    labels : ndarray of shape (n_labels,)
        The model's classes, and all other labels that occur among the true ones.
    classes : ndarray of shape (n_classes,)
        The model's classes.
    confusion : ndarray of shape (n_labels, n_classes)
        ``confusion[i, k]`` counts the samples of ``labels[i]`` that were labelled ``classes[k]``.
    n_samples : int
    accuracy : float
        Share of correct labels.
    log_loss : float
        Mean of -ln p of the true class, over the samples whose label is a class; NaN if there are none.
    calibration_error : float
        Expected calibration error: the mean distance of the probability of the predicted class from
        the share of correct labels, in 20 bins of equal width.
    counts : EvaluationCounts
        Counts of probabilities and of outlier scores.

    Examples
    --------
    >>> import tempfile, fxdask
    >>> clf = fxdask.FisherNetworkClassifier(n_nodes=50).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> found = clf.report(tempfile.mkdtemp() + "/model.html", [[0.05], [3.1], [3.0]], [0, 1, 0])
    >>> found.n_samples, round(found.accuracy, 3)
    (3, 0.667)
    """

    labels: NDArray
    classes: NDArray
    counts: EvaluationCounts

    @property
    def confusion(self) -> NDArray[np.int64]:
        """(label, class) samples by their true label and predicted class."""
        return self.counts.confusion

    @property
    def n_samples(self) -> int:
        """Number of test samples."""
        return int(self.confusion.sum())

    @property
    def label_codes(self) -> NDArray[np.intp]:
        """(class,) index of each class among the labels."""
        return np.searchsorted(self.labels, self.classes)

    @property
    def correct(self) -> NDArray[np.int64]:
        """(class,) correctly labelled samples."""
        return self.confusion[self.label_codes, np.arange(len(self.classes))]

    @property
    def accuracy(self) -> float:
        """Share of correct labels."""
        return float(self.correct.sum() / self.n_samples)

    @property
    def n_unknown(self) -> int:
        """Samples whose true label is not a class of the model."""
        return self.n_samples - int(self.confusion[self.label_codes].sum())

    @property
    def log_loss(self) -> float:
        """Mean of -ln p of the true class, over the samples whose label is a class; NaN if there are none."""
        n_known = self.n_samples - self.n_unknown
        return self.counts.total_loss / n_known if n_known else float("nan")

    @property
    def calibration_error(self) -> float:
        """Mean distance of the probability of the predicted class from the share of correct labels, over the bins."""
        counts = self.counts
        expected = np.nan_to_num(counts.mean_probability) * counts.in_bin
        return float(np.abs(expected - counts.correct_in_bin).sum() / self.n_samples)


def checked_test_data(model: FittedModel, X: Any, y: Any) -> LabelledSamples | None:
    """Checked test samples and labels in any accepted form; None if neither is given."""
    if X is None and y is None:
        return None
    if X is None or y is None:
        missing, given = ("X", "labels y") if X is None else ("y", "samples X")
        raise InvalidInputError(f"test data needs samples and labels, but only {given} were passed; pass {missing} too")
    X, y = with_label_column(X, y)
    samples = as_samples(X, features=model.names)
    model.check_samples(samples)
    if samples.n_samples == 0:
        raise InvalidInputError("X has 0 samples but test data needs at least 1; pass other test data")
    return LabelledSamples(samples, checked_truth(as_labels(y, samples.n_samples), samples.n_samples, model.classes))


def evaluate_model(
    model: FittedModel, test: LabelledSamples, *, memory_limit: Any = None, verbose: bool = False
) -> Evaluation:
    """Score test samples range by range, and keep only counts.

    Samples at a path or in a Dask array are scored on the workers of the connected client, an array in
    memory on local threads.
    """
    samples, truth = test.samples, test.truth
    plan = planned_ranges(samples, model.scorer, memory_limit)
    check_reachable(location_of(samples.handle), "the test samples")
    codes = np.searchsorted(truth.labels, model.classes)
    job = EvaluationJob(model.scorer, codes, len(truth.labels), model.temperature)
    bar = progress_bar("scoring", shown=verbose, unit="samples", n_units=samples.n_samples)
    with named_features(samples.names), bar as progress:
        counts = graphs.evaluate(job, samples.handle, truth.codes, plan, progress)
    return Evaluation(labels=truth.labels, classes=model.classes, counts=counts)
