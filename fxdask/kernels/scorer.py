"""Class scores: samples -> node values -> densities -> scores, whose labels equal those of exact sums."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.density.exact import log_density
from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.network import NetworkParameters
from fxdask.kernels.projection import PackedProjection
from fxdask.kernels.scratch import Scratch
from fxdask.sizes import rows_per_step, scoring_tile

__all__ = ["DENSITIES", "Scored", "Scorer", "class_probabilities", "merge_scored"]

DENSITIES = ("table", "exact")

# Scores are float64 sums of logarithms, so either path rounds each of them by a few units in the last place.
ROUNDING_PER_TERM = 1e-12
ROUNDING_SHARE = 1e-14


@dataclass(frozen=True)
class Scored:
    """(sample, class) ln y, and how often a slower path was used."""

    scores: NDArray[np.float64]
    n_exact: int = 0
    """Number of samples whose two best classes were so close that every kernel was summed."""
    n_summed: int = 0
    """Number of densities at points that no table covers; each is a sum over the nearby samples."""


def merge_scored(parts: Iterable[Scored], n_classes: int) -> Scored:
    """Scores of consecutive ranges of samples -> scores of all samples."""
    parts = list(parts)
    return Scored(
        np.concatenate([np.empty((0, n_classes)), *(part.scores for part in parts)]),
        sum(part.n_exact for part in parts),
        sum(part.n_summed for part in parts),
    )


class Scorer:
    """Class scores of samples from a network's parameters.

    Parameters
    ----------
    parameters : NetworkParameters
    density : {"table", "exact"}
        Look densities up in tables, or sum every kernel; the labels are the same.
    """

    def __init__(self, parameters: NetworkParameters, density: str = "table") -> None:
        if density not in DENSITIES:
            names = ", ".join(repr(choice) for choice in DENSITIES)
            raise InvalidInputError(f"density={density!r} is not known; choose one of {names}")
        self.parameters = parameters
        self.density = density
        self.used_nodes = parameters.used_nodes()
        self.n_used = max(map(len, self.used_nodes))
        """The largest number of nodes that a class uses."""
        self._class_nodes = [parameters.class_nodes(k, used) for k, used in enumerate(self.used_nodes)]
        tile = scoring_tile(len(parameters.weights), parameters.n_features)
        self._projection = PackedProjection(parameters.weights, parameters.preprocessing, tile, shift_products=True)
        self._tables: dict[tuple[int, int], DensityTable] = {}
        self._lookups: dict[int, Lookup] = {}
        self._thread_local = local()

    def __reduce__(self) -> tuple[Any, ...]:
        # Tables are not pickled, because building them again is cheaper than sending them.
        return Scorer, (self.parameters, self.density)

    @property
    def n_features(self) -> int:
        """Number of features of a sample."""
        return self.parameters.n_features

    @property
    def n_classes(self) -> int:
        """Number of classes."""
        return self.parameters.n_classes

    def with_density(self, density: str) -> Scorer:
        """A scorer of the same network with densities from tables or from exact sums; both share the tables."""
        if density == self.density:
            return self
        other = Scorer(self.parameters, density)
        other._tables, other._lookups = self._tables, self._lookups
        return other

    def digest(self) -> str:
        """SHA-256 digest of everything that scores depend on."""
        return self.parameters.digest(self.density)

    def table(self, k: int, u: int) -> DensityTable:
        """The table of one class's density at one node, built on first use."""
        if (k, u) not in self._tables:
            # Two threads may build the same table at once; the tables are equal and cheap, so no lock is needed.
            bandwidth = float(self.parameters.bandwidth[k, u])
            self._tables[k, u] = DensityTable(self.parameters.ascending(k, u), bandwidth)
        return self._tables[k, u]

    def _lookup(self, k: int) -> Lookup:
        """All tables of one class."""
        if k not in self._lookups:
            self._lookups[k] = Lookup([self.table(k, u) for u in self.used_nodes[k]])
        return self._lookups[k]

    def density_error(self) -> NDArray[np.float64]:
        """(class, u) bound on the relative error of each tabulated density; NaN where a class does not use a node."""
        error = np.full(self.parameters.member.shape, np.nan)
        for k, used in enumerate(self.used_nodes):
            for u in used:
                error[k, u] = self.table(k, u).error
        return error

    @property
    def scratch(self) -> Scratch:
        """The buffers of this thread, reused from one range of samples to the next."""
        if not hasattr(self._thread_local, "scratch"):
            self._thread_local.scratch = Scratch()
        return self._thread_local.scratch

    def log_scores(self, samples: NDArray, start: int = 0) -> Scored:
        """(sample, feature) raw samples, index of the first one in its set -> (sample, class) scores.

        Products use tiles anchored at absolute sample indices, so a sample's score does not depend on
        how the set was split.
        """
        per_step = rows_per_step(self.n_features, self.n_used)
        parts = []
        for low in range(0, len(samples), per_step):
            values = self._projection(samples[low : low + per_step], start + low, self.scratch)
            parts.append(self.class_scores(values))
        return merge_scored(parts, self.n_classes)

    def class_scores(self, values: NDArray[np.float32]) -> Scored:
        """(u, sample) node values -> (sample, class) scores by the combination rule.

        With tables, a sample is scored again from all kernels if the errors of the tables and the
        rounding of either path could swap its two best classes. So the class with the largest score
        is always the same as with exact sums.
        """
        if self.density == "exact":
            return Scored(self._exact_scores(values), values.shape[1])
        scores, n_summed = np.empty((values.shape[1], self.n_classes)), 0
        for k, used in enumerate(self.used_nodes):
            terms, summed = self._lookup(k).log_density(values[used], self.scratch)
            scores[:, k] = self._combined(k, terms)
            n_summed += summed
        uncertain = np.flatnonzero(~self._is_certain(scores))
        if len(uncertain):
            scores[uncertain] = self._exact_scores(values[:, uncertain])
        return Scored(scores, len(uncertain), n_summed)

    def _exact_scores(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """(u, sample) node values -> (sample, class) ln y from all kernels."""
        parameters = self.parameters
        scores = np.empty((values.shape[1], self.n_classes))
        for k, used in enumerate(self.used_nodes):
            terms = np.empty((len(used), values.shape[1]))
            for term, u in zip(terms, used, strict=True):
                term[...] = log_density(values[u], parameters.ascending(k, u), float(parameters.bandwidth[k, u]))
            scores[:, k] = self._combined(k, terms)
        return scores

    def _combined(self, k: int, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """(used node, sample) log densities of one class, overwritten -> (sample,) ln y."""
        return self.parameters.rule.join(terms, self._class_nodes[k]) + self.parameters.log_priors[k]

    def _is_certain(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(sample, class) scores from tables -> (sample,) whether the best class is surely that of the exact scores."""
        rule = self.parameters.rule
        best, second = _two_largest(scores)
        errors = [[self.table(k, u).error for u in used] for k, used in enumerate(self.used_nodes)]
        worst = max(map(rule.error_bound, errors))
        share = ROUNDING_SHARE * rule.rounding_growth(self.n_used)
        rounding = ROUNDING_PER_TERM * self.n_used + share * (np.abs(best) + np.abs(second))
        return best - second > 2 * (worst + rounding)


def _two_largest(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sample, class) scores -> (sample,) the largest and the second largest."""
    if scores.shape[1] == 2:
        first, second = scores.T  # NumPy's reductions along such a short axis take much longer
        return np.maximum(first, second), np.minimum(first, second)
    ordered = np.partition(scores, (-2, -1), axis=1)
    return ordered[:, -1], ordered[:, -2]


def class_probabilities(log_scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample, class) ln y -> (sample, class) softmax."""
    shifted = np.exp(log_scores - log_scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
