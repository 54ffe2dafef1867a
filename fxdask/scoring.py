"""Scoring whole test sets, store to store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from fxdask import graph
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.inputs import as_labels, as_samples, check_test_samples, checked_length
from fxdask.loading import load
from fxdask.network import FisherNetworkClassifier
from fxdask.progress import progress_bar
from fxdask.store.group import (
    check_room,
    move_into_place,
    peek_header,
    refuse_foreign_files,
    remove_group,
    store_url,
    working_url,
)
from fxdask.store.layout import SCORE_ARRAYS
from fxdask.store.scores import ScoreStore

__all__ = ["BatchScores", "batch_score"]


@dataclass(frozen=True)
class BatchScores:
    """What a batch scoring did."""

    store: str
    n_samples: int
    seconds: float
    chunks_by_process: dict[str, int]
    accuracy: float | None = None

    @property
    def samples_per_second(self) -> float:
        """Throughput, reading and writing included."""
        return self.n_samples / self.seconds


def batch_score(
    model: str | Path | FisherNetworkClassifier,
    X: Any,
    out: str | Path,
    y: Any = None,
    *,
    overwrite: bool = False,
    verbose: bool = False,
) -> BatchScores:
    """Label a test set of any size into a Zarr group.

    The group holds ``labels`` (sample,) and ``scores`` (sample, class), the log scores whose
    largest decides, in the order of the model's classes. Samples at a path, or in a Dask array,
    are scored on the workers of the connected client; an array in memory is scored where it is.

    Parameters
    ----------
    model : path, URL or fitted FisherNetworkClassifier
    X : array, DataFrame, Dask array, Zarr array, or path of a Zarr array or .npy file
    out : path or URL
        Must not exist yet, unless ``overwrite`` is set and it holds earlier scores; those stay
        until the new ones are complete.
    y : labels, optional
        Gives the accuracy.
    overwrite : bool, default=False
    verbose : bool, default=False
        Show a progress bar on standard error.

    Returns
    -------
    BatchScores
        Where the scores are, how many, how long it took, which processes did it, and the accuracy
        if ``y`` was given.

    Examples
    --------
    >>> import tempfile, fxdask
    >>> clf = fxdask.FisherNetworkClassifier(n_nodes=50).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> result = fxdask.batch_score(clf, [[0.05], [3.1]], tempfile.mkdtemp() + "/scored.zarr", y=[0, 1])
    >>> result.n_samples, result.accuracy
    (2, 1.0)
    """
    classifier = model if isinstance(model, FisherNetworkClassifier) else load(model)
    network, classes = classifier.network_, classifier.classes_
    samples = as_samples(X, min_samples=0)
    check_test_samples(classifier, samples)
    truth = None if y is None else _checked_truth(as_labels(y), samples.n_samples, classes)
    final = store_url(out)
    _refuse_to_replace(final, overwrite=overwrite)
    url = working_url(final, uuid4().hex)
    check_room(url, samples.n_samples * (8 * len(classes) + classes.dtype.itemsize))
    started = time.perf_counter()
    facts = {"classes": classes.tolist(), "model": classifier.store_}
    try:
        store = ScoreStore.create(url, samples.n_samples, samples.n_inputs, classes, facts)
        with progress_bar("scoring", shown=verbose) as progress:
            codes, processes = graph.score(network, classes, samples.handle, samples.n_samples, url, progress)
    except BaseException:
        remove_group(url)
        raise
    accuracy = None if truth is None or not len(truth) else float(np.mean(classes[codes] == truth))
    store.finish(accuracy=accuracy)
    move_into_place(url, final)
    return BatchScores(final, samples.n_samples, time.perf_counter() - started, processes, accuracy)


def _checked_truth(y: NDArray, n_samples: int, classes: NDArray) -> NDArray:
    """True labels that can be compared with the model's classes."""
    if len(y) and (y.dtype.kind in "UO") != (classes.dtype.kind in "UO"):
        raise InvalidInputError(f"y has dtype {y.dtype} but the model's classes are {classes.dtype}: none could match")
    return checked_length(y, n_samples)


def _refuse_to_replace(url: str, *, overwrite: bool) -> None:
    header = peek_header(url)
    if header is None:
        return
    if header["kind"] != "scores":
        raise StoreExistsError(f"{url} holds a {header['kind']}, which scores never replace; choose another path")
    # Unfinished scores are nobody's result: the call that began them was stopped.
    if header["finished"] and not overwrite:
        raise StoreExistsError(
            f"{url} holds scores already; choose another path, or pass overwrite=True to replace them"
        )
    refuse_foreign_files(url, (spec.name for spec in SCORE_ARRAYS))
