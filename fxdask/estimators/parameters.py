"""Turn the parameters of the classifier, and of a ranking, into checked settings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from fxdask.errors import InvalidInputError
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.workflows.rank_settings import RankSettings
from fxdask.workflows.settings import FitSettings, check_whole_number

__all__ = ["PAPER", "checked_rank_settings", "checked_settings"]

LARGEST_DRAWN_SEED = 2**31 - 1

# Every parameter that a result depends on, so that new defaults of the classifier do not change it.
PAPER: dict[str, Any] = {
    "n_nodes": 10_000,
    "n_selected": 10,
    "projection": "gaussian",
    "criterion": "extended_fisher",
    "selection": "top",
    "pool_size": "auto",
    "location": "interquartile_mean",
    "spread": "mad",
    "shrink_spread": False,
    "bandwidth": "silverman",
    "bandwidth_spread": None,
    "priors": "equal",
    "combine": "sum",
    "density": "table",
    "normalize": "sample",
    "random_state": 0,
}


def checked_settings(estimator: Any, stored_seed: int | None = None) -> FitSettings:
    """The checked settings of an estimator: all parameters that a result depends on.

    If ``random_state`` is None, an existing store's seed is used again, so that the store can be resumed.
    """
    nodes_per_block = estimator.nodes_per_block
    if not (isinstance(nodes_per_block, str) and nodes_per_block == "auto"):
        check_whole_number("nodes_per_block", nodes_per_block, also='"auto"')
    random_state = estimator.random_state if estimator.random_state is not None else stored_seed
    settings = FitSettings(
        n_nodes=_plain(estimator.n_nodes),
        n_selected=_plain(estimator.n_selected),
        criterion=estimator.criterion,
        selection=estimator.selection,
        pool_size=_plain(estimator.pool_size),
        location=estimator.location,
        spread=estimator.spread,
        shrink_spread=_plain(estimator.shrink_spread),
        bandwidth=_plain_bandwidth(estimator.bandwidth),
        bandwidth_spread=estimator.spread if estimator.bandwidth_spread is None else estimator.bandwidth_spread,
        priors=_plain_priors(estimator.priors),
        combine=estimator.combine,
        density=estimator.density,
        normalize=estimator.normalize,
        keep_projections=estimator.keep_projections,
        keep_weights=_plain(estimator.keep_weights),
        seed=_seed_of(random_state),
        projection=estimator.projection,
    )
    settings.check()
    if settings.kept and estimator.store is None:
        asked = 'keep_projections="all"' if "projections" in settings.kept else "keep_weights=True"
        raise InvalidInputError(f"{asked} needs a store; pass a path with store=")
    return settings


def checked_rank_settings(parameters: Mapping[str, Any], stored_seed: int | None = None) -> RankSettings:
    """The checked settings of a ranking from the parameters of ``rank_features``; others are ignored.

    If ``random_state`` is None, an existing store's seed is used again, so that the store can be resumed.
    """
    random_state = parameters["random_state"] if parameters["random_state"] is not None else stored_seed
    settings = RankSettings(
        criteria=_names_of(parameters["criteria"]),
        location=parameters["location"],
        spread=parameters["spread"],
        shrink_spread=_plain(parameters["shrink_spread"]),
        priors=_plain_priors(parameters["priors"]),
        missing=parameters["missing"],
        n_anchors=_plain(parameters["n_anchors"]),
        n_neighbors=_plain(parameters["n_neighbors"]),
        seed=_seed_of(random_state),
    )
    settings.check()
    return settings


def _names_of(criteria: Any) -> tuple[str, ...]:
    """Each name once; a single name is a list of one."""
    if isinstance(criteria, str):
        return (criteria,)
    if not isinstance(criteria, Iterable):
        raise InvalidInputError(f"criteria must be a list of names, not {criteria!r}; see fxdask.CRITERIA")
    names = list(criteria)
    other = [name for name in names if not isinstance(name, str)]
    if other:
        raise InvalidInputError(f"criterion={other[0]!r} is not known; choose one of {', '.join(map(repr, CRITERIA))}")
    return tuple(dict.fromkeys(names))


def _plain(value: Any) -> Any:
    """NumPy's integers and booleans as Python's, which JSON can hold; other values unchanged."""
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    return int(value) if isinstance(value, Integral) else value


def _plain_bandwidth(bandwidth: Any) -> Any:
    """A number as float; a string or a number too large for float unchanged, because the checks come later."""
    if not isinstance(bandwidth, Real) or isinstance(bandwidth, bool):
        return bandwidth
    try:
        return float(bandwidth)
    except OverflowError:
        return bandwidth


def _plain_priors(priors: Any) -> Any:
    """Numeric priors as a tuple of floats; other values unchanged, because the checks come later."""
    if isinstance(priors, str):
        return priors
    try:
        return tuple(np.asarray(priors, dtype=np.float64).tolist())
    except (TypeError, ValueError):
        return priors


def _seed_of(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        if random_state < 0:
            raise InvalidInputError(f"random_state must be 0 or more, not {random_state}")
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(LARGEST_DRAWN_SEED))
    return int(check_random_state(random_state).randint(LARGEST_DRAWN_SEED))
