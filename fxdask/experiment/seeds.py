"""Statistics of all classes for one seed's weights, and the pairs of classes that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.errors import FewUsableNodesWarning, InvalidInputError, warn_user
from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import shared_constant
from fxdask.execution.scan import SampleScan, scan_samples
from fxdask.experiment import evaluate_pair as tasks
from fxdask.experiment.datasets import ImageSet
from fxdask.experiment.evaluate_pair import PairJob, PairResult, PairSelection, SortedSamples
from fxdask.experiment.results import CRITERIA_COMPARED, Pair
from fxdask.experiment.shifts import mean_differences, shifted_pair
from fxdask.kernels.criteria.base import Measurements
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.selection import NO_NODE, top_nodes
from fxdask.kernels.statistics import ClassStatistics, node_tolerance
from fxdask.kernels.weights import weight_block
from fxdask.store.model import ModelStore
from fxdask.store.retry import writing
from fxdask.tasks.job import FitJob
from fxdask.workflows.data import as_samples
from fxdask.workflows.measure import measure_classes
from fxdask.workflows.model import TrainingData
from fxdask.workflows.plan import FitOptions
from fxdask.workflows.settings import FitSettings

__all__ = [
    "EQUAL_PRIORS",
    "ExperimentData",
    "ScoredPair",
    "SeedStatistics",
    "evaluate_pairs",
    "measure_seed",
    "pair_job",
    "prepare_data",
    "score_nodes",
    "select_nodes",
]

NODES_PER_DRAW = 4096
EQUAL_PRIORS = np.array([0.5, 0.5])


@dataclass(frozen=True, kw_only=True)
class ExperimentData:
    """Data in files that every worker can read, the result of their scan, and the folder of the seeds' stores."""

    folder: Path
    data: TrainingData
    test: SortedSamples
    scan: SampleScan
    nodes_per_block: int | str = "auto"
    memory_limit: Any = None

    @property
    def train(self) -> SortedSamples:
        """The training samples, sorted by class."""
        return SortedSamples(self.data.samples.handle, _rows_of(self.data.codes, np.arange(len(self.data.classes))))

    def store(self, seed: int) -> str:
        """Path of the store with a seed's statistics."""
        return str(self.folder / f"seed-{seed}.zarr")


def prepare_data(images: ImageSet, folder: Path, normalize: str, **limits: Any) -> ExperimentData:
    """Write the images sorted by class into files that the tasks read, and scan the training images."""
    folder.mkdir(parents=True, exist_ok=True)
    train = _write_by_class(images.train_images, images.train_labels, folder / "train.npy")
    test = _write_by_class(images.test_images, images.test_labels, folder / "test.npy")
    samples = as_samples(folder / "train.npy")
    classes, counts = np.unique(train, return_counts=True)
    data = TrainingData(samples, classes, np.searchsorted(classes, train).astype(np.uint8), counts)
    scan = scan_samples(samples.handle, samples.n_samples, samples.n_features, normalize)
    tested = SortedSamples(as_samples(folder / "test.npy").handle, _rows_of(test, classes))
    return ExperimentData(folder=folder, data=data, test=tested, scan=scan, **limits)


def _write_by_class(images: NDArray[np.uint8], labels: NDArray[np.uint8], file: Path) -> NDArray[np.uint8]:
    """Write images sorted by label into a file -> (image,) sorted labels."""
    order = np.argsort(labels, kind="stable")
    partial = file.with_suffix(".partial")
    with writing(str(file)):
        with partial.open("wb") as stream:
            np.save(stream, images[order])
        partial.replace(file)
    return labels[order]


def _rows_of(labels: NDArray[np.integer], classes: NDArray[np.integer]) -> list[tuple[int, int]]:
    """(sample,) sorted labels, (class,) classes -> the row range (start, stop) of each class."""
    starts, stops = (np.searchsorted(labels, classes, side=side).tolist() for side in ("left", "right"))
    return list(zip(starts, stops, strict=True))


@dataclass(frozen=True, kw_only=True)
class SeedStatistics:
    """Location and spread of every class at every node, for the weights of one seed."""

    job: FitJob
    statistics: ClassStatistics
    tolerance: NDArray[np.float64]
    blocks_by_process: dict[str, int]
    peak_bytes_by_process: dict[str, int]


def measure_seed(data: ExperimentData, settings: FitSettings, progress: Progress | None = None) -> SeedStatistics:
    """Measure all classes for the weights of one seed into its store; an unfinished store is resumed."""
    options = FitOptions(
        store=data.store(settings.seed), nodes_per_block=data.nodes_per_block, memory_limit=data.memory_limit
    )
    job, summary = measure_classes(settings, data.data, data.scan, options, progress)
    store = ModelStore.open(str(job.store), finished=False)
    location, spread, source = (store.read_quantity(name) for name in ("location", "spread", "spread_source"))
    return SeedStatistics(
        job=job,
        statistics=ClassStatistics(location, spread, source.astype(np.uint8)),
        tolerance=_tolerance(job),
        blocks_by_process={process: stats.blocks for process, stats in summary.workers.items()},
        peak_bytes_by_process={process: stats.peak_bytes for process, stats in summary.workers.items()},
    )


def _tolerance(job: FitJob) -> NDArray[np.float64]:
    """(class, node) spread at or below which a class counts as constant; weights are drawn in parts to save memory."""
    n_nodes, parts = job.plan.n_nodes, []
    for start in range(0, n_nodes, NODES_PER_DRAW):
        weights = weight_block(job.seed, start, min(start + NODES_PER_DRAW, n_nodes), job.plan.n_features)
        parts.append(node_tolerance(weights, job.class_norms))
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True)
class ScoredPair:
    """Every node's scores for one pair, and the shift of the second class at every node."""

    pair: Pair
    codes: tuple[int, int]
    scores: dict[str, NDArray[np.float64]]
    """By criterion, (class of the pair, node)."""
    shift: NDArray[np.float64]


def score_nodes(measured: SeedStatistics, classes: NDArray, pair: Pair, *, mean_shift: bool) -> ScoredPair:
    """Score every node for a pair of classes by both criteria, after the shift of the second class."""
    job = measured.job
    if job.preprocessing.largest == 0:
        raise InvalidInputError("every image is constant, so no projection can separate classes; check the data")
    codes = (int(np.searchsorted(classes, pair[0])), int(np.searchsorted(classes, pair[1])))
    difference = mean_differences(job.seed, pair, job.plan.n_nodes) if mean_shift else None
    own, shift = shifted_pair(measured.statistics, codes, difference)
    columns = Measurements(own, EQUAL_PRIORS, measured.tolerance[list(codes)])
    scores = {name: CRITERIA[name].score(columns) for name in CRITERIA_COMPARED}
    return ScoredPair(pair, codes, scores, shift)


def select_nodes(scored: ScoredPair, n_selected: int) -> PairSelection:
    """Select the best nodes by each criterion."""
    chosen = {name: top_nodes(scores, 0, n_selected).nodes for name, scores in scored.scores.items()}
    usable = min(int((found != NO_NODE).sum(axis=1).min()) for found in chosen.values())
    names = "class {} from class {}".format(*scored.pair)
    if usable == 0:
        raise InvalidInputError(f"no node separates {names}, because every projection is constant; leave this pair out")
    if usable < n_selected:
        warn_user(
            f"only {usable} nodes of the {n_selected} requested separate {names}; the network uses those",
            FewUsableNodesWarning,
        )
    nodes = np.unique(np.concatenate([found.ravel() for found in chosen.values()]))
    nodes = nodes[nodes != NO_NODE]
    return PairSelection(scored.codes, chosen, nodes, scored.shift[nodes])


def pair_job(data: ExperimentData, settings: FitSettings, measured: SeedStatistics) -> PairJob:
    """The job that all pairs of a seed share."""
    # Pairs read only the samples, so they need no store.
    job = replace(measured.job, store=None)
    return PairJob(fit=job, train=data.train, test=data.test, options=settings.density_options, priors=EQUAL_PRIORS)


def evaluate_pairs(
    data: ExperimentData,
    measured: SeedStatistics,
    pairs: Sequence[Pair],
    progress: Progress | None = None,
    *,
    settings: FitSettings,
    mean_shift: bool,
) -> list[PairResult]:
    """Count the correctly labelled test samples of each pair, for the networks of both criteria."""
    evaluate = delayed(tasks.evaluate_pair, pure=False)
    shared = shared_constant(pair_job(data, settings, measured), "pairs")
    scored = (score_nodes(measured, data.data.classes, pair, mean_shift=mean_shift) for pair in pairs)
    choices = [select_nodes(each, settings.n_selected) for each in scored]
    return compute([evaluate(shared, choice) for choice in choices], progress)
