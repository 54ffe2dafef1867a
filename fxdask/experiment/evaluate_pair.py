"""The task of one pair of classes: project the selected nodes, and label the test samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fxdask.experiment.variants import PAPERS_VARIANTS, Variant
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.copula import rank_scores, score_sums, shrunk_correlation
from fxdask.kernels.density.exact import log_density
from fxdask.kernels.joint_selection import Pool, select_jointly
from fxdask.kernels.network import DensityOptions, SelectedNodes, assemble
from fxdask.kernels.scorer import Scorer
from fxdask.store.sources import Source
from fxdask.tasks.fit import project_rows
from fxdask.tasks.job import FitJob, tolerance_at, weights_of
from fxdask.tasks.telemetry import peak_bytes, this_process
from fxdask.tasks.threads import one_blas_thread

__all__ = [
    "NodeDensities",
    "PairJob",
    "PairPool",
    "PairResult",
    "PairSelection",
    "SortedSamples",
    "evaluate_pair",
    "node_densities",
]

CURVE_POINTS = 400


@dataclass(frozen=True)
class SortedSamples:
    """Samples at an address, sorted by class, and the row range (start, stop) of each class."""

    samples: Source
    rows: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PairJob:
    """Everything that the pairs of one seed share; a graph holds it once."""

    fit: FitJob
    train: SortedSamples
    test: SortedSamples
    options: DensityOptions
    """How densities are computed; each variant has its own rule instead of the rule here."""
    priors: NDArray[np.float64]
    """(2,) priors of the two classes."""
    variants: tuple[Variant, ...] = PAPERS_VARIANTS


@dataclass(frozen=True)
class PairPool:
    """The candidates of a pair's joint selection, with the second class shifted."""

    nodes: NDArray[np.int64]
    """(candidate,) in ascending order."""
    location: NDArray[np.float64]
    """(class of the pair, candidate)"""
    spread: NDArray[np.float64]
    """(class of the pair, candidate), at least the tolerance."""
    shift: NDArray[np.float64]
    """(candidate,)"""


@dataclass(frozen=True, kw_only=True)
class PairSelection:
    """The nodes that each criterion selected for a pair, and the shift of the second class at each of them."""

    codes: tuple[int, int]
    """Indices of the pair's classes among all classes."""
    chosen: Mapping[str, NDArray[np.int64]]
    """By criterion, (class of the pair, rank) nodes, or (1, rank) nodes that both classes share."""
    nodes: NDArray[np.int64]
    """(u,) all selected nodes in ascending order."""
    shift: NDArray[np.float64]
    """(u,) offset that is added to every value of the second class, training and test."""
    pool: PairPool | None = None
    """The candidates of the joint selection, if a variant has one."""


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """Number of correctly labelled test samples of a pair by variant, and counters of the process."""

    correct: dict[str, int]
    tested: int
    fallbacks: int
    """Number of bandwidths of selected nodes that used a fallback."""
    process: str
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class NodeDensities:
    """Both classes' densities along one node's values, and the values of the test samples."""

    node: int
    of_class: int
    """Index (0 or 1) of the class that selected the node."""
    values: NDArray[np.float64]
    """(point,)"""
    densities: NDArray[np.float64]
    """(class, point)"""
    tested: list[NDArray[np.float32]]
    """By class, the test samples' values."""


@one_blas_thread()
def evaluate_pair(job: PairJob, choice: PairSelection) -> PairResult:
    """Label the pair's test samples with the network of each variant."""
    correct, fallbacks = _count_correct(job, choice, "top")
    if choice.pool is not None:
        # These nodes are projected on their own, so that they cannot change the last bits of the others' values.
        of_joint, n_fallbacks = _count_correct(job, _selected_jointly(job, choice.codes, choice.pool), "joint")
        correct, fallbacks = correct | of_joint, fallbacks + n_fallbacks
    tested = sum(stop - start for start, stop in (job.test.rows[k] for k in choice.codes))
    return PairResult(
        correct={variant.name: correct[variant.name] for variant in job.variants},
        tested=tested,
        fallbacks=fallbacks,
        process=this_process(),
        peak_bytes=peak_bytes(),
    )


def _count_correct(job: PairJob, choice: PairSelection, selection: str) -> tuple[dict[str, int], int]:
    """The correct labels of each variant with this selection, and the number of fallbacks of all selected nodes."""
    weights = weights_of(job.fit, choice.nodes)
    trained = _shifted_values(job.fit, job.train, choice, weights)
    tested = _shifted_values(job.fit, job.test, choice, weights)
    correct: dict[str, int] = {}
    fallbacks: dict[str, int] = {}  # by criterion, because the bandwidths do not depend on the rule
    for variant in job.variants:
        if variant.selection == selection:
            scorer, rows, fallbacks[variant.criterion] = _scorer(job, choice, variant, weights, trained)
            labels = [scorer.class_scores(values[rows]).scores.argmax(axis=1) for values in tested]
            correct[variant.name] = sum(int((found == k).sum()) for k, found in enumerate(labels))
    return correct, sum(fallbacks.values())


def _selected_jointly(job: PairJob, codes: tuple[int, int], pool: PairPool) -> PairSelection:
    """Select the candidates that leave the smallest overlap of the two classes together."""
    weights = weights_of(job.fit, pool.nodes)
    counts, correlations = [], []
    for k in codes:
        # A shift changes no rank, so the values need none.
        values = project_rows(job.fit, job.train.samples, weights, *job.train.rows[k])
        counts.append(values.shape[1])
        correlations.append(shrunk_correlation(score_sums(rank_scores(values)), counts[-1])[0])
    candidates = Pool(
        location=pool.location,
        spread=pool.spread,
        correlation=np.array(correlations),
        counts=np.array(counts),
        priors=job.priors,
    )
    found = select_jointly(candidates, len(codes) * job.fit.plan.n_selected).candidates
    ascending = np.sort(found)
    return PairSelection(
        codes=codes,
        chosen={"extended_fisher": pool.nodes[found][None]},
        nodes=pool.nodes[ascending],
        shift=pool.shift[ascending],
    )


def _shifted_values(
    fit: FitJob, samples: SortedSamples, choice: PairSelection, weights: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """Two arrays of (u, sample) values, one per class; the second class is shifted."""
    first, second = (project_rows(fit, samples.samples, weights, *samples.rows[k]) for k in choice.codes)
    second += choice.shift[:, None].astype(np.float32)
    return [first, second]


def _scorer(
    job: PairJob,
    choice: PairSelection,
    variant: Variant,
    weights: NDArray[np.float32],
    trained: list[NDArray[np.float32]],
) -> tuple[Scorer, NDArray[np.intp], int]:
    """The network of one variant, the rows of its nodes among the pair's nodes, and its number of fallbacks."""
    chosen = choice.chosen[variant.criterion]
    rows = np.flatnonzero(np.isin(choice.nodes, chosen))
    middle = trained[0].shape[1]
    values = np.concatenate([of_class[rows] for of_class in trained], axis=1)
    slices = [slice(0, middle), slice(middle, values.shape[1])]
    selected = SelectedNodes(
        nodes=choice.nodes[rows],
        weights=weights[rows],
        values=values,
        class_slices=slices,
        tolerance=tolerance_at(job.fit, weights[rows])[list(choice.codes)],
    )
    options = replace(job.options, rule=COMBINATIONS[variant.rule])
    parameters, fallbacks = assemble(job.fit.preprocessing, selected, chosen, job.priors, options)
    return Scorer(parameters), rows, sum(fallbacks.values())


@one_blas_thread()
def node_densities(job: PairJob, choice: PairSelection, criterion: str) -> list[NodeDensities]:
    """Both classes' densities along the best node of each class, as this criterion selects it."""
    weights = weights_of(job.fit, choice.nodes)
    trained = _shifted_values(job.fit, job.train, choice, weights)
    tested = _shifted_values(job.fit, job.test, choice, weights)
    scorer, rows, _ = _scorer(job, choice, Variant(criterion), weights, trained)
    network = scorer.parameters
    # Values are relative to the origin of the preprocessing; the figure shows them relative to zero.
    middle = network.weights.astype(np.float64) @ job.fit.preprocessing.shift
    found = []
    for k, node in enumerate(choice.chosen[criterion][:, 0].tolist()):
        u = int(np.searchsorted(network.nodes, node))
        seen = [values[rows[u]] for values in tested]
        reach = 3 * network.bandwidth[:, u].max()
        low, high = network.projections[u].min() - reach, network.projections[u].max() + reach
        points = np.linspace(low, high, CURVE_POINTS)
        curves = [
            np.exp(log_density(points, network.projections[u, columns], float(network.bandwidth[j, u])))
            for j, columns in enumerate(network.class_slices)
        ]
        tested_at = [values + np.float32(middle[u]) for values in seen]
        found.append(
            NodeDensities(
                node=node, of_class=k, values=points + middle[u], densities=np.array(curves), tested=tested_at
            )
        )
    return found
