"""Statistics of all classes for one seed's weights, and the pairs of classes that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.errors import FewUsableNodesWarning, InvalidInputError, MemoryPlanError, warn_user
from fxdask.execution.compute import Progress, compute
from fxdask.execution.graphs import shared_constant
from fxdask.execution.resources import measured_resources
from fxdask.execution.scan import SampleScan, scan_samples
from fxdask.experiment import evaluate_pair as tasks
from fxdask.experiment.datasets import ImageSet
from fxdask.experiment.evaluate_pair import PairJob, PairPool, PairResult, PairSelection, SortedSamples
from fxdask.experiment.results import CRITERIA_COMPARED, Pair
from fxdask.experiment.shifts import mean_differences, shifted_pair
from fxdask.experiment.variants import PAPERS_VARIANTS, Variant
from fxdask.kernels.criteria.base import Measurements, Need, required
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.kernels.selection import NO_NODE, top_nodes
from fxdask.kernels.statistics import ClassStatistics
from fxdask.planning.pool_plan import PoolPlan
from fxdask.sizes import format_bytes
from fxdask.store.model import ModelStore
from fxdask.store.retry import writing
from fxdask.tasks.job import FitJob, tolerance_at, weights_of
from fxdask.workflows.data import as_samples
from fxdask.workflows.measure import measure_classes
from fxdask.workflows.model import TrainingData
from fxdask.workflows.plan import FitOptions
from fxdask.workflows.settings import FitSettings

__all__ = [
    "EQUAL_PRIORS",
    "ExperimentData",
    "PairOptions",
    "ScoredPair",
    "SeedStatistics",
    "check_pools_fit",
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
        nodes = np.arange(start, min(start + NODES_PER_DRAW, n_nodes))
        parts.append(tolerance_at(job, weights_of(job, nodes)))
    return np.concatenate(parts, axis=1)


@dataclass(frozen=True, kw_only=True)
class PairOptions:
    """What the pairs of every seed have in common."""

    settings: FitSettings
    mean_shift: bool
    variants: tuple[Variant, ...] = PAPERS_VARIANTS

    @property
    def pool_size(self) -> int:
        """Candidates of each class for the joint selection of a pair; 0 if no variant has one."""
        if all(variant.selection == "top" for variant in self.variants):
            return 0
        return replace(self.settings, selection="joint").n_ranked(2)


def check_pools_fit(data: ExperimentData, options: PairOptions) -> None:
    """Refuse a joint selection whose candidates do not fit into the memory of one task."""
    if not options.pool_size:
        return
    settings, counts = options.settings, tuple(sorted(map(int, data.data.counts))[-2:])
    n_candidates = min(settings.n_nodes, 2 * options.pool_size)
    n_nodes = min(n_candidates, 2 * settings.n_selected)
    plan = PoolPlan(n_candidates=n_candidates, n_nodes=n_nodes, class_counts=counts, candidates_per_task=n_candidates)
    # The values and scores of one class, and its sums with temporary copies of the same size.
    needed = (4 + 2) * n_candidates * counts[-1] + 2 * plan.caller_bytes
    allowed = measured_resources(data.memory_limit).per_task
    if needed > allowed:
        raise MemoryPlanError(
            f"the joint selection of a pair among {n_candidates:,} candidates needs {format_bytes(needed)} but a task "
            f"may use {format_bytes(max(0, allowed))}; reduce n_selected, give workers more memory or fewer threads "
            "each, raise memory_limit for local threads, or leave the joint selection out"
        )


@dataclass(frozen=True, kw_only=True)
class ScoredPair:
    """Every node's scores for one pair, and the shift of the second class at every node."""

    pair: Pair
    codes: tuple[int, int]
    columns: Measurements
    """Both classes at every node, after the shift."""
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
    columns = Measurements(statistics=own, priors=EQUAL_PRIORS, tolerance=measured.tolerance[list(codes)])
    scores = {name: CRITERIA[name].score(columns) for name in CRITERIA_COMPARED}
    return ScoredPair(pair=pair, codes=codes, columns=columns, scores=scores, shift=shift)


def select_nodes(scored: ScoredPair, n_selected: int, pool_size: int = 0) -> PairSelection:
    """Select the best nodes by each criterion, and the candidates of a joint selection if there is one."""
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
    return PairSelection(
        codes=scored.codes,
        chosen=chosen,
        nodes=nodes,
        shift=scored.shift[nodes],
        pool=_pool(scored, pool_size) if pool_size else None,
    )


def _pool(scored: ScoredPair, pool_size: int) -> PairPool:
    """The best nodes of either class by the extended criterion."""
    best = top_nodes(scored.scores["extended_fisher"], 0, pool_size).nodes
    nodes = np.unique(best[best != NO_NODE])
    statistics = required(scored.columns.statistics, Need.LOCATION_AND_SPREAD)
    tolerance = scored.columns.tolerance[:, nodes]
    spread = np.maximum(statistics.spread[:, nodes], tolerance)
    return PairPool(nodes, statistics.location[:, nodes], spread, scored.shift[nodes])


def pair_job(
    data: ExperimentData,
    settings: FitSettings,
    measured: SeedStatistics,
    variants: tuple[Variant, ...] = PAPERS_VARIANTS,
) -> PairJob:
    """The job that all pairs of a seed share."""
    return PairJob(
        fit=replace(measured.job, store=None),  # pairs read only the samples
        train=data.train,
        test=data.test,
        options=settings.density_options,
        priors=EQUAL_PRIORS,
        variants=variants,
    )


def evaluate_pairs(
    data: ExperimentData,
    measured: SeedStatistics,
    pairs: Sequence[Pair],
    options: PairOptions,
    progress: Progress | None = None,
) -> list[PairResult]:
    """Count the correctly labelled test samples of each pair, for the networks of all variants."""
    evaluate = delayed(tasks.evaluate_pair, pure=False)
    shared = shared_constant(pair_job(data, options.settings, measured, options.variants), "pairs")
    scored = (score_nodes(measured, data.data.classes, pair, mean_shift=options.mean_shift) for pair in pairs)
    choices = [select_nodes(each, options.settings.n_selected, options.pool_size) for each in scored]
    return compute([evaluate(shared, choice) for choice in choices], progress)
