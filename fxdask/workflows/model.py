"""Training data and the fitted model in memory."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, WeightStreamError
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.weights import FINGERPRINT_FEATURES, fingerprint_nodes
from fxdask.planning.fit_plan import FitPlan
from fxdask.sizes import row_ranges
from fxdask.tasks.job import FitJob
from fxdask.workflows.data import Samples
from fxdask.workflows.settings import FitSettings
from fxdask.workflows.tables import in_fitted_order

__all__ = ["FittedModel", "TrainingData", "weight_fingerprint"]

CODES_PER_STEP = 2**20


@dataclass(frozen=True)
class TrainingData:
    """Checked samples with their class codes."""

    samples: Samples
    classes: NDArray
    codes: NDArray[np.integer]
    counts: NDArray[np.int64]

    def labels_digest(self) -> str:
        """Digest of the classes and of every sample's class."""
        kind = "text" if self.classes.dtype.kind in "UO" else self.classes.dtype.kind
        named = json.dumps([kind, self.classes.tolist()]).encode()
        found = hashlib.sha256(named)
        for start, stop in row_ranges(len(self.codes), CODES_PER_STEP):
            found.update(np.asarray(self.codes[start:stop], "<i4").tobytes())
        return found.hexdigest()


@dataclass(frozen=True, kw_only=True)
class FittedModel:
    """A fitted network, and everything that the estimator reports about it."""

    settings: FitSettings
    classes: NDArray
    job: FitJob
    scorer: Scorer
    selected_nodes: NDArray[np.int64]
    """(class, rank), or (1, rank) nodes that all classes share"""
    divergences: NDArray[np.float64]
    density_error: NDArray[np.float64]
    temperature: float
    """What scores are divided by before they become probabilities."""
    source_counts: NDArray[np.int64]
    samples_digest: str
    fingerprint: NDArray[np.float32]
    """The first weights of a few nodes, see :func:`weight_fingerprint`."""
    bandwidth_fallbacks: dict[str, int]
    info: dict[str, Any]
    normalize_requested: str | None = None
    """The parameter ``normalize`` of the fit: the normalisation in use, or "auto", which chose it."""
    overlaps: NDArray[np.float64] | None = None
    """(rank,) overlap of the classes after each node of a joint selection"""
    names: NDArray | None = None
    importances: NDArray[np.float64] | None = None
    """(class, feature) correlations of the squared weights with the divergences; None if its store has none."""

    def with_density(self, density: str) -> FittedModel:
        """The same model with densities from tables or from exact sums."""
        return replace(self, scorer=self.scorer.with_density(density))

    def density_error_of_selected(self) -> NDArray[np.float64]:
        """(class, rank) bound on the error of each selected node's density; NaN where there is no node."""
        nodes, n_classes = self.scorer.parameters.nodes, len(self.classes)
        chosen = np.broadcast_to(self.selected_nodes, (n_classes, self.selected_nodes.shape[1]))
        columns = np.searchsorted(nodes, np.maximum(chosen, 0)).clip(max=len(nodes) - 1)
        error = np.take_along_axis(self.density_error, columns, axis=1)
        return np.where(chosen >= 0, error, np.nan)

    def check_samples(self, samples: Samples) -> None:
        """Refuse samples with another number of features or other feature names, in scikit-learn's words."""
        if self.names is not None and samples.names is not None and list(samples.names) != list(self.names):
            in_fitted_order(list(samples.names), list(self.names))
            raise InvalidInputError(
                "The feature names should match those that were passed during fit, in the same order"
            )
        self.check_n_features(samples.n_features)

    def check_n_features(self, n_features: int) -> None:
        """Refuse samples with another number of features, in scikit-learn's words."""
        expected = self.job.plan.n_features
        if n_features != expected:
            raise InvalidInputError(
                f"X has {n_features} features, but FisherNetworkClassifier is expecting {expected} features as input"
            )

    def check_weights(self) -> None:
        """Refuse to draw weights if this NumPy draws different ones than the NumPy that fitted the model."""
        if not np.array_equal(self.fingerprint, weight_fingerprint(self.settings.seed, self.job.plan)):
            raise WeightStreamError(
                f"NumPy {np.__version__} draws other weights than the NumPy that fitted the model; install that version"
            )


def weight_fingerprint(seed: int, plan: FitPlan) -> NDArray[np.float32]:
    """The first weights of a few nodes, stored to detect a NumPy that draws different weights."""
    rows = PROJECTIONS[plan.projection].rows(seed, fingerprint_nodes(plan.n_nodes), plan.n_features)
    return rows[:, :FINGERPRINT_FEATURES]
