"""``fxdask.batch_score``: label a test set of any size, and store labels and scores."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from fxdask.errors import InvalidInputError
from fxdask.estimators.classifier import FisherNetworkClassifier
from fxdask.execution.resources import checked_limit
from fxdask.store.arrow import arrow
from fxdask.store.parquet import is_parquet_name
from fxdask.store.paths import checked_store_url, store_url
from fxdask.workflows.copies import CopyOptions, readable_samples
from fxdask.workflows.data import as_labels
from fxdask.workflows.loading import load_model
from fxdask.workflows.score import BatchScores, ScoreOptions, checked_truth, score_model
from fxdask.workflows.tables import split_columns, with_label_column

__all__ = ["batch_score"]

OTHER_FORMATS = {".csv", ".feather", ".h5", ".hdf5", ".json", ".npy", ".npz", ".tsv", ".txt", ".xlsx"}


def batch_score(  # noqa: PLR0913 - the public call
    model: str | Path | FisherNetworkClassifier,
    X: Any,
    out: str | Path,
    y: Any = None,
    *,
    columns: Sequence[str] | None = None,
    id_columns: Sequence[str] | None = None,
    likelihood: bool = False,
    density: str | None = None,
    memory_limit: int | str | None = None,
    overwrite: bool = False,
    verbose: bool = False,
) -> BatchScores:
    """Label a test set of any size, and write labels and scores into a Zarr group, or as Parquet.

    The group holds ``labels`` (sample,) and ``scores`` (sample, class). The scores are log scores in
    the order of the model's classes, and the largest one gives the label. With ``likelihood`` it also
    holds ``log_likelihood`` (sample,), the same values as ``score_samples`` of the classifier, for
    finding outliers. Samples at a path or in a Dask array are scored on the workers of the connected
    client, an array in memory on local threads.

    If ``out`` ends in .parquet, it becomes a folder of Parquet files with one row per sample: the
    ``id_columns`` of X, ``label``, one column ``score_<class>`` per class, and ``log_likelihood``. The
    rows are in the order of X. The file ``_SUCCESS`` is written last; it says in JSON which model
    wrote how many rows.

    Each task reads whole chunks of X and writes one whole chunk, or one file, of the result. The same call resumes
    an interrupted one, if X is a path whose files have the same names, sizes and times. Arrays in
    memory and Dask arrays are scored from the start, because only reading all of X could show that
    it is unchanged.

    Parameters
    ----------
    model : path, URL or fitted FisherNetworkClassifier
    X : array, DataFrame, Dask array or DataFrame, Zarr array, or path of a Zarr array, a .npy file or Parquet
        If the model knows its features by name, these columns are taken from Parquet.
    out : path or URL
        Must not exist yet, unless ``overwrite`` is set and it holds earlier scores. They are kept until
        the new scores are complete.
    y : labels, optional
        True labels; they give the accuracy and the confusion matrix. If X is a DataFrame or Parquet, y may be
        the name of its column.
    columns : list of str, optional
        The columns of X that are the features. By default those of the fit if X is Parquet and the model
        knows their names, else all but the ids.
    id_columns : list of str, optional
        Columns of X that are copied beside the labels, of any type. They need an ``out`` of Parquet.
    likelihood : bool, default=False
        Write the log of the sum of all classes' scores of each sample too.
    density : {"table", "exact"}, optional
        Look densities up, or sum every kernel; the labels are the same. By default as in the fit.
    memory_limit : int, str or None
        Memory that local threads may use, in bytes or as a string such as "2 GiB"; None: the free
        memory of the machine. Workers have their own limits.
    overwrite : bool, default=False
    verbose : bool, default=False
        Show a progress bar on standard error. Interactive sessions show it for stages of more than 5 s anyway.

    Returns
    -------
    BatchScores
        The path of the scores, counters and timings; the accuracy and the confusion matrix if ``y``
        was given.

    Examples
    --------
    >>> import tempfile, fxdask
    >>> clf = fxdask.FisherNetworkClassifier(n_nodes=50).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
    >>> result = fxdask.batch_score(clf, [[0.05], [3.1]], tempfile.mkdtemp() + "/scored.zarr", y=[0, 1])
    >>> result.n_samples, result.accuracy
    (2, 1.0)
    """
    started = time.perf_counter()
    fitted = model._fitted_model() if isinstance(model, FisherNetworkClassifier) else load_model(store_url(model))
    if density is not None:
        fitted = fitted.with_density(density)
    checked_limit(memory_limit)
    if not isinstance(out, (str, Path)):
        raise InvalidInputError(f"out must be a path or a URL, not {out!r}")
    as_table = is_parquet_name(out)
    if id_columns and not as_table:
        raise InvalidInputError(f"id_columns need a result of Parquet, but out is {out}; choose a name with .parquet")
    if as_table:
        arrow()  # before any work, if the package is missing
    elif Path(str(out)).suffix.lower() in OTHER_FORMATS:
        raise InvalidInputError(f"scores are a Zarr group or Parquet, not {out}; choose a name with .zarr or .parquet")
    target = checked_store_url(out)
    X, y = with_label_column(X, y)
    X, ids = split_columns(X, columns, id_columns)
    if not isinstance(likelihood, (bool, np.bool_)):
        raise InvalidInputError(f"likelihood must be True or False, not {likelihood!r}")
    options = ScoreOptions(
        memory_limit=memory_limit,
        overwrite=overwrite,
        verbose=verbose,
        likelihood=bool(likelihood),
        as_table=as_table,
        ids=ids,
    )
    copies = CopyOptions(
        store=target, copies_array=False, overwrite=overwrite, verbose=verbose, features=fitted.names, min_samples=0
    )
    with readable_samples(X, copies) as samples:
        fitted.check_samples(samples)
        truth = None if y is None else checked_truth(as_labels(y, samples.n_samples), samples.n_samples, fitted.classes)
        result = score_model(fitted, samples, target, truth, options)
    return replace(result, seconds=time.perf_counter() - started)
