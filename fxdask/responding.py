"""The activations of every node, selected or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask import graph
from fxdask.errors import InvalidInputError
from fxdask.fitted import FittedModel
from fxdask.inputs import Samples
from fxdask.kernels.preparation import checked_rows
from fxdask.progress import progress_bar

__all__ = ["respond"]


def respond(
    model: FittedModel, points: NDArray, training: Samples | None, density: str, *, verbose: bool = False
) -> NDArray[np.float64]:
    """(point, input) raw samples -> (point, class, node) activations, from the store or from the training samples."""
    model.check_weights()
    checked_rows(points)
    # A copy, so that what tasks keep with a job is gone when this is done.
    job = replace(model.job)
    handle = _training_handle(model, training)
    with progress_bar("responding", shown=verbose) as progress:
        return graph.respond(
            job, handle, points, model.settings.bandwidth, model.settings.bandwidth_spread, density, progress
        )


def _training_handle(model: FittedModel, training: Samples | None) -> Any:
    """What the tasks read: None if the store keeps all projections, else the checked training samples."""
    if training is None:
        if "projections" not in model.job.plan.kept:
            raise InvalidInputError(
                'responses of all nodes need the training samples: pass X_train, or fit with keep_projections="all"'
            )
        return None
    seen = graph.survey(training.handle, training.n_samples, training.n_inputs, model.settings.normalize)
    if seen.digest != model.samples_digest:
        raise InvalidInputError("X_train is not what this model was fitted on; pass the same samples in the same order")
    if isinstance(training.handle, DaskArray):
        return graph.place(np.asarray(training.handle))
    return graph.place(training.handle)
