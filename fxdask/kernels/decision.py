"""A fitted network in memory: samples -> node values -> densities -> class scores -> labels."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, fields
from threading import local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.density import log_density
from fxdask.kernels.lookup import Lookup
from fxdask.kernels.preparation import Preparation
from fxdask.kernels.projection import pad_rows
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.table import DensityTable
from fxdask.score_plan import padded_rows, rows_per_step, rows_per_tile

__all__ = ["COMBINATIONS", "DENSITIES", "FittedNetwork", "Scored", "class_probabilities", "merge_scored"]

COMBINATIONS = ("sum", "scaled", "log")
DENSITIES = ("table", "exact")

# Scores are float64 sums of logarithms: a few units in the last place of each, whichever way they came about.
ROUNDING_PER_TERM = 1e-12
ROUNDING_SHARE = 1e-14


@dataclass(frozen=True)
class Scored:
    """(sample, class) ln y, and the slow ways that were needed."""

    scores: NDArray[np.float64]
    n_exact: int = 0
    """Samples whose best classes were so close that every kernel was summed."""
    n_summed: int = 0
    """Densities at a place that no table covers, summed over the samples that count there."""


def merge_scored(parts: Iterable[Scored], n_classes: int) -> Scored:
    """Scores of consecutive samples -> those of all of them."""
    parts = list(parts)
    return Scored(
        np.concatenate([np.empty((0, n_classes)), *(part.scores for part in parts)]),
        sum(part.n_exact for part in parts),
        sum(part.n_summed for part in parts),
    )


@dataclass
class FittedNetwork:
    """What labelling needs, and no more: the selected rows, their training values, bandwidths and priors.

    ``u`` counts the union of all classes' selected nodes; ``member[k, u]`` says whether node u
    was selected for class k.
    """

    preparation: Preparation
    nodes: NDArray[np.int64]  # (u,)
    weights: NDArray[np.float32]  # (u, input)
    projections: NDArray[np.float32]  # (u, sample), sorted by class, ascending within it
    class_slices: list[slice]
    bandwidth: NDArray[np.float64]  # (class, u)
    spread: NDArray[np.float64]  # (class, u)
    member: NDArray[np.bool_]  # (class, u)
    log_priors: NDArray[np.float64]  # (class,)
    combine: str = "sum"
    density: str = "table"

    def __post_init__(self) -> None:
        self._tables: dict[tuple[int, int], DensityTable] = {}
        self._lookups: dict[int, Lookup] = {}
        self._threads = local()
        self._padded = pad_rows(self.weights, padded_rows(len(self.weights)))
        self._shift_product: NDArray[np.float32] | None = None
        if self.preparation.is_small_shift:
            # The shift may be taken off the product instead of every sample, which would cost a copy of all.
            shifts = self._padded.astype(np.float64) @ self.preparation.shift
            self._shift_product = shifts.astype(np.float32)[:, None]

    def __getstate__(self) -> dict[str, Any]:
        # Tables travel no further than this process: making them again is cheaper than sending them.
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def n_inputs(self) -> int:
        """Inputs of a sample."""
        return self.weights.shape[1]

    @property
    def n_classes(self) -> int:
        """Classes to choose from."""
        return len(self.log_priors)

    @property
    def n_used(self) -> int:
        """Nodes of the class that uses the most."""
        return max(len(self.used(k)) for k in range(self.n_classes))

    def with_density(self, density: str) -> FittedNetwork:
        """The same network, its tables shared, that looks densities up ("table") or sums every kernel ("exact")."""
        if density not in DENSITIES:
            names = ", ".join(repr(choice) for choice in DENSITIES)
            raise InvalidInputError(f"density={density!r} is not known; choose one of {names}")
        if density == self.density:
            return self
        other = copy.copy(self)
        other.density, other._tables, other._lookups = density, self._tables, self._lookups
        return other

    def digest(self) -> str:
        """Digest of everything that scores depend on."""
        found = hashlib.sha256(f"{self.combine} {self.density} {self.class_slices}".encode())
        prepared = self.preparation
        found.update(f"{prepared.normalize} {prepared.shift.dtype} {prepared.largest}".encode())
        arrays = (prepared.shift, prepared.scale, self.weights, self.projections, self.bandwidth, self.spread)
        for array in (*arrays, self.member, self.log_priors):
            if array is not None:
                found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()

    def used(self, k: int) -> list[int]:
        """The nodes whose densities make up the score of this class."""
        return list(range(len(self.nodes))) if self.combine == "log" else np.flatnonzero(self.member[k]).tolist()

    def table(self, k: int, u: int) -> DensityTable:
        """The density of one class at one node, tabulated when it is first asked for."""
        if (k, u) not in self._tables:
            # Two threads may make the same one: it comes out the same, and costs little.
            self._tables[k, u] = DensityTable(self._ascending(k, u), float(self.bandwidth[k, u]))
        return self._tables[k, u]

    def _lookup(self, k: int) -> Lookup:
        """All tables of one class."""
        if k not in self._lookups:
            self._lookups[k] = Lookup([self.table(k, u) for u in self.used(k)])
        return self._lookups[k]

    def density_error(self) -> NDArray[np.float64]:
        """(class, u) bound on the relative error of each tabulated density; NaN where a class does not use a node."""
        error = np.full(self.member.shape, np.nan)
        for k in range(self.n_classes):
            for u in self.used(k):
                error[k, u] = self.table(k, u).error
        return error

    def log_scores(self, samples: NDArray, start: int = 0) -> Scored:
        """(sample, input) raw samples, the first of them number ``start`` of its set -> their scores.

        Products run on tiles at fixed places of the whole set, so that a sample's score does not
        depend on how the set was cut.
        """
        per_step = rows_per_step(self.n_inputs, self.n_used)
        parts = []
        for low in range(0, len(samples), per_step):
            values = self._values(samples[low : low + per_step], start + low)
            parts.append(self.class_scores(values))
        return merge_scored(parts, self.n_classes)

    def _values(self, samples: NDArray, start: int) -> NDArray[np.float32]:
        """(sample, input) raw samples -> (u, sample) node values."""
        scratch, per_tile, stop = self.scratch, rows_per_tile(self.n_inputs), start + len(samples)
        values = scratch("values", (len(self.nodes), len(samples)))
        product = scratch("product", (len(self._padded), per_tile))
        for anchor in range(start - start % per_tile, stop, per_tile):
            low, high = max(anchor, start), min(anchor + per_tile, stop)
            self._multiply(samples[low - start : high - start], low, low - anchor, product)
            values[:, low - start : high - start] = product[: len(self.nodes), low - anchor : high - anchor]
        return values

    def _multiply(self, samples: NDArray, start: int, place: int, product: NDArray[np.float32]) -> None:
        """(sample, input) raw samples, the first one's number and place in its tile -> (padded u, tile) node values."""
        per_tile, inside = product.shape[1], slice(place, place + len(samples))
        prepared = self.scratch("prepared", (per_tile, self.n_inputs))
        prepared[: inside.start], prepared[inside.stop :] = 0, 0
        with np.errstate(over="ignore", invalid="ignore"):
            if self._shift_product is None:
                self.preparation(samples, prepared[inside])
                np.matmul(self._padded, prepared.T, out=product)
            else:
                whole = samples
                if samples.dtype != np.float32 or len(samples) < per_tile or not samples.flags.c_contiguous:
                    whole = prepared
                    prepared[inside] = samples
                np.matmul(self._padded, whole.T, out=product)
                product -= self._shift_product
            is_finite = np.isfinite(product.sum())
        if not is_finite:
            # Not a number, or a sample too far out for float32: those are looked at one by one.
            self.preparation.of_new(samples, prepared[inside], start)
            wrong = ~np.isfinite(product).all(axis=0)
            product[:, wrong] = (self._padded @ prepared.T)[:, wrong]

    @property
    def scratch(self) -> Scratch:
        """Room for this thread's arrays, from one range of samples to the next."""
        if not hasattr(self._threads, "scratch"):
            self._threads.scratch = Scratch()
        return self._threads.scratch

    def class_scores(self, values: NDArray[np.float32]) -> Scored:
        """(u, sample) node values -> their scores by the combination rule.

        ``sum``: the sum of f over the class's nodes; ``scaled``: each f times its node's spread;
        ``log``: the sum of ln f over all classes' nodes.

        With tables, a sample whose two best classes are closer than the tables' errors and the
        rounding of either way could reverse is scored again from all kernels: the class with the
        largest score is always that of the exact sums.
        """
        if self.density == "exact":
            return Scored(self._exact_scores(values), values.shape[1])
        scores, n_summed = np.empty((values.shape[1], self.n_classes)), 0
        for k in range(self.n_classes):
            terms, summed = self._lookup(k).log_density(values[self.used(k)], self.scratch)
            scores[:, k] = self._joined(k, terms)
            n_summed += summed
        doubtful = np.flatnonzero(~self._is_certain(scores))
        if len(doubtful):
            scores[doubtful] = self._exact_scores(values[:, doubtful])
        return Scored(scores, len(doubtful), n_summed)

    def _exact_scores(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """(u, sample) node values -> (sample, class) ln y from all kernels."""
        scores = np.empty((values.shape[1], self.n_classes))
        for k in range(self.n_classes):
            terms = np.empty((len(self.used(k)), values.shape[1]))
            for term, u in zip(terms, self.used(k), strict=True):
                term[...] = log_density(values[u], self._ascending(k, u), float(self.bandwidth[k, u]))
            scores[:, k] = self._joined(k, terms)
        return scores

    def _joined(self, k: int, terms: NDArray[np.float64]) -> NDArray[np.float64]:
        """(used node, sample) log densities of one class, which are spent -> (sample,) ln y.

        Rows are added one after the other: a sum along the first axis would be rounded otherwise for one sample alone.
        """
        if self.combine == "log":
            return sum(terms, np.zeros(terms.shape[1])) + self.log_priors[k]
        if self.combine == "scaled":
            # A class that is constant at a node is as wide as its bandwidth.
            width = np.where(self.spread[k] > 0, self.spread[k], self.bandwidth[k])
            terms += np.log(width[self.used(k)])[:, None]
        top = terms.max(axis=0)
        terms -= top
        total = sum(np.exp(terms, out=terms), np.zeros_like(top))
        return np.log(total, out=total) + top + self.log_priors[k]

    def _is_certain(self, scores: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(sample, class) scores from tables -> whether the largest is the largest of the exact scores too."""
        best, second = _two_largest(scores)
        errors = [[self.table(k, u).error for u in self.used(k)] for k in range(self.n_classes)]
        # A sum of densities is off by no larger a share than the worst of them; a sum of logarithms adds up.
        worst = max(sum(row) if self.combine == "log" else max(row) for row in errors)
        n_terms = max(map(len, errors))
        share = ROUNDING_SHARE * (n_terms if self.combine == "log" else 1)
        rounding = ROUNDING_PER_TERM * n_terms + share * (np.abs(best) + np.abs(second))
        return best - second > 2 * (worst + rounding)

    def _ascending(self, k: int, u: int) -> NDArray[np.float32]:
        return self.projections[u, self.class_slices[k]]


def _two_largest(scores: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(sample, class) scores -> (sample,) the largest and the second largest."""
    if scores.shape[1] == 2:
        first, second = scores.T  # NumPy's own maximum along so short an axis takes much longer
        return np.maximum(first, second), np.minimum(first, second)
    ordered = np.partition(scores, (-2, -1), axis=1)
    return ordered[:, -1], ordered[:, -2]


def class_probabilities(log_scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample, class) ln y -> (sample, class) softmax."""
    shifted = np.exp(log_scores - log_scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
