"""How much every feature matters for every class, for a model that is being fitted or was loaded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from fxdask.execution.importance import correlate_features
from fxdask.kernels.importance import StepSums
from fxdask.progress import progress_bar
from fxdask.tasks.job import FitJob
from fxdask.workflows.model import FittedModel

__all__ = ["known_importances", "measure_importances"]


def measure_importances(
    job: FitJob,
    divergences: NDArray[np.float64],
    *,
    known: Mapping[int, StepSums] | None = None,
    verbose: bool,
) -> NDArray[np.float64]:
    """(class, node) divergences, sums that the blocks made -> (class, feature) correlations of the squared weights."""
    with progress_bar("weighing features", shown=verbose) as progress:
        plan = job.plan
        return correlate_features(job.seed, plan.n_features, divergences, progress, plan.projection, known)


def known_importances(model: FittedModel, *, verbose: bool = False) -> NDArray[np.float64]:
    """(class, feature) importances of a model; they are computed if its store is too old to have them."""
    if model.importances is not None:
        return model.importances
    model.check_weights()
    return measure_importances(model.job, model.divergences, verbose=verbose)
