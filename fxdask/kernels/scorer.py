"""Class scores: samples -> node values -> densities -> scores, whose labels equal those of exact sums."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from threading import Lock, local
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.combination.base import MarginalErrors, Marginals
from fxdask.kernels.density.exact import log_density
from fxdask.kernels.density.lookup import Lookup
from fxdask.kernels.density.mixed import mixed_log_density, normal_scores
from fxdask.kernels.density.table import DensityTable
from fxdask.kernels.network import NetworkParameters
from fxdask.kernels.projection import PackedProjection
from fxdask.kernels.recent import RecentValues
from fxdask.kernels.scratch import Scratch
from fxdask.sizes import MIB, rows_per_step, scoring_tile

__all__ = [
    "DENSITIES",
    "TABLES_AT_A_TIME",
    "Scored",
    "Scorer",
    "class_probabilities",
    "forget_received",
    "log_likelihood",
    "merge_scored",
]

DENSITIES = ("table", "exact")
TABLES_AT_A_TIME = 16
BYTES_OF_RECEIVED_SCORERS = 256 * MIB

# Scores are float64 sums of logarithms, so either path rounds each of them by a few units in the last place.
ROUNDING_PER_TERM = 1e-12
ROUNDING_SHARE = 1e-14


@dataclass(frozen=True)
class _ClassLookup:
    """The tables of one class, and bounds on their errors."""

    tables: Lookup
    errors: MarginalErrors
    nodes: NDArray[np.intp]
    """(used node,) indices u"""


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
        self._lookups: dict[int, _ClassLookup] = {}
        self._building = Lock()
        self._thread_local = local()
        self._key: str | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Tables are not pickled, because they are much larger than the rest. A process that receives the
        # same scorer again, with the next task or the next call, uses the tables that it has.
        return _received, (self.key(), self.parameters, self.density)

    def key(self) -> str:
        """Digest of all parameters, computed once: scorers with the same key can replace each other."""
        if self._key is None:
            found = hashlib.sha256(self.digest().encode())
            for array in (self.parameters.nodes, self.parameters.location):
                found.update(np.ascontiguousarray(array).data)
            self._key = found.hexdigest()
        return self._key

    @property
    def n_bytes(self) -> int:
        """Bytes of the training values, and of the tables that are built."""
        # A copy, because other threads may add tables meanwhile.
        tables = sum(table.n_bytes for table in tuple(self._tables.values()))
        sums = sum(density.n_bytes for density in self.parameters.tables.values())
        return self.parameters.projections.nbytes + self.parameters.weights.nbytes + sums + tables

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
        other._tables, other._lookups, other._building = self._tables, self._lookups, self._building
        return other

    def digest(self) -> str:
        """SHA-256 digest of everything that scores depend on."""
        return self.parameters.digest(self.density)

    def tabulate(self, k: int, nodes: Sequence[int]) -> None:
        """Build the tables of one class's densities at these nodes together, those that are not built yet."""
        parameters, missing = self.parameters, [u for u in nodes if (k, u) not in self._tables]
        densities = [parameters.density(k, u) for u in missing]
        self._tables.update(zip(((k, u) for u in missing), DensityTable.many(densities), strict=True))

    def table(self, k: int, u: int) -> DensityTable:
        """The table of one class's density at one node, built on first use."""
        if (k, u) not in self._tables:
            # Two threads may build the same table at once; the tables are equal and cheap, so no lock is needed.
            self.tabulate(k, [u])
        return self._tables[k, u]

    def _lookup(self, k: int) -> _ClassLookup:
        """All tables of one class, and bounds on their errors."""
        if k not in self._lookups:
            with self._building:  # the first thread builds the tables while the others wait
                if k not in self._lookups:
                    self._lookups[k] = self._new_lookup(k)
        return self._lookups[k]

    def _new_lookup(self, k: int) -> _ClassLookup:
        used = self.used_nodes[k]
        for first in range(0, len(used), TABLES_AT_A_TIME):
            self.tabulate(k, used[first : first + TABLES_AT_A_TIME])
        tables = [self.table(k, u) for u in used]
        errors = MarginalErrors(*(np.array([getattr(t, name) for t in tables]) for name in ("error", "score_error")))
        return _ClassLookup(Lookup(tables), errors, np.array(used))

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
        return merge_scored(self.score_steps([samples], len(samples), start), self.n_classes)

    def score_steps(self, pieces: Iterable[NDArray], n_samples: int, start: int = 0) -> Iterator[Scored]:
        """Consecutive pieces of raw samples -> the scores of consecutive steps, which need not end where pieces do.

        ``n_samples`` are those of all pieces. Tables are read from memory in every step, so a step should
        have many samples even if the pieces are small.
        """
        left, filled = n_samples, 0
        values = self._step_values(left)
        for piece in pieces:
            done = 0
            while done < len(piece):
                rows = piece[done : done + values.shape[1] - filled]
                stop = filled + len(rows)
                self._projection(rows, start + filled, self.scratch, out=values[:, filled:stop])
                done, filled = done + len(rows), stop
                if filled == values.shape[1]:
                    yield self.class_scores(values, start)
                    start, left, filled = start + filled, left - filled, 0
                    values = self._step_values(left)

    def _step_values(self, n_samples: int) -> NDArray[np.float32]:
        """(u, sample) array for the node values of the next step, if so many samples are left."""
        per_step = rows_per_step(self.n_features, self.n_used)
        return self.scratch("step values", (len(self.parameters.weights), min(n_samples, per_step)))

    def class_scores(self, values: NDArray[np.float32], start: int = 0) -> Scored:
        """(u, sample) node values, index of the first sample -> (sample, class) scores by the combination rule.

        With tables, a sample is scored again from all kernels if the errors of the tables and the
        rounding of either path could change its best class, for the classes that could be the best. So
        the class with the largest score is always the same as with exact sums.
        """
        if self.density == "exact":
            return Scored(self._exact_scores(values), values.shape[1])
        shape = (self.n_classes, values.shape[1])
        scores, errors, n_summed = np.empty(shape), np.empty(shape), 0
        for k in range(self.n_classes):
            lookup = self._lookup(k)
            find = lookup.tables.totals if self.parameters.rule.adds_log_densities else lookup.tables
            found = find(values, self.scratch, lookup.nodes)
            marginals = Marginals(found.logs, found.scores, start)
            joined = self.parameters.rule.join(marginals, self._class_nodes[k], lookup.errors)
            np.add(joined.score, self.parameters.log_priors[k], out=scores[k])
            errors[k] = joined.error
            n_summed += found.n_summed
        # Tables that keep no samples do not know densities in wide gaps between these.
        unknown = np.isnan(scores)
        scores[unknown], errors[unknown] = 0, np.inf
        may_win = self._may_win(scores, errors)
        is_open = may_win.sum(axis=0) != 1
        if self.parameters.tables:
            some = np.flatnonzero(is_open)
            if len(some):
                scores[:, some] = self._reread_scores(values[:, some]).T
            may_win[:] = False
        for k in np.flatnonzero((may_win & is_open).any(axis=1)).tolist():
            some = np.flatnonzero(may_win[k] & is_open)
            scores[k, some] = self._exact_class_scores(values[:, some], k)
        return Scored(np.ascontiguousarray(scores.T), int(is_open.sum()), n_summed)

    def held_out_scores(self, values: NDArray[np.float32], codes: NDArray[np.intp]) -> NDArray[np.float64]:
        """(u, sample) values of training samples, (sample,) classes -> scores as if each were left out of its class."""
        scores = np.empty((values.shape[1], self.n_classes))
        for k in range(self.n_classes):
            nodes, count = self._class_nodes[k], self.parameters.class_counts[k]
            own, lookup = codes == k, self._lookup(k)
            for chosen in (own, ~own):
                of_chosen = lookup.tables(values[:, chosen], self.scratch, lookup.nodes)
                marginals = Marginals(of_chosen.logs, of_chosen.scores, 0)
                if chosen is own:
                    found = self.parameters.rule.join_held_out(marginals, nodes, count)
                else:
                    found = self.parameters.rule.join(marginals, nodes).score
                scores[chosen, k] = found + self.parameters.log_priors[k]
        return scores

    def _exact_scores(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """(u, sample) node values -> (sample, class) ln y from all kernels."""
        if self.parameters.tables:
            return self._reread_scores(values)
        scores = np.empty((values.shape[1], self.n_classes))
        for k in range(self.n_classes):
            scores[:, k] = self._exact_class_scores(values, k)
        return scores

    def _reread_scores(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """(u, sample) node values -> (sample, class) ln y from all kernels, whose samples are read again."""
        parameters = self.parameters
        if parameters.reread is None:
            raise InvalidInputError(
                f"{values.shape[1]} samples are so near the border of two classes, or in such wide gaps between "
                "training samples, that tables cannot label them, and the training samples cannot be read again; "
                'fit with keep_projections="selected", or from samples at a path'
            )
        found = parameters.reread(values, self.used_nodes, parameters.bandwidth)
        scores = np.empty((values.shape[1], self.n_classes))
        for k, logs in enumerate(found):
            scores[:, k] = parameters.rule.join(Marginals(logs), self._class_nodes[k]).score + parameters.log_priors[k]
        return scores

    def _exact_class_scores(self, values: NDArray[np.float32], k: int) -> NDArray[np.float64]:
        """(u, sample) node values -> (sample,) ln y of one class from all kernels."""
        joined = self.parameters.rule.join(self._exact_marginals(values, k), self._class_nodes[k])
        return joined.score + self.parameters.log_priors[k]

    def _exact_marginals(self, values: NDArray[np.float32], k: int) -> Marginals:
        """(u, sample) node values -> one class's log densities at the nodes it uses, and normal scores if wanted."""
        parameters, used = self.parameters, self.used_nodes[k]
        shape = (len(used), values.shape[1])
        terms = np.empty(shape)
        normal = np.empty(shape) if parameters.rule.needs_normal_scores else None
        for index, u in enumerate(used):
            ascending, bandwidth = parameters.ascending(k, u), float(parameters.bandwidth[k, u])
            wide = parameters.wide_normal(k, u)
            if normal is None or wide is None:
                terms[index] = log_density(values[u], ascending, bandwidth)
            else:
                terms[index] = mixed_log_density(values[u], ascending, bandwidth, wide)
                normal[index] = normal_scores(values[u], ascending, bandwidth, wide)
        return Marginals(terms, normal)

    def _may_win(self, scores: NDArray[np.float64], errors: NDArray[np.float64]) -> NDArray[np.bool_]:
        """(class, sample) scores from tables, their errors -> (class, sample) whether the exact score may be the best.

        It may not if it stays below the lowest value that the best score of a table stands for. Either
        path is rounded, so all bounds count twice. Errors are overwritten.
        """
        share = ROUNDING_SHARE * self.parameters.rule.rounding_growth(self.n_used)
        errors += share * np.abs(scores)
        errors += ROUNDING_PER_TERM * self.n_used
        errors *= 2
        lowest_of_best = (scores - errors).max(axis=0)
        errors += scores
        return errors >= lowest_of_best


_received_scorers = RecentValues[Scorer](lambda scorer: scorer.n_bytes, BYTES_OF_RECEIVED_SCORERS)


def _received(key: str, parameters: NetworkParameters, density: str) -> Scorer:
    """Unpickle a scorer: the one that this process received before, with its tables, or a new one."""

    def new() -> Scorer:
        scorer = Scorer(parameters, density)
        scorer._key = key
        return scorer

    return _received_scorers.get(key, new)


def forget_received() -> None:
    """Free the memory of received scorers that nothing uses now."""
    _received_scorers.clear()


def class_probabilities(log_scores: NDArray[np.float64], temperature: float = 1.0) -> NDArray[np.float64]:
    """(sample, class) ln y -> (sample, class) softmax of ln y / T."""
    shifted = np.exp((log_scores - log_scores.max(axis=1, keepdims=True)) / temperature)
    return shifted / shifted.sum(axis=1, keepdims=True)


def log_likelihood(log_scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample, class) ln y -> (sample,) ln sum_k y_k."""
    top = log_scores.max(axis=1)
    shares = log_scores - top[:, None]
    return top + np.log(np.exp(shares, out=shares).sum(axis=1))
