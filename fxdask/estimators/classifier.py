"""The classifier, which follows scikit-learn's conventions."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.metrics import accuracy_score
from sklearn.utils.validation import check_is_fitted, validate_data

from fxdask.errors import InvalidInputError
from fxdask.estimators.network import FittedNetwork
from fxdask.estimators.parameters import PAPER, checked_settings
from fxdask.execution import score as score_graphs
from fxdask.execution.frames import is_dask_frame, lazy_frame
from fxdask.execution.resources import checked_limit
from fxdask.kernels.results import best_classes, log_probabilities, score_difference, unchanged
from fxdask.kernels.scorer import class_probabilities, log_likelihood
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.machine import ClusterShape
from fxdask.store.paths import checked_store_url
from fxdask.tasks.frames import FrameResult
from fxdask.workflows.calibrate import with_prediction
from fxdask.workflows.copies import CopyOptions, readable_samples
from fxdask.workflows.data import Samples, as_labels, as_samples, dask_frame_columns, encode_labels, is_remote
from fxdask.workflows.fit import fit_model
from fxdask.workflows.model import FittedModel, TrainingData
from fxdask.workflows.persistence import stored_seed
from fxdask.workflows.plan import FitOptions, plan_model
from fxdask.workflows.settings import FitSettings
from fxdask.workflows.tables import named_features, with_label_column

__all__ = ["FisherNetworkClassifier"]

log = logging.getLogger(__name__)


class FisherNetworkClassifier(ClassifierMixin, FittedNetwork, BaseEstimator):
    """Classifier of random projections, of which the best are selected, and their kernel densities.

    A random matrix of ``n_nodes`` rows projects every sample. Each node gets a divergence per
    class, an extension of Fisher's criterion that also separates classes by their variances
    (Alsolami and Fukai, arXiv 2212.09225). The ``n_selected`` best nodes of each class are kept.
    The label is the class with the largest product of prior and density of the sample at these nodes:
    kernel densities of the nodes, combined by the rule ``combine``. No weight is trained.

    The blocks of nodes run on the active Dask client, or on local threads if there is none.

    Parameters
    ----------
    n_nodes : int, default=10_000
        Random projections to choose from.
    n_selected : int, default=10
        Nodes kept for each class.
    projection : {"gaussian", "structured"}
        "gaussian" draws every weight from a normal distribution and multiplies. "structured" projects by
        fast Hadamard transforms with random signs, without any weights in memory: much faster, the more
        so the more features there are, with other random nodes of the same kind. Below 16 features
        Gaussian weights are used (see ``projection_``).
    criterion : str, default="extended_fisher"
        How nodes are ranked: a name in ``fxdask.CRITERIA``. "relief" ranks only the pool of
        ``selection="joint"``: the pool is chosen by "extended_fisher", and its nodes are then taken in
        the order of their weights of ReliefF, except those that repeat what the chosen ones tell.
    selection : {"top", "joint"}
        "top" takes the best nodes of each class one by one. "joint" takes one set of at most
        ``n_selected * n_classes`` nodes that all classes share: it adds one node after another, each
        the one that leaves the smallest overlap of the classes (see ``overlaps_``). It ends early
        where every further node repeats what the chosen ones tell.
    pool_size : int or "auto"
        Candidates of each class for ``selection="joint"``, its best nodes by the criterion; "auto" is
        ten times ``n_selected``, at least 100, or fewer with many classes.
    location : {"interquartile_mean", "mean", "median"}
        Estimator of the location of a class at a node.
    spread : {"mad", "iqr", "std"}
        Estimator of the width of a class at a node: MAD / 0.6745, IQR / 1.349, or the standard
        deviation. A spread of zero falls back to the next of these.
    shrink_spread : bool, default=True
        Move the spread of a class of few samples towards that of the others: its variance becomes
        ``(1 - w) sigma_k^2 + w mean_j sigma_j^2``, ``w = 2^((1 - v) / 2)`` for v samples. Few samples are often
        close together by chance. From 100 samples on, w is below 2e-15.
    bandwidth : {"silverman", "scott", "sheather_jones"} or float
        Width of the kernels; a number is a width in the units of the projections.
        "sheather_jones" falls back to Silverman's rule if its equation has no root.
    bandwidth_spread : {"mad", "iqr", "std"} or None
        The spread that Silverman's and Scott's rules scale; None means ``spread``.
    priors : {"class_share", "equal"} or array of shape (n_classes,)
        Prior of each class, in the criterion and in the decision.
    combine : {"sum", "scaled", "log", "joint"}
        The sum of a class's densities; the same with each density times its node's spread; the
        sum of log densities over all classes' nodes; or the joint density of all classes' nodes,
        whose kernel densities are joined by the correlations of the class (a Gaussian copula).
    density : {"table", "exact"}
        Look densities up in tables of bounded error, or sum every kernel. The labels are always the
        same: a sample that the bound does not decide is summed. It may be changed after a fit.
    normalize : "auto", None, "sample" or "feature"
        Scale each sample, or each feature, to mean 0 and standard deviation 1, at fit and at predict.
        "auto" chooses "feature" if one feature's standard deviation is more than ten times the
        median one, and not by a single outlier, else None (see ``normalize_``).
    store : path, URL or None
        The Zarr store to fit into. The same call resumes an unfinished store and loads a finished
        one; other data or parameters are refused. None keeps the model in memory only.
    keep_projections : {"selected", "all", "table"}
        "all" keeps every node's training projections in the store, for :meth:`responses`. "table" keeps
        tables of a fixed size instead of the selected nodes' projections, for very many samples; "selected"
        does so, too, if these would take more than 2 GiB and X is at a path. The labels are the same. It
        needs another rule than ``combine="joint"``, and reads X again for the few samples that tables do not decide.
    keep_weights : bool, default=False
        Keep every node's weights in the store, for other programs; fxdask itself draws them from the seed.
    nodes_per_block : int or "auto"
        Nodes per task and chunk. It never changes a result.
    memory_limit : int, str or None
        Memory that local threads may use, in bytes or as a string such as "2 GiB"; None: the free
        memory of the machine. Workers have their own limits. It never changes a result (see :meth:`plan`).
    overwrite : bool, default=False
        Replace another model that the store holds.
    random_state : int, RandomState or None
        Seed of the weights.
    verbose : bool, default=False
        Show a progress bar on standard error. Interactive sessions show it for stages of more than 5 s anyway.

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
    sample_counts_ : ndarray of shape (n_classes,)
        Training samples of each class.
    priors_ : ndarray of shape (n_classes,)
    selected_nodes_ : ndarray of shape (n_classes, n_selected)
        Node indices, best first; -1 where a class has fewer usable nodes. With ``selection="joint"``
        one row that all classes share, in the order in which the nodes were chosen.
    overlaps_ : ndarray of shape (n_chosen,) or None
        Overlap of the classes after each node of a joint selection: where it no longer falls, more
        nodes do not help.
    projection_ : {"gaussian", "structured"}
        The projection in use.
    normalize_ : None, "sample" or "feature"
        The normalisation in use; the choice of ``normalize="auto"``.
    temperature_ : float
        What log scores are divided by in :meth:`predict_proba`. It changes no label.
    divergences_ : ndarray of shape (n_classes, n_nodes)
        Every node's score for every class, by the criterion; with "relief" by "extended_fisher".
    feature_importances_ : ndarray of shape (n_features_in_,)
        How much every feature matters; the sum is 1. Structured weights of many features are those of
        the first ``2**28 // n_features`` nodes, at least 1,024.
    density_error_ : ndarray of shape (n_classes, n_selected)
        Bound on the relative error of each selected node's tabulated density, at most 4e-7.
    spread_sources_ : dict
        Number of spreads by the estimator that gave them; it shows how often a fallback was used.
    bandwidth_fallbacks_ : dict
        Number of bandwidths of selected nodes that used a fallback, by "spread" and "rule".
    fit_info_ : dict
        Seconds, blocks, resumed blocks, passes over the samples, repeated rows, the plan; and for each
        process its blocks, the bytes it read and its peak memory. Empty after a load.
    n_features_in_ : int
    feature_names_in_ : ndarray, only if X had feature names
    seed_ : int
    store_ : str or None

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from fxdask import FisherNetworkClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> clf = FisherNetworkClassifier(n_nodes=1000, normalize="feature").fit(X, y)
    >>> clf.selected_nodes_.shape
    (3, 10)
    >>> bool(clf.score(X, y) > 0.85)
    True
    """

    def __init__(  # noqa: PLR0913 - scikit-learn sets every parameter by name
        self,
        n_nodes: int = 10_000,
        n_selected: int = 10,
        *,
        projection: str = "gaussian",
        criterion: str = "extended_fisher",
        selection: str = "top",
        pool_size: int | str = "auto",
        location: str = "interquartile_mean",
        spread: str = "mad",
        shrink_spread: bool = True,
        bandwidth: str | float = "silverman",
        bandwidth_spread: str | None = None,
        priors: str | ArrayLike = "class_share",
        combine: str = "joint",
        density: str = "table",
        normalize: str | None = "auto",
        store: str | Path | None = None,
        keep_projections: str = "selected",
        keep_weights: bool = False,
        nodes_per_block: int | str = "auto",
        memory_limit: int | str | None = None,
        overwrite: bool = False,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.n_nodes = n_nodes
        self.n_selected = n_selected
        self.projection = projection
        self.criterion = criterion
        self.selection = selection
        self.pool_size = pool_size
        self.location = location
        self.spread = spread
        self.shrink_spread = shrink_spread
        self.bandwidth = bandwidth
        self.bandwidth_spread = bandwidth_spread
        self.priors = priors
        self.combine = combine
        self.density = density
        self.normalize = normalize
        self.store = store
        self.keep_projections = keep_projections
        self.keep_weights = keep_weights
        self.nodes_per_block = nodes_per_block
        self.memory_limit = memory_limit
        self.overwrite = overwrite
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def paper(cls, **changes: Any) -> Self:
        """Return an unfitted classifier with the setting of the paper.

        10,000 nodes ranked by the extended Fisher criterion, of which each class keeps its 10 best;
        interquartile means, MADs and Silverman's bandwidths; every sample scaled to mean 0 and standard
        deviation 1; equal priors; the score of a class is the sum of its densities. It stays the same
        if the defaults of the class change. The paper's experiment also shifts the means of the
        classes: :func:`fxdask.reproduce` does that.

        Parameters
        ----------
        **changes
            Parameters of the class with other values than in the paper.

        Returns
        -------
        FisherNetworkClassifier

        Examples
        --------
        >>> from sklearn.datasets import load_digits
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_digits(n_class=2, return_X_y=True)
        >>> clf = FisherNetworkClassifier.paper(n_nodes=1000).fit(X[::2], y[::2])
        >>> clf.combine, clf.normalize_, bool(clf.score(X[1::2], y[1::2]) > 0.95)
        ('sum', 'sample', True)
        """
        return cls(**{**PAPER, **changes})

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy, which remembers if it has the store of another estimator."""
        copy = super().__sklearn_clone__()
        if self.store is not None:
            copy._store_of_another = self.store
        return copy

    def fit(self, X: Any, y: Any) -> Self:
        """Fit the network.

        Parameters
        ----------
        X : array, DataFrame, Dask array or DataFrame, Zarr array, or path of a Zarr array, a .npy file or Parquet
            One sample per row. :func:`fxdask.table` chooses columns of Parquet.
        y : the same types, one label per sample
            If X is a DataFrame or Parquet, y may also be the name of its column that holds the labels.

        Returns
        -------
        FisherNetworkClassifier
            The fitted estimator.

        Examples
        --------
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = [[0.0, 1.0], [0.2, 0.9], [5.0, 1.1], [5.1, 0.8]], [0, 0, 1, 1]
        >>> FisherNetworkClassifier(n_nodes=100, n_selected=3).fit(X, y).predict([[4.9, 1.0]])
        array([1])
        """
        settings, options = self._checked()
        X, y = with_label_column(X, y)
        if isinstance(X, DaskArray) and options.store is not None:
            # Refused before the samples are copied, if memory or labels do not suffice.
            y = as_labels(y)
            plan_model(settings, _training_data(as_samples(X), y), options)
        copies = CopyOptions(
            store=options.store,
            copies_array=options.store is not None,
            overwrite=self.overwrite,
            memory_limit=self.memory_limit,
            verbose=self.verbose,
        )
        with readable_samples(X, copies) as samples:
            return self._adopt(fit_model(settings, _training_data(samples, y), options))

    def plan(self, X: Any, y: Any, *, cluster: ClusterShape | None = None, calibrate: bool = False) -> FitPlan:
        """Plan :meth:`fit` without running it; of X only the shape and dtype are read.

        The plan uses the memory and threads of the active Dask client's workers, or of this machine.

        Parameters
        ----------
        X, y : as for :meth:`fit`
        cluster : ClusterShape, optional
            Plan for this cluster instead, which need not be connected.
        calibrate : bool, default=False
            Run a few blocks on some of the samples, for a few seconds on this machine, and predict what
            the fit takes on threads that are as quick (``plan.prediction``).

        Returns
        -------
        FitPlan
            Print it, or read the numbers from its ``facts()``.

        Examples
        --------
        >>> import numpy as np
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = np.zeros((1000, 20), np.float32), np.arange(1000) % 2
        >>> plan = FisherNetworkClassifier(n_nodes=10_000).plan(X, y)
        >>> plan.n_blocks, plan.is_streamed, plan.product_passes
        (27, False, 1.0)
        """
        settings, options = self._checked()
        X, y = with_label_column(X, y)
        data = _training_data(as_samples(X), y)
        plan = plan_model(settings, data, replace(options, cluster=cluster))
        return with_prediction(plan, settings, data) if calibrate else plan

    def _checked(self) -> tuple[FitSettings, FitOptions]:
        """Checked settings and options."""
        if self.store is not None and self.store == getattr(self, "_store_of_another", None):
            raise InvalidInputError(
                f"a copy of an estimator would fit into the same store ({self.store}) as the other copies; "
                "in searches, cross-validation and ensembles use store=None, or give the copy a store of its own "
                "by set_params(store=...)"
            )
        store = None if self.store is None else checked_store_url(self.store)
        settings = checked_settings(self, stored_seed(store) if store and not self.overwrite else None)
        checked_limit(self.memory_limit)
        options = FitOptions(
            store=store,
            overwrite=self.overwrite,
            nodes_per_block=self.nodes_per_block,
            memory_limit=self.memory_limit,
            verbose=self.verbose,
        )
        return settings, options

    def predict(self, X: Any) -> NDArray | DaskArray:
        """Label samples.

        Parameters
        ----------
        X : array, DataFrame, Dask array or DataFrame, Zarr array, or path of a Zarr array, a .npy file or Parquet
            Columns of Parquet and of Dask DataFrames are taken by the names of the fitted features.

        Returns
        -------
        ndarray, Dask array or Dask Series of shape (n_samples,)
            A lazy Dask array if X is one. For a Dask DataFrame a lazy Series with the same index and
            divisions, so that ``frame.assign(label=clf.predict(frame[features]))`` works.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> FisherNetworkClassifier(n_nodes=500).fit(X, y).predict(X[:2])
        array([0, 0])
        """
        check_is_fitted(self)
        return self._scored(X, FrameResult(partial(best_classes, classes=self.classes_), "label"))

    def predict_log_proba(self, X: Any) -> NDArray[np.float64] | DaskArray:
        """Log of :meth:`predict_proba`, also where the probability itself underflows to zero.

        Returns
        -------
        ndarray, Dask array or Dask DataFrame of shape (n_samples, n_classes), as for :meth:`predict_proba`

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> FisherNetworkClassifier(n_nodes=500).fit(X, y).predict_log_proba(X).shape
        (150, 3)
        """
        check_is_fitted(self)
        finish = partial(log_probabilities, temperature=self.temperature_)
        return self._scored(X, FrameResult(finish, self.classes_.tolist()))

    def predict_proba(self, X: Any) -> NDArray[np.float64] | DaskArray:
        """Probability of each class: the softmax of its log score divided by the temperature.

        The temperature changes no label. It was fitted to training samples, each scored as if it had
        been left out, so that probabilities are as sure as the labels are right.

        Returns
        -------
        ndarray, Dask array or Dask DataFrame of shape (n_samples, n_classes)
            For a Dask DataFrame a lazy one with the same index, whose columns are ``classes_``.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> FisherNetworkClassifier(n_nodes=500).fit(X, y).predict_proba(X[:1]).sum().round(6)
        np.float64(1.0)
        """
        check_is_fitted(self)
        finish = partial(class_probabilities, temperature=self.temperature_)
        return self._scored(X, FrameResult(finish, self.classes_.tolist()))

    def score_samples(self, X: Any) -> NDArray[np.float64] | DaskArray:
        """How likely each sample is at all: the log of the sum of all classes' scores, for finding outliers.

        Compare it only between samples of one model. Do not trust it where the selected nodes do not look:
        an outlier that differs only in directions orthogonal to all of them seems ordinary. Rules "sum"
        and "scaled" add densities of different nodes, so there it is no density of the sample.

        Returns
        -------
        ndarray, Dask array or Dask Series of shape (n_samples,)
            Lazy if X is a collection of Dask.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> clf = FisherNetworkClassifier(n_nodes=500, combine="joint").fit(X, y)
        >>> ordinary, far = clf.score_samples([X[0], 100 * X[0]])
        >>> bool(far < ordinary)
        True
        """
        return self._scored(X, FrameResult(log_likelihood, "log_likelihood"))

    def decision_function(self, X: Any) -> NDArray[np.float64] | DaskArray:
        """Log scores: ``ln y_1 - ln y_0`` of shape (n_samples,) for two classes, else (n_samples, n_classes).

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> FisherNetworkClassifier(n_nodes=500).fit(X, y == 1).decision_function(X).shape
        (150,)
        """
        check_is_fitted(self)
        if len(self.classes_) == 2:
            return self._scored(X, FrameResult(score_difference, "decision"))
        return self._scored(X, FrameResult(unchanged, self.classes_.tolist()))

    def score(self, X: Any, y: Any, sample_weight: ArrayLike | None = None) -> float:
        """Share of samples whose predicted label equals ``y``.

        Examples
        --------
        >>> from sklearn.datasets import load_iris
        >>> from fxdask import FisherNetworkClassifier
        >>> X, y = load_iris(return_X_y=True)
        >>> bool(FisherNetworkClassifier(n_nodes=500).fit(X, y).score(X, y) > 0.8)
        True
        """
        X, y = with_label_column(X, y)
        return float(accuracy_score(as_labels(y), np.asarray(self.predict(X)), sample_weight=sample_weight))

    # Internals

    def __sklearn_is_fitted__(self) -> bool:
        """Whether there is a model; a failed fit leaves none."""
        return hasattr(self, "_model")

    def _adopt(self, model: FittedModel) -> Self:
        """Set all fitted attributes from a model that was fitted or loaded."""
        self._model = model
        self.classes_ = model.classes
        self.sample_counts_ = np.array(model.job.plan.class_counts)
        self.priors_ = model.job.priors
        self.projection_ = model.job.plan.projection
        self.normalize_ = model.settings.normalize
        self.temperature_ = model.temperature
        self.selected_nodes_ = model.selected_nodes
        self.overlaps_ = model.overlaps
        self.divergences_ = model.divergences
        self.density_error_ = model.density_error_of_selected()
        self.spread_sources_ = dict(zip(SPREAD_SOURCES, model.source_counts.sum(axis=0).tolist(), strict=True))
        self.bandwidth_fallbacks_ = model.bandwidth_fallbacks
        self.fit_info_ = model.info
        self.n_features_in_ = model.job.plan.n_features
        if model.names is not None:
            self.feature_names_in_ = model.names
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        self.seed_ = model.settings.seed
        self.store_ = model.job.store
        return self

    def _scored(self, X: Any, result: FrameResult) -> Any:
        """The result of the log scores of X: lazy for a collection of Dask, else computed on local threads."""
        check_is_fitted(self)
        model = self._fitted_model()
        if is_dask_frame(X):
            columns, dtype, _ = dask_frame_columns(X, features=model.names)
            model.check_n_features(len(columns))
            return lazy_frame(model.scorer, X, columns, dtype, result)
        samples = as_samples(X, min_samples=0, features=model.names)
        if not is_remote(X):
            # scikit-learn checks the feature names, so that its usual errors and warnings appear.
            validate_data(self, X, reset=False, skip_check_array=True)
        model.check_samples(samples)
        if isinstance(samples.handle, DaskArray):
            return score_graphs.lazy_results(model.scorer, samples.handle, result.finish)
        with named_features(samples.names):
            scored = score_graphs.log_scores(model.scorer, samples.handle, samples.n_samples)
        log.info("%d of %d samples were decided by exact sums", scored.n_exact, samples.n_samples)
        return result.finish(scored.scores)


def _training_data(samples: Samples, y: Any) -> TrainingData:
    """Checked samples and labels in any accepted form."""
    return TrainingData(samples, *encode_labels(as_labels(y, samples.n_samples), samples.n_samples))
