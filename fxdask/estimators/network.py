"""What a fitted classifier shows of its network: importances, weights, responses of every node, a report."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.utils.validation import check_is_fitted

from fxdask.errors import InvalidInputError
from fxdask.execution.resources import checked_limit
from fxdask.kernels.importance import shares_of_features
from fxdask.kernels.network import NetworkParameters
from fxdask.kernels.projections import PROJECTIONS
from fxdask.reporting.model_page import report_model
from fxdask.store.files import array_file
from fxdask.workflows.data import Samples, as_samples
from fxdask.workflows.evaluate import Evaluation, checked_test_data
from fxdask.workflows.importance import known_importances
from fxdask.workflows.model import FittedModel
from fxdask.workflows.respond import loaded_rows, respond, response_batches
from fxdask.workflows.tables import named_features

__all__ = ["FittedNetwork"]


class FittedNetwork:
    """The methods of the classifier that show its fitted network."""

    density: str
    memory_limit: int | str | None
    verbose: bool
    _model: FittedModel

    @property
    def feature_importances_(self) -> NDArray[np.float64]:
        """How much every feature matters, from the divergences of all nodes, selected or not.

        If a feature tells a class from the others, nodes with a large weight on it have a large
        divergence. The importance of a feature is the square of the correlation of its squared
        weight with the divergence, over all nodes: the share of the divergence's variance that the
        feature explains. Positive correlations are summed over the classes, and scaled to the sum 1.
        scikit-learn's ``SelectFromModel`` uses it.

        Do not trust it in these cases:

        - Strongly correlated features share their importance, so each of them may look unimportant.
        - With ``normalize=None``, a feature of a much larger scale dominates every projection, and
          seems important for that alone; ``normalize="feature"`` gives all of them the same scale.
        - With few nodes: chance alone gives a squared correlation of about ``1 / n_nodes``, so
          features that explain less than a few times that cannot be told from noise. More nodes find
          weaker features; if more nodes change the best features, there were too few.

        Returns
        -------
        ndarray of shape (n_features_in_,)

        Examples
        --------
        >>> import numpy as np
        >>> from fxdask import FisherNetworkClassifier
        >>> rng = np.random.default_rng(0)
        >>> X, y = rng.standard_normal((600, 8)), np.arange(600) % 2
        >>> X[y == 1, 3] *= 4  # the classes differ only in the variance of feature 3
        >>> importances = FisherNetworkClassifier(n_nodes=1000).fit(X, y).feature_importances_
        >>> int(importances.argmax()), bool(importances[3] > 0.9)
        (3, True)
        """
        check_is_fitted(self)
        correlations = known_importances(self._model, verbose=self.verbose)
        # Kept, so that a model from an older store computes them once only.
        self._model = replace(self._model, importances=correlations)
        return shares_of_features(correlations)

    def weights(self, nodes: ArrayLike) -> NDArray[np.float32]:
        """Rows of the random weight matrix.

        Parameters
        ----------
        nodes : array-like of int
            Node indices, in any order.

        Returns
        -------
        ndarray of shape (len(nodes), n_features_in_)

        Examples
        --------
        >>> from fxdask import FisherNetworkClassifier
        >>> clf = FisherNetworkClassifier(n_nodes=100).fit([[0.0], [0.1], [3.0], [3.2]], [0, 0, 1, 1])
        >>> clf.weights([7, 99]).shape
        (2, 1)
        """
        check_is_fitted(self)
        self._model.check_weights()
        nodes = np.atleast_1d(np.asarray(nodes))
        if nodes.ndim != 1 or (nodes.size and nodes.dtype.kind not in "iu"):
            raise InvalidInputError(f"nodes must be a list of integers, not {nodes.dtype} of shape {nodes.shape}")
        plan, seed = self._model.job.plan, self._model.settings.seed
        if nodes.size and (nodes.min() < 0 or nodes.max() >= plan.n_nodes):
            raise InvalidInputError(
                f"nodes run from 0 to {plan.n_nodes - 1}, but {nodes.min()} to {nodes.max()} were requested"
            )
        return PROJECTIONS[plan.projection].rows(seed, nodes, plan.n_features)

    def responses(self, x: Any, X_train: Any = None) -> NDArray[np.float64]:
        """Activations of every node, selected or not: the density of each class at the sample's projection.

        Parameters
        ----------
        x : array of shape (n_features,) or (n_samples, n_features)
        X_train : the samples the model was fitted on, in the same order
            Needed unless the store has ``keep_projections="all"``. A Dask array is loaded into
            memory; pass samples larger than memory as a path.

        Returns
        -------
        ndarray of shape (n_classes, n_nodes), or (n_samples, n_classes, n_nodes) for several samples
            The error is at most 3e-7 of each density's peak; ``density="exact"`` sums every kernel.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> FisherNetworkClassifier(n_nodes=200).fit(X, y).responses(X[0], X_train=X).shape
        (3, 200)
        """
        check_is_fitted(self)
        samples = as_samples(x if hasattr(x, "columns") else np.atleast_2d(np.asarray(x)), name="x")
        model, training = self._checked_for_responses(samples, X_train)
        with named_features(samples.names):
            activations = respond(model, samples.handle, training, self.memory_limit, verbose=self.verbose)
        return activations[0] if np.ndim(x) == 1 else activations

    def write_responses(self, X: Any, path: str | Path, X_train: Any = None) -> tuple[int, int, int]:
        """Write :meth:`responses` of many samples into a .npy file, for as many samples at a time as fit into memory.

        Parameters
        ----------
        X : array, DataFrame, or path of a Zarr array, a .npy file or Parquet
            The samples themselves are loaded into memory.
        path : path
            The file; an earlier one is replaced.
        X_train : as for :meth:`responses`

        Returns
        -------
        tuple
            (n_samples, n_classes, n_nodes), the shape of the array.

        Examples
        --------
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = FisherNetworkClassifier(n_nodes=200).fit(X, y)
        >>> clf.write_responses(X[:5], tempfile.mkdtemp() + "/responses.npy", X_train=X)
        (5, 3, 200)
        """
        check_is_fitted(self)
        samples = as_samples(X, name="X", features=self._fitted_model().names)
        model, training = self._checked_for_responses(samples, X_train)
        rows = loaded_rows(samples)
        shape = (len(rows), model.job.plan.n_classes, model.job.plan.n_nodes)
        with named_features(samples.names):
            batches = response_batches(model, rows, training, None, self.memory_limit, verbose=self.verbose)
            with array_file(Path(path), shape) as file:
                for start, activations in batches:
                    file[start : start + len(activations)] = activations
        return shape

    def report(self, path: str | Path, X: Any = None, y: Any = None) -> Evaluation | None:
        """Write one self-contained HTML page about the model: its nodes, their densities and divergences.

        Parameters
        ----------
        path : path
            The page; an earlier report is replaced, any other file is refused.
        X, y : test samples and their true labels, optional
            In any form that :meth:`predict` accepts, of any size: only counts are kept. They add the
            accuracy, the confusion matrix, the reliability of the probabilities and the outlier scores.

        Returns
        -------
        Evaluation or None
            The results on the test samples; None without them.

        Examples
        --------
        >>> import tempfile
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = FisherNetworkClassifier(n_nodes=500).fit(X[::2], y[::2])
        >>> clf.report(tempfile.mkdtemp() + "/model.html", X[1::2], y[1::2]).n_samples
        75
        """
        model = self._fitted_model()
        checked_limit(self.memory_limit)
        test = checked_test_data(model, X, y)
        return report_model(model, path, test, memory_limit=self.memory_limit, verbose=self.verbose)

    @property
    def network_(self) -> NetworkParameters:
        """The selected nodes with their training values: everything that prediction needs."""
        return self._fitted_model().scorer.parameters

    def _checked_for_responses(self, samples: Samples, X_train: Any) -> tuple[FittedModel, Samples | None]:
        """The model and the checked training samples, if they are given."""
        model = self._fitted_model()
        model.check_samples(samples)
        if X_train is None:
            return model, None
        training = as_samples(X_train, name="X_train", features=model.names)
        model.check_samples(training)
        return model, training

    def _fitted_model(self) -> FittedModel:
        """The model with the current ``density``, which may have changed since the fit."""
        check_is_fitted(self)
        return self._model.with_density(self.density)
