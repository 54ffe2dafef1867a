"""One worker's work on one pair of classes: project its selected nodes, label its test samples."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.exact import log_density
from fxdask.kernels.network import DensityOptions, SelectedNodes, assemble
from fxdask.kernels.scorer import Scorer
from fxdask.kernels.weights import weight_rows
from fxdask.store.sources import Source
from fxdask.tasks.fit import project_rows
from fxdask.tasks.job import FitJob
from fxdask.tasks.telemetry import peak_bytes, this_process
from fxdask.tasks.threads import one_blas_thread

__all__ = [
    "NodeDensities",
    "PairJob",
    "PairResult",
    "PairSelection",
    "SortedSamples",
    "evaluate_pair",
    "node_densities",
]

CURVE_POINTS = 400


@dataclass(frozen=True)
class SortedSamples:
    """Samples at an address, ordered by class, and for each class its first row and the one after its last."""

    samples: Source
    rows: list[tuple[int, int]]


@dataclass(frozen=True, kw_only=True, eq=False)
class PairJob:
    """Everything that the pairs of one seed share: it enters a graph once."""

    fit: FitJob
    train: SortedSamples
    test: SortedSamples
    options: DensityOptions
    priors: NDArray[np.float64]
    """(2,) priors of a pair's classes."""


@dataclass(frozen=True)
class PairSelection:
    """The nodes that each criterion selected for a pair, and how far the second class is moved at them."""

    codes: tuple[int, int]
    """The pair's classes by their places among all classes."""
    chosen: Mapping[str, NDArray[np.int64]]
    """By criterion, (class of the pair, rank) nodes."""
    nodes: NDArray[np.int64]
    """(u,) all of them in rising order."""
    shift: NDArray[np.float64]
    """(u,) what is added to every value of the second class, of training and test samples alike."""


@dataclass(frozen=True, kw_only=True)
class PairResult:
    """How many of a pair's test samples got the right label, by criterion; and who did the work."""

    correct: dict[str, int]
    tested: int
    fallbacks: int
    """Bandwidths of selected nodes that another estimate or rule had to give."""
    process: str
    peak_bytes: int


@dataclass(frozen=True, kw_only=True)
class NodeDensities:
    """Both classes' densities along one node's values, and where the test samples lie."""

    node: int
    of_class: int
    """Which of the pair's classes selected the node."""
    values: NDArray[np.float64]
    """(point,)"""
    densities: NDArray[np.float64]
    """(class, point)"""
    tested: list[NDArray[np.float32]]
    """By class, the test samples' values."""


@one_blas_thread()
def evaluate_pair(job: PairJob, choice: PairSelection) -> PairResult:
    """Label the pair's test samples with the network of each criterion's nodes."""
    weights = weight_rows(job.fit.seed, choice.nodes, job.fit.plan.n_features)
    trained = _moved_values(job.fit, job.train, choice, weights)
    tested = _moved_values(job.fit, job.test, choice, weights)
    correct, fallbacks = {}, 0
    for criterion, chosen in choice.chosen.items():
        scorer, mine, taken = _scorer(job, choice, chosen, weights, trained)
        fallbacks += taken
        labels = [scorer.class_scores(values[mine]).scores.argmax(axis=1) for values in tested]
        correct[criterion] = sum(int((given == k).sum()) for k, given in enumerate(labels))
    n_tested = sum(values.shape[1] for values in tested)
    return PairResult(
        correct=correct, tested=n_tested, fallbacks=fallbacks, process=this_process(), peak_bytes=peak_bytes()
    )


def _moved_values(
    fit: FitJob, samples: SortedSamples, choice: PairSelection, weights: NDArray[np.float32]
) -> list[NDArray[np.float32]]:
    """By class of the pair, (u, sample) values, the second class's moved."""
    first, second = (project_rows(fit, samples.samples, weights, *samples.rows[k]) for k in choice.codes)
    second += choice.shift[:, None].astype(np.float32)
    return [first, second]


def _scorer(
    job: PairJob,
    choice: PairSelection,
    chosen: NDArray[np.int64],
    weights: NDArray[np.float32],
    trained: list[NDArray[np.float32]],
) -> tuple[Scorer, NDArray[np.intp], int]:
    """The network of one criterion's nodes, which of the pair's nodes these are, and the fallbacks taken."""
    mine = np.flatnonzero(np.isin(choice.nodes, chosen))
    middle = trained[0].shape[1]
    values = np.concatenate([of_class[mine] for of_class in trained], axis=1)
    slices = [slice(0, middle), slice(middle, values.shape[1])]
    selected = SelectedNodes(choice.nodes[mine], weights[mine], values, slices)
    parameters, fallbacks = assemble(job.fit.preprocessing, selected, chosen, job.priors, job.options)
    return Scorer(parameters), mine, sum(fallbacks.values())


@one_blas_thread()
def node_densities(job: PairJob, choice: PairSelection, criterion: str) -> list[NodeDensities]:
    """The best node of each class of the pair, as this criterion selects them: both densities along it."""
    weights = weight_rows(job.fit.seed, choice.nodes, job.fit.plan.n_features)
    trained = _moved_values(job.fit, job.train, choice, weights)
    tested = _moved_values(job.fit, job.test, choice, weights)
    scorer, mine, _ = _scorer(job, choice, choice.chosen[criterion], weights, trained)
    network = scorer.parameters
    # Values are measured from the training samples' middle; along the axis of a figure they stand as they are.
    middle = network.weights.astype(np.float64) @ job.fit.preprocessing.shift
    found = []
    for k, node in enumerate(choice.chosen[criterion][:, 0].tolist()):
        u = int(np.searchsorted(network.nodes, node))
        seen = [values[mine[u]] for values in tested]
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
