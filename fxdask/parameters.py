"""The classifier's parameters: checked one by one, each refusal with the choices there are."""

from __future__ import annotations

from collections.abc import Container, Iterable
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from sklearn.utils import check_random_state

from fxdask.errors import InvalidInputError
from fxdask.fitted import FitSettings
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.decision import COMBINATIONS, DENSITIES
from fxdask.kernels.density import BANDWIDTHS
from fxdask.kernels.preparation import NORMALIZATIONS
from fxdask.kernels.statistics import LOCATIONS, SPREADS

__all__ = ["checked_settings"]

PRIORS = ("class_share", "equal")
PROJECTIONS_KEPT = ("selected", "all")
# Beyond these the square of a distance in bandwidths leaves float64.
SMALLEST_BANDWIDTH, LARGEST_BANDWIDTH = 1e-100, 1e100
LARGEST_DRAWN_SEED = 2**31 - 1


def checked_settings(estimator: Any, stored_seed: int | None = None) -> FitSettings:
    """The parameters of an estimator that a result depends on, all of them checked.

    Where the seed is left to chance, that of a store begun earlier serves as well as any other.
    """
    _check_whole("n_nodes", estimator.n_nodes)
    _check_whole("n_selected", estimator.n_selected)
    if not (isinstance(estimator.nodes_per_block, str) and estimator.nodes_per_block == "auto"):
        _check_whole("nodes_per_block", estimator.nodes_per_block)
    for name, known in (
        ("criterion", CRITERIA),
        ("location", LOCATIONS),
        ("spread", SPREADS),
        ("bandwidth_spread", (None, *SPREADS)),
        ("combine", COMBINATIONS),
        ("density", DENSITIES),
        ("normalize", NORMALIZATIONS),
        ("keep_projections", PROJECTIONS_KEPT),
    ):
        _check_name(name, getattr(estimator, name), known)
    if estimator.keep_projections == "all" and estimator.store is None:
        raise InvalidInputError('keep_projections="all" needs a store to keep them in; name one with store=')
    if not isinstance(estimator.keep_weights, (bool, np.bool_)):
        raise InvalidInputError(f"keep_weights must be True or False, not {estimator.keep_weights!r}")
    if estimator.keep_weights and estimator.store is None:
        raise InvalidInputError("keep_weights=True needs a store to keep them in; name one with store=")
    return FitSettings(
        int(estimator.n_nodes),
        int(estimator.n_selected),
        estimator.criterion,
        estimator.location,
        estimator.spread,
        _checked_bandwidth(estimator.bandwidth),
        estimator.bandwidth_spread or estimator.spread,
        _checked_priors(estimator.priors),
        estimator.combine,
        estimator.density,
        estimator.normalize,
        estimator.keep_projections,
        bool(estimator.keep_weights),
        _seed_of(estimator.random_state if estimator.random_state is not None else stored_seed),
    )


class _Names(Container[Any], Iterable[Any], Protocol):
    """A table or tuple of names."""


def _check_whole(name: str, value: Any) -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number of at least 1, not {value!r}")


def _check_name(name: str, value: Any, known: _Names, also: str = "") -> None:
    if not (value is None or isinstance(value, str)) or value not in known:
        names = ", ".join(repr(choice) for choice in known)
        raise InvalidInputError(f"{name}={value!r} is not known; choose one of {names}{also and ' or ' + also}")


def _checked_bandwidth(bandwidth: Any) -> str | float:
    if isinstance(bandwidth, Real) and not isinstance(bandwidth, bool):
        if not SMALLEST_BANDWIDTH <= bandwidth <= LARGEST_BANDWIDTH:  # type: ignore[operator]
            raise InvalidInputError(
                f"bandwidth must be above 0, from {SMALLEST_BANDWIDTH} to {LARGEST_BANDWIDTH}, not {bandwidth}"
            )
        return float(bandwidth)
    _check_name("bandwidth", bandwidth, BANDWIDTHS, also="a number")
    return bandwidth


def _checked_priors(priors: Any) -> str | tuple[float, ...]:
    if isinstance(priors, str):
        _check_name("priors", priors, PRIORS, also="an array")
        return priors
    try:
        values = np.asarray(priors, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(())
    if values.ndim != 1 or not (np.isfinite(values).all() and (values > 0).all()):
        raise InvalidInputError(f"priors must be one number above 0 for each class, not {priors!r}")
    return tuple(values.tolist())


def _seed_of(random_state: Any) -> int:
    if isinstance(random_state, Integral):
        if random_state < 0:
            raise InvalidInputError(f"random_state must be 0 or more, not {random_state}")
        return int(random_state)
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(LARGEST_DRAWN_SEED))
    return int(check_random_state(random_state).randint(LARGEST_DRAWN_SEED))
