"""``fxdask.report``: one self-contained page about a fitted model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fxdask.estimators.classifier import FisherNetworkClassifier
from fxdask.execution.resources import checked_limit
from fxdask.reporting.model_page import report_model
from fxdask.store.paths import store_url
from fxdask.workflows.evaluate import Evaluation, checked_test_data
from fxdask.workflows.loading import load_model

__all__ = ["report"]


def report(
    model: str | Path | FisherNetworkClassifier,
    path: str | Path,
    X: Any = None,
    y: Any = None,
    *,
    memory_limit: int | str | None = None,
    verbose: bool = False,
) -> Evaluation | None:
    """Write one self-contained HTML page about a fitted model.

    Parameters
    ----------
    model : path, URL or fitted FisherNetworkClassifier
    path : path
        The page; an earlier report is replaced, any other file is refused.
    X, y : test samples and their true labels, optional
        In any form that ``predict`` accepts, of any size: only counts are kept. They add the accuracy,
        the confusion matrix, the reliability of the probabilities and the outlier scores. Samples at a
        path or in a Dask array are scored on the workers of the connected client.
    memory_limit : int, str or None
        Memory that local threads may use, in bytes or as a string such as "2 GiB".
    verbose : bool, default=False
        Show a progress bar on standard error. Interactive sessions show it for stages of more than 5 s anyway.

    Returns
    -------
    Evaluation or None
        The results on the test samples; None without them.

    Examples
    --------
    >>> import tempfile, fxdask
    >>> clf = fxdask.FisherNetworkClassifier(n_nodes=50).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> fxdask.report(clf, tempfile.mkdtemp() + "/model.html", [[0.05], [3.1]], [0, 1]).accuracy
    1.0
    """
    fitted = model._fitted_model() if isinstance(model, FisherNetworkClassifier) else load_model(store_url(model))
    checked_limit(memory_limit)
    test = checked_test_data(fitted, X, y)
    return report_model(fitted, path, test, memory_limit=memory_limit, verbose=verbose)
