"""The feature selector, which follows scikit-learn's conventions."""

from __future__ import annotations

from numbers import Integral, Real
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted

from fxdask.errors import InvalidInputError
from fxdask.estimators.parameters import checked_rank_settings
from fxdask.estimators.transform import FrameTransform, LazyTransform, spread_out
from fxdask.execution.frames import is_dask_frame
from fxdask.execution.resources import checked_limit
from fxdask.kernels.criteria.multiple_testing import false_discovery_threshold
from fxdask.kernels.criteria.relief import N_ANCHORS, N_NEIGHBOURS
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.workflows.data import as_labels, encode_labels
from fxdask.workflows.model import TrainingData
from fxdask.workflows.rank import rank, readable_features
from fxdask.workflows.rank_request import RankOptions
from fxdask.workflows.ranked import SHORT_RULES, RankedFeatures, ranks_of
from fxdask.workflows.redundancy import REDUNDANCIES, Redundancy
from fxdask.workflows.settings import check_flag, check_name, check_whole_number
from fxdask.workflows.tables import is_frame, numeric_columns, opened, with_label_column

__all__ = ["FilterSelector"]


class FilterSelector(LazyTransform, FrameTransform, BaseEstimator):
    """Select features by how well each separates the classes, on data of any size.

    The features are ranked as by :func:`fxdask.rank_features`, on the active Dask client or on local
    threads. A feature that is constant in all classes is never selected by ``fisher`` or
    ``extended_fisher``.

    Parameters
    ----------
    criterion : str, default="extended_fisher"
        A name in ``fxdask.CRITERIA``.
    k : int or "all", default=10
        Number of features; all if there are fewer. It does not count if one of the next three is given.
    percentile : float, optional
        Share of the features in percent.
    threshold : float, optional
        Smallest score.
    fdr : float, optional
        False discovery rate, for a criterion with p-values.
    fdr_method : {"bh", "by"}
        Benjamini and Hochberg's rule, for independent or positively dependent features, or Benjamini
        and Yekutieli's, for any.
    per_class : bool, default=False
        Take the best of every class, for a criterion with scores of each class: ``k`` or ``percentile``
        features of each, or all with a score or p-value that is good enough for one of them.
    redundancy : {None, "mrmr", "joint"}
        "mrmr" chooses ``k`` features one after another, each by its score, divided by the largest one,
        minus its mean absolute correlation with those chosen before. "joint" adds the one that leaves the
        smallest overlap of the classes, as ``selection="joint"`` of the classifier does; it ends early
        where every further feature repeats what the chosen ones tell.
    pool_size : int or "auto"
        The best features by the criterion among which ``redundancy`` chooses; "auto": ten times ``k``, at
        least 100 and at most 2,000.
    location, spread, shrink_spread, priors, missing, numeric_only, n_anchors, n_neighbors, memory_limit
        As for :func:`fxdask.rank_features`. With ``numeric_only``, columns without numbers are not selected.
    random_state : int, RandomState or None
        Seed of the noise by which ``mutual_information`` breaks ties.
    verbose : bool, default=False
        Show a progress bar on standard error. Interactive sessions show it for stages of more than 5 s anyway.

    Attributes
    ----------
    scores_ : ndarray of shape (n_features,)
        The largest score of each feature over the classes.
    class_scores_ : ndarray of shape (n_classes, n_features) or (1, n_features)
    pvalues_ : ndarray of shape (n_features,) or None
        As in :class:`fxdask.Ranking`; None if the criterion is no test.
    missing_ : ndarray of shape (n_features,)
        Missing values of each feature, which were left out.
    selected_ : ndarray
        The selected features, best first, or in the order in which ``redundancy`` chose them.
    classes_ : ndarray of shape (n_classes,)
    n_features_in_ : int
    feature_names_in_ : ndarray, only if X had feature names

    Examples
    --------
    >>> import numpy as np
    >>> from fxdask import FilterSelector
    >>> rng = np.random.default_rng(0)
    >>> X, y = rng.standard_normal((300, 5)), np.arange(300) % 2
    >>> X[y == 1, 3] *= 3
    >>> selector = FilterSelector("kolmogorov_smirnov", fdr=0.01).fit(X, y)
    >>> selector.get_support(indices=True), selector.transform(X).shape
    (array([3]), (300, 1))
    """

    def __init__(  # noqa: PLR0913 - scikit-learn sets every parameter by name
        self,
        criterion: str = "extended_fisher",
        k: int | str = 10,
        *,
        percentile: float | None = None,
        threshold: float | None = None,
        fdr: float | None = None,
        fdr_method: str = "bh",
        per_class: bool = False,
        redundancy: str | None = None,
        pool_size: int | str = "auto",
        location: str = "interquartile_mean",
        spread: str = "mad",
        shrink_spread: bool = True,
        priors: str | ArrayLike = "class_share",
        missing: str = "error",
        numeric_only: bool = False,
        n_anchors: int | None = N_ANCHORS,
        n_neighbors: int = N_NEIGHBOURS,
        memory_limit: int | str | None = None,
        random_state: int | np.random.RandomState | None = 0,
        verbose: bool = False,
    ) -> None:
        self.criterion = criterion
        self.k = k
        self.percentile = percentile
        self.threshold = threshold
        self.fdr = fdr
        self.fdr_method = fdr_method
        self.per_class = per_class
        self.redundancy = redundancy
        self.pool_size = pool_size
        self.location = location
        self.spread = spread
        self.shrink_spread = shrink_spread
        self.priors = priors
        self.missing = missing
        self.numeric_only = numeric_only
        self.n_anchors = n_anchors
        self.n_neighbors = n_neighbors
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any) -> Self:
        """Rank the features and select.

        Parameters
        ----------
        X, y : as for :func:`fxdask.rank_features`

        Returns
        -------
        FilterSelector
            The fitted estimator.
        """
        settings = checked_rank_settings({"criteria": (self.criterion,), **self.get_params()})
        self._check_rule()
        checked_limit(self.memory_limit)
        X, y = with_label_column(X, y)
        X = opened(X)
        names, n_columns = _column_names(X)
        options = RankOptions(
            memory_limit=self.memory_limit,
            verbose=self.verbose,
            draws_curves=False,
            redundancy=self._redundancy(),
        )
        with readable_features(numeric_columns(X) if self.numeric_only else X, settings, options) as samples:
            data = TrainingData(samples, *encode_labels(as_labels(y, samples.n_samples), samples.n_samples))
            found = rank(settings, data, options)
        self.classes_ = data.classes
        if names is None and n_columns not in (0, samples.n_features):
            raise InvalidInputError("numeric_only=True needs columns whose names are text; rename the columns of X")
        places = _places(names, samples.names, samples.n_features)
        return self._adopt(found, places, names if names is not None else samples.names)

    def _adopt(self, found: RankedFeatures, places: NDArray[np.intp], names: NDArray | None) -> Self:
        """Take the results of the ranked features, which are at these places among all columns of X."""
        n_features = int(places.max()) + 1 if names is None else len(names)
        chosen = found.chosen if found.chosen is not None else self._chosen(found)
        scores = found.scores[self.criterion]
        self.class_scores_ = spread_out(scores, places, n_features, -np.inf)
        self.scores_ = self.class_scores_.max(axis=0)
        self.pvalues_ = None
        if self.criterion in found.p_values:
            self.pvalues_ = spread_out(found.p_value(self.criterion), places, n_features, 1.0)
        self.missing_ = spread_out(found.missing, places, n_features, 0)
        self.selected_ = places[chosen]
        self.n_features_in_ = n_features
        if names is not None:
            self.feature_names_in_ = np.asarray(names, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_
        return self

    def _chosen(self, found: RankedFeatures) -> NDArray[np.int64]:
        """The selected features by the rule of the parameters, best first."""
        scores = found.scores[self.criterion] if self.per_class else found.score(self.criterion)[None]
        p_values = None
        if self.fdr is not None:
            p_values = found.p_values[self.criterion] if self.per_class else found.p_value(self.criterion)[None]
        selected = np.zeros(scores.shape[1], bool)
        for k, of_class in enumerate(scores):
            selected |= self._good_enough(of_class, None if p_values is None else p_values[k]) & (of_class > -np.inf)
        order = found.order(self.criterion)
        return order[selected[order]]

    def _good_enough(self, scores: NDArray[np.float64], p_values: NDArray[np.float64] | None) -> NDArray[np.bool_]:
        """(feature,) whether a feature's score or p-value is good enough."""
        if p_values is not None:
            return p_values <= false_discovery_threshold(p_values, float(self.fdr or 0), SHORT_RULES[self.fdr_method])
        if self.threshold is not None:
            return scores >= self.threshold
        if self.percentile is not None:
            return ranks_of(scores) <= round(self.percentile / 100 * len(scores))
        return ranks_of(scores) <= (len(scores) if self.k == "all" else int(self.k))

    def _redundancy(self) -> Redundancy | None:
        if self.redundancy is None:
            return None
        return Redundancy(self.redundancy, int(self.k), None if self.pool_size == "auto" else int(self.pool_size))

    def _check_rule(self) -> None:
        """Refuse parameters of the selection that contradict each other, or that the criterion cannot follow."""
        rules = {name: getattr(self, name) for name in ("percentile", "threshold", "fdr")}
        given = [name for name, value in rules.items() if value is not None]
        if len(given) > 1:
            raise InvalidInputError(f"{' and '.join(given)} are given but one rule selects; pass one of them")
        if self.k != "all":
            check_whole_number("k", self.k)
        for name, low, high in (("percentile", 0, 100), ("fdr", 0, 1), ("threshold", -np.inf, np.inf)):
            value = rules[name]
            if value is not None and not (_is_number(value) and low <= float(value) <= high):
                raise InvalidInputError(f"{name} must be a number from {low} to {high}, not {value!r}")
        check_name("fdr_method", self.fdr_method, SHORT_RULES)
        for name in ("per_class", "numeric_only"):
            check_flag(name, getattr(self, name))
        criterion = CRITERIA[self.criterion]
        if self.fdr is not None and criterion.p_values is None:
            tests = ", ".join(repr(name) for name, one in CRITERIA.items() if one.p_values)
            raise InvalidInputError(
                f"fdr needs p-values, which criterion={self.criterion!r} does not have; choose one of {tests}"
            )
        if self.per_class and not criterion.per_class:
            raise InvalidInputError(
                f"per_class=True needs scores of each class, but criterion={self.criterion!r} has one for all; "
                "set per_class=False or choose another criterion"
            )
        self._check_redundancy(given)

    def _check_redundancy(self, given: list[str]) -> None:
        if self.redundancy is None:
            return
        check_name("redundancy", self.redundancy, REDUNDANCIES)
        if given or self.per_class or not isinstance(self.k, Integral):
            wrong = given[0] if given else "per_class" if self.per_class else f"k={self.k!r}"
            raise InvalidInputError(
                f"redundancy={self.redundancy!r} chooses a number of features, so {wrong} cannot be used with it; "
                "set k to that number"
            )
        if self.pool_size != "auto":
            check_whole_number("pool_size", self.pool_size)
            if int(self.pool_size) < int(self.k):
                raise InvalidInputError(
                    f"pool_size is {self.pool_size} but k={self.k} features are to be selected; "
                    f"set pool_size to {self.k} or more"
                )

    def _get_support_mask(self) -> NDArray[np.bool_]:
        check_is_fitted(self)
        support = np.zeros(self.n_features_in_, bool)
        support[self.selected_] = True
        return support

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.allow_nan = self.missing == "omit"
        return tags


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, (bool, np.bool_))


def _column_names(X: Any) -> tuple[NDArray | None, int]:
    """The names of all columns of a table, if all are text, and their number; nothing for other data."""
    if not (is_frame(X) or is_dask_frame(X) or hasattr(X, "column_types")):
        return None, 0
    columns = list(X.names) if hasattr(X, "column_types") else list(X.columns)
    is_named = bool(columns) and all(isinstance(name, str) for name in columns)
    return (np.asarray(columns, dtype=object) if is_named else None), len(columns)


def _places(names: NDArray | None, ranked: NDArray | None, n_columns: int) -> NDArray[np.intp]:
    """Where the ranked features are among all columns."""
    if names is None or ranked is None:
        return np.arange(n_columns)
    places = {name: place for place, name in enumerate(names.tolist())}
    return np.array([places[name] for name in ranked.tolist()], np.intp)
