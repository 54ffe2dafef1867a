"""Statistics of all classes under one seed's weights, and the pairs of classes that share them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask import graph, pair_tasks
from fxdask.datasets import ImageSet
from fxdask.errors import InvalidInputError
from fxdask.fitted import FitSettings, TrainingData
from fxdask.fitting import FitPlace, measure_classes
from fxdask.graph import Progress, Survey
from fxdask.inputs import as_samples
from fxdask.job import FitJob
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.selection import NO_NODE, top_nodes
from fxdask.kernels.shifts import mean_differences, moved_pair
from fxdask.kernels.statistics import ClassStatistics, node_tolerance
from fxdask.kernels.weights import weight_block
from fxdask.pair_tasks import PairChoice, PairJob, PairOutcome, SortedSamples
from fxdask.results import CRITERIA_COMPARED, Pair
from fxdask.store.model import ModelStore

__all__ = ["Bench", "MeasuredSeed", "choose_nodes", "judge_pairs", "lay_out", "measure_seed", "pair_job"]

NODES_PER_DRAW = 4096
EQUAL_PRIORS = np.array([0.5, 0.5])


@dataclass(frozen=True)
class Bench:
    """The data laid out in files that every worker can read, seen once, and where seeds have their stores."""

    folder: Path
    data: TrainingData
    test: SortedSamples
    survey: Survey
    nodes_per_block: int | str = "auto"
    memory_limit: Any = None

    @property
    def train(self) -> SortedSamples:
        """The training samples, ordered by class."""
        return SortedSamples(self.data.samples.handle, _edges(self.data.codes))

    def store(self, seed: int) -> str:
        """Where the statistics of a seed are."""
        return str(self.folder / f"seed-{seed}.zarr")


def lay_out(images: ImageSet, folder: Path, normalize: str, **place: Any) -> Bench:
    """Write the images, ordered by class, where the tasks read them, and look at each training image once."""
    folder.mkdir(parents=True, exist_ok=True)
    train = _write_by_class(images.train_images, images.train_labels, folder / "train.npy")
    test = _write_by_class(images.test_images, images.test_labels, folder / "test.npy")
    samples = as_samples(folder / "train.npy")
    classes, counts = np.unique(train, return_counts=True)
    data = TrainingData(samples, classes, np.searchsorted(classes, train).astype(np.uint8), counts)
    known = np.searchsorted(test, np.append(classes, classes[-1] + 1))
    seen = graph.survey(samples.handle, samples.n_samples, samples.n_inputs, normalize)
    return Bench(
        folder, data, SortedSamples(as_samples(folder / "test.npy").handle, tuple(known.tolist())), seen, **place
    )


def _write_by_class(images: NDArray[np.uint8], labels: NDArray[np.uint8], file: Path) -> NDArray[np.uint8]:
    """Images in the order of their labels into a file -> the labels in that order."""
    order = np.argsort(labels, kind="stable")
    begun = file.with_suffix(".partial")
    with begun.open("wb") as stream:
        np.save(stream, images[order])
    begun.replace(file)
    return labels[order]


def _edges(codes: NDArray[np.integer]) -> tuple[int, ...]:
    return tuple(np.searchsorted(codes, np.arange(int(codes.max()) + 2)).tolist())


@dataclass(frozen=True)
class MeasuredSeed:
    """The weights of one seed: every class's location and spread at every node."""

    job: FitJob
    statistics: ClassStatistics
    tolerance: NDArray[np.float64]
    blocks_by_process: dict[str, int]
    peak_bytes_by_process: dict[str, int]


def measure_seed(bench: Bench, settings: FitSettings, progress: Progress | None = None) -> MeasuredSeed:
    """The statistics of all classes under the weights of one seed, into its store; begun ones are gone on with."""
    place = FitPlace(bench.store(settings.seed), False, bench.nodes_per_block, bench.memory_limit)
    job, summary = measure_classes(settings, bench.data, bench.survey, place, progress)
    store = ModelStore.open(str(job.store), finished=False)
    location, spread, source = (store.read_quantity(name) for name in ("location", "spread", "spread_source"))
    return MeasuredSeed(
        job,
        ClassStatistics(location, spread, source.astype(np.uint8)),
        _tolerance(job),
        {process: work.blocks for process, work in summary.processes.items()},
        {process: work.peak_bytes for process, work in summary.processes.items()},
    )


def _tolerance(job: FitJob) -> NDArray[np.float64]:
    """(node,) below what a spread counts as zero; the weights are drawn a few at a time."""
    n_nodes, parts = job.plan.n_nodes, []
    for start in range(0, n_nodes, NODES_PER_DRAW):
        weights = weight_block(job.seed, start, min(start + NODES_PER_DRAW, n_nodes), job.plan.n_inputs)
        parts.append(node_tolerance(weights, job.preparation.largest))
    return np.concatenate(parts)


def choose_nodes(measured: MeasuredSeed, classes: NDArray, pair: Pair, *, mean_shift: bool) -> PairChoice:
    """The nodes that each criterion selects for a pair of classes, after the second one's shift."""
    job = measured.job
    codes = (int(np.searchsorted(classes, pair[0])), int(np.searchsorted(classes, pair[1])))
    difference = mean_differences(job.seed, pair, job.plan.n_nodes) if mean_shift else None
    own, shift = moved_pair(measured.statistics, codes, difference)
    chosen = {}
    for criterion in CRITERIA_COMPARED:
        scores = CRITERIA[criterion](own, EQUAL_PRIORS, measured.tolerance)
        chosen[criterion] = top_nodes(scores, 0, job.plan.n_selected).nodes
        if (chosen[criterion][:, 0] == NO_NODE).any():
            raise InvalidInputError(f"no node tells class {pair[0]} from class {pair[1]}: every projection is constant")
    nodes = np.unique(np.concatenate([found.ravel() for found in chosen.values()]))
    nodes = nodes[nodes != NO_NODE]
    return PairChoice(codes, chosen, nodes, shift[nodes])


def pair_job(bench: Bench, settings: FitSettings, measured: MeasuredSeed) -> PairJob:
    """What all pairs of a seed share."""
    # Without the plan's own store: pairs read the samples, and nothing else.
    job = replace(measured.job, store=None)
    return PairJob(job, bench.train, bench.test, settings.density_rules, EQUAL_PRIORS)


def judge_pairs(
    bench: Bench,
    settings: FitSettings,
    measured: MeasuredSeed,
    pairs: Sequence[Pair],
    progress: Progress | None = None,
    *,
    mean_shift: bool,
) -> list[PairOutcome]:
    """How many test samples of each pair get the right label by the networks of both criteria."""
    judge = delayed(pair_tasks.judge_pair, pure=False)
    shared = graph.once(pair_job(bench, settings, measured), "pairs")
    choices = [choose_nodes(measured, bench.data.classes, pair, mean_shift=mean_shift) for pair in pairs]
    return graph.compute([judge(shared, choice) for choice in choices], progress)
