"""The parameters that a result depends on, and their checks."""

from __future__ import annotations

from collections.abc import Container, Iterable
from dataclasses import dataclass, replace
from numbers import Integral, Real
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.criteria.base import Need
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.density.bandwidth import BANDWIDTHS, BY_COUNT
from fxdask.kernels.network import DensityOptions
from fxdask.kernels.preprocessing import NORMALIZATIONS, FeatureSummary, chosen_normalization
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.scorer import DENSITIES
from fxdask.kernels.statistics import LOCATIONS, SPREADS
from fxdask.planning.pool_plan import pool_size_for

__all__ = [
    "AUTOMATIC",
    "EARLIER_SETTINGS",
    "PRIORS",
    "PROJECTIONS_KEPT",
    "SELECTIONS",
    "FitSettings",
    "check_flag",
    "check_name",
    "check_priors",
    "check_whole_number",
]

AUTOMATIC = "auto"
PRIORS = ("class_share", "equal")
SELECTIONS = ("top", "joint")
"""How nodes are selected: the best of each class, or one set that all classes share."""

POOL_CRITERION = "extended_fisher"
PROJECTIONS_KEPT = ("selected", "all", "table")
# Outside of this range the squared distance in bandwidths overflows float64.
SMALLEST_BANDWIDTH, LARGEST_BANDWIDTH = 1e-100, 1e100
MEASURED_BY_A_FIT = frozenset({Need.LOCATION_AND_SPREAD, Need.MOMENTS, Need.SORTED_COLUMNS, Need.DISTANCES})
# Settings that stores lack which were made before the settings existed, and what those fits did.
EARLIER_SETTINGS = {"selection": "top", "pool_size": "auto", "shrink_spread": False, "projection": "gaussian"}


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """All parameters that a result depends on, and no others."""

    n_nodes: int
    n_selected: int
    criterion: str
    selection: str
    pool_size: int | str
    location: str
    spread: str
    shrink_spread: bool
    bandwidth: str | float
    bandwidth_spread: str
    priors: str | tuple[float, ...]
    combine: str
    density: str
    normalize: str | None
    keep_projections: str
    keep_weights: bool
    seed: int
    projection: str = "gaussian"
    """The projection that was asked for; :func:`fxdask.sizes.projection_in_use` tells which one is used."""

    @property
    def node_criterion(self) -> str:
        """The criterion that ranks all nodes; one that compares rows ranks only the pool that another one leaves."""
        return POOL_CRITERION if Need.ROWS in CRITERIA[self.criterion].needs else self.criterion

    @property
    def scanned_as(self) -> str | None:
        """The normalisation that a scan prepares; "auto" needs the features' deviations, as "feature" does."""
        return "feature" if self.normalize == AUTOMATIC else self.normalize

    def resolved(self, summary: FeatureSummary, quartiles: NDArray[np.float64]) -> FitSettings:
        """The settings with the normalisation that "auto" chooses for samples with this summary and these quartiles."""
        if self.normalize != AUTOMATIC:
            return self
        return replace(self, normalize=chosen_normalization(summary, quartiles))

    @property
    def kept(self) -> tuple[str, ...]:
        """Names of the optional arrays of all nodes that the store keeps."""
        wanted = {"weights": self.keep_weights, "projections": self.keep_projections == "all"}
        return tuple(name for name, is_wanted in wanted.items() if is_wanted)

    @property
    def keeps_tables(self) -> bool:
        """Whether the model keeps tables of its training values instead of the values."""
        return self.keep_projections == "table"

    def why_no_tables(self) -> str:
        """Why tables cannot replace the training values of such a model; empty if they can."""
        if COMBINATIONS[self.combine].needs_normal_scores:
            simple = (repr(name) for name, rule in COMBINATIONS.items() if not rule.needs_normal_scores)
            return f"combine={self.combine!r} needs the ranks of all training values; choose one of {', '.join(simple)}"
        if isinstance(self.bandwidth, str) and self.bandwidth not in BY_COUNT:
            return (
                f"bandwidth={self.bandwidth!r} needs all training values; "
                f"choose one of {', '.join(map(repr, BY_COUNT))} or a number"
            )
        return ""

    def n_ranked(self, n_classes: int) -> int:
        """Nodes of each class that the blocks keep: those to select, or the candidates of a joint selection."""
        if self.selection == "top":
            return self.n_selected
        wanted = pool_size_for(n_classes, self.n_selected) if self.pool_size == "auto" else int(self.pool_size)
        return min(self.n_nodes, wanted)

    @property
    def density_options(self) -> DensityOptions:
        """How the densities of selected nodes are computed and combined."""
        return DensityOptions(
            bandwidth=self.bandwidth,
            bandwidth_spread=self.bandwidth_spread,
            location=self.location,
            spread=self.spread,
            shrink_spread=self.shrink_spread,
            rule=COMBINATIONS[self.combine],
        )

    def check(self) -> None:
        """Refuse values that no fit can use, and name the allowed ones."""
        check_whole_number("n_nodes", self.n_nodes)
        check_whole_number("n_selected", self.n_selected)
        if not (isinstance(self.pool_size, str) and self.pool_size == AUTOMATIC):
            check_whole_number("pool_size", self.pool_size, also='"auto"')
            if self.selection == "joint" and self.pool_size < self.n_selected:  # type: ignore[operator]
                raise InvalidInputError(
                    f"pool_size is {self.pool_size} but {self.n_selected} nodes of each class are to be selected; "
                    f"set pool_size to {self.n_selected} or more"
                )
        for name, known in (
            ("projection", PROJECTIONS),
            ("criterion", CRITERIA),
            ("selection", SELECTIONS),
            ("location", LOCATIONS),
            ("spread", SPREADS),
            ("bandwidth_spread", SPREADS),
            ("combine", COMBINATIONS),
            ("density", DENSITIES),
            ("normalize", (*NORMALIZATIONS, AUTOMATIC)),
            ("keep_projections", PROJECTIONS_KEPT),
        ):
            check_name(name, getattr(self, name), known)
        _check_needs(self.criterion, self.selection)
        _check_bandwidth(self.bandwidth)
        if self.keeps_tables and self.why_no_tables():
            raise InvalidInputError(
                f'keep_projections="table" keeps no training values but {self.why_no_tables()}, '
                'or keep_projections="selected"'
            )
        check_priors(self.priors)
        for name in ("shrink_spread", "keep_weights"):
            check_flag(name, getattr(self, name))
        if not isinstance(self.seed, int) or isinstance(self.seed, bool) or self.seed < 0:
            raise InvalidInputError(f"the seed must be a whole number of at least 0, not {self.seed!r}")


class _Names(Container[Any], Iterable[Any], Protocol):
    """A table or tuple of names."""


def check_whole_number(name: str, value: Any, also: str = "") -> None:
    """Refuse a value that is not a whole number of at least 1."""
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InvalidInputError(f"{name} must be a whole number of at least 1{also and ' or ' + also}, not {value!r}")


def check_flag(name: str, value: Any) -> None:
    """Refuse a value that is neither True nor False."""
    if not isinstance(value, (bool, np.bool_)):
        raise InvalidInputError(f"{name} must be True or False, not {value!r}")


def check_name(name: str, value: Any, known: _Names, also: str = "") -> None:
    """Refuse a value that is not one of the known names."""
    if not (value is None or isinstance(value, str)) or value not in known:
        names = ", ".join(repr(choice) for choice in known)
        raise InvalidInputError(f"{name}={value!r} is not known; choose one of {names}{also and ' or ' + also}")


def _check_needs(criterion: str, selection: str) -> None:
    missing = CRITERIA[criterion].needs - MEASURED_BY_A_FIT
    if Need.ROWS in missing:
        if selection == "joint":
            return
        raise InvalidInputError(
            f"criterion={criterion!r} compares whole rows, so it ranks only the pool of a joint selection, "
            f'but selection={selection!r} has none; pass selection="joint", or choose another criterion'
        )
    if missing:
        names = ", ".join(sorted(need.value for need in missing))
        raise InvalidInputError(
            f"criterion={criterion!r} needs {names}, which a fit does not measure; choose another criterion"
        )


def _check_bandwidth(bandwidth: Any) -> None:
    if not isinstance(bandwidth, Real) or isinstance(bandwidth, bool):
        check_name("bandwidth", bandwidth, BANDWIDTHS, also="a number")
    elif not SMALLEST_BANDWIDTH <= bandwidth <= LARGEST_BANDWIDTH:  # type: ignore[operator]
        raise InvalidInputError(
            f"bandwidth must be above 0, from {SMALLEST_BANDWIDTH} to {LARGEST_BANDWIDTH}, not {bandwidth}"
        )


def check_priors(priors: Any) -> None:
    """Refuse priors that are neither a known name nor one number above 0 per class."""
    if isinstance(priors, str):
        check_name("priors", priors, PRIORS, also="an array")
        return
    try:
        values = np.asarray(priors, dtype=np.float64)
    except (TypeError, ValueError):
        values = np.empty(())
    if values.ndim != 1 or not (np.isfinite(values).all() and (values > 0).all()):
        raise InvalidInputError(f"priors must be one number above 0 per class, not {priors!r}")
