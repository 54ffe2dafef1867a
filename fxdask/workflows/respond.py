"""Compute the activations of all nodes, selected or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.execution import respond as graphs
from fxdask.execution.graphs import broadcast
from fxdask.execution.scan import scan_samples
from fxdask.kernels.preprocessing import checked_rows
from fxdask.progress import progress_bar
from fxdask.tasks.respond import ResponseOptions, ResponsePoints
from fxdask.workflows.data import Samples
from fxdask.workflows.model import FittedModel

__all__ = ["respond"]


def respond(
    model: FittedModel, points: NDArray, training: Samples | None, *, verbose: bool = False
) -> NDArray[np.float64]:
    """(point, feature) raw samples -> (point, class, node) activations, from the store or from the training samples."""
    model.check_weights()
    checked_rows(points)
    # Tasks cache by job; a copy of the job makes the cache end with this call, not with the model.
    job, settings = replace(model.job), model.settings
    options = ResponseOptions(settings.bandwidth, settings.bandwidth_spread, model.scorer.density)
    with progress_bar("responding", shown=verbose) as progress:
        return graphs.respond(job, _training_handle(model, training), ResponsePoints(points), options, progress)


def _training_handle(model: FittedModel, training: Samples | None) -> Any:
    """Handle of the checked training samples, or None if the tasks read projections from the store."""
    if training is None:
        if "projections" not in model.job.plan.kept:
            raise InvalidInputError(
                'responses need the training samples; pass X_train, or fit with keep_projections="all"'
            )
        return None
    scan = scan_samples(training.handle, training.n_samples, training.n_features, model.settings.normalize)
    if scan.digest != model.samples_digest:
        raise InvalidInputError("X_train differs from the samples of the fit; pass the same samples in the same order")
    if isinstance(training.handle, DaskArray):
        return broadcast(np.asarray(training.handle))
    return broadcast(training.handle)
