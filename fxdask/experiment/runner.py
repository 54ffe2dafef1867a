"""Run the paper's experiment from data to results; an interrupted run is resumed."""

from __future__ import annotations

import hashlib
import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from itertools import combinations
from numbers import Integral
from pathlib import Path
from typing import Any

from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.experiment.datasets import N_CLASSES, ImageSet
from fxdask.experiment.evaluate_pair import PairResult
from fxdask.experiment.example import Example, make_example, read_example, write_example
from fxdask.experiment.results import Pair, Results, ResultsFile, WorkByProcess, merged_work
from fxdask.experiment.seeds import (
    ExperimentData,
    PairOptions,
    SeedStatistics,
    check_pools_fit,
    evaluate_pairs,
    measure_seed,
    prepare_data,
)
from fxdask.experiment.shifts import mean_differences
from fxdask.experiment.variants import PAPERS_CHOICES, compared_variants
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.statistics import TOLERANCE_RULE
from fxdask.progress import progress_bar
from fxdask.sizes import projection_in_use
from fxdask.store.group import remove_group
from fxdask.workflows.settings import FitSettings

__all__ = ["Experiment", "ExperimentOptions", "checked_pairs", "checked_seeds", "run"]

WORK_FOLDER = ".fxdask-work"  # deleted after a run, so its name must not clash with users' folders
RESULTS, EXAMPLE = "results.json", "example.npz"
OWN_NAMES = {f".{RESULTS}.begun", f".{RESULTS}.lease", WORK_FOLDER}
MOST_SEEDS, LARGEST_SEED = 10**6, 2**63 - 1
FEWEST_TRAINING_IMAGES = 2


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """The requested experiment: data, network, seeds and pairs."""

    images: ImageSet
    settings: FitSettings
    """Settings of the network; the seed in them is not used."""
    seeds: list[int]
    pairs: list[Pair]
    mean_shift: bool = True
    rules: tuple[str, ...] = ("sum",)
    """Rules that combine densities, the paper's among them."""
    selections: tuple[str, ...] = ("top",)
    """Selections of nodes, the paper's among them."""

    @property
    def pair_options(self) -> PairOptions:
        """The settings of the pairs of every seed."""
        variants = compared_variants(self.rules, self.selections)
        return PairOptions(settings=self.settings, mean_shift=self.mean_shift, variants=variants)

    @property
    def projection(self) -> str:
        """The projection in use."""
        return projection_in_use(self.settings.projection, self.images.train_images[0].size)

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that the counts of a pair and seed depend on.

        Rules and selections are named only if they are not the paper's, so that the identity of the
        paper's experiment stays the same.
        """
        choices = {"rules": list(self.rules), "selections": list(self.selections)}
        beyond: dict[str, Any] = {name: names for name, names in choices.items() if names != PAPERS_CHOICES[name]}
        if self.projection != "gaussian":
            beyond["projection"] = self.projection
        if self.pair_options.pool_size:
            beyond["pool_size"] = self.pair_options.pool_size
        return beyond | {
            "dataset": self.images.name,
            "data": self.images.digest(),
            "n_nodes": self.settings.n_nodes,
            "n_selected": self.settings.n_selected,
            "mean_shift": self.mean_shift,
            "weight_scheme": PROJECTIONS[self.projection].scheme,
            "zero_tolerance": TOLERANCE_RULE,
            "streams": _streams(self.projection),
        }

    def check(self) -> None:
        """Refuse pairs with a class that has too few images."""
        for k in sorted({k for pair in self.pairs for k in pair}):
            trained = int((self.images.train_labels == k).sum())
            tested = int((self.images.test_labels == k).sum())
            if trained < FEWEST_TRAINING_IMAGES or tested < 1:
                raise InvalidInputError(
                    f"class {k} has {trained} training and {tested} test images; "
                    f"{FEWEST_TRAINING_IMAGES} and 1 are needed; choose other pairs"
                )


def _streams(projection: str) -> str:
    """Digest of a few random weights and shifts, to detect a NumPy that draws different ones."""
    drawn = (PROJECTIONS[projection].rows(0, [0], 8), mean_differences(0, (0, 1), 8))
    return hashlib.sha256(b"".join(values.tobytes() for values in drawn)).hexdigest()[:16]


def checked_seeds(seeds: Any) -> list[int]:
    """Number of seeds, or an iterable of seeds -> list of seeds in the given order, without duplicates."""
    if isinstance(seeds, Integral) and not isinstance(seeds, bool):
        seeds = range(min(int(seeds), MOST_SEEDS + 1))
    try:
        found = list(seeds)
    except TypeError:
        found = []
    if len(found) > MOST_SEEDS:
        raise InvalidInputError(f"at most {MOST_SEEDS:,} seeds are allowed in one call; pass fewer")
    is_whole = [isinstance(k, Integral) and not isinstance(k, bool) and 0 <= int(k) <= LARGEST_SEED for k in found]
    if not found or not all(is_whole):
        raise InvalidInputError("seeds must be a whole number of at least 1, or whole numbers from 0 to 2^63 - 1")
    return list(dict.fromkeys(int(seed) for seed in found))


def checked_pairs(pairs: Any) -> list[Pair]:
    """Pairs of classes, or None for all -> pairs without duplicates, the lower class first."""
    if pairs is None:
        return list(combinations(range(N_CLASSES), 2))
    found = []
    try:
        for first, second in pairs:
            if not all(isinstance(k, Integral) and 0 <= int(k) < N_CLASSES for k in (first, second)):
                raise ValueError("no such class")
            if first == second:
                raise ValueError("one class only")
            found.append((int(min(first, second)), int(max(first, second))))
    except (TypeError, ValueError):
        raise InvalidInputError(
            f"pairs must be two different classes from 0 to {N_CLASSES - 1}, such as 0 and 1, or 3 and 8"
        ) from None
    if not found:
        raise InvalidInputError("pairs is empty; leave it out for all pairs")
    return list(dict.fromkeys(found))


@dataclass(frozen=True)
class ExperimentOptions:
    """Options of the experiment that never change its results."""

    overwrite: bool = False
    nodes_per_block: int | str = "auto"
    memory_limit: Any = None
    verbose: bool = False


def run(experiment: Experiment, out: Path, options: ExperimentOptions) -> tuple[Results, Example]:
    """Compute the results that are missing in the folder, seed by seed, and return all requested results."""
    started = time.perf_counter()
    # A folder without results may hold only files that an interrupted first write left.
    if not (out / RESULTS).exists() and not {path.name for path in out.iterdir()} <= OWN_NAMES:
        raise StoreExistsError(f"{out} holds other files; choose a new or empty folder, or one with results")
    results = ResultsFile(out / RESULTS, experiment.identity, overwrite=options.overwrite)
    if results.replaced:
        _remove_old_files(out)
    results.save()  # from now on a later call recognises the folder
    example = read_example(out / EXAMPLE, results.identity, experiment.pairs[0], experiment.seeds[0])
    missing = {seed: results.missing(seed, experiment.pairs) for seed in experiment.seeds}
    if any(missing.values()) or example is None:
        data = prepare_data(
            experiment.images,
            out / WORK_FOLDER,
            "sample",
            nodes_per_block=options.nodes_per_block,
            memory_limit=options.memory_limit,
        )
        check_pools_fit(data, experiment.pair_options)
        runner = _Runner(experiment, data, results, options.verbose)
        example = runner.run_seeds(missing, example, out / EXAMPLE)
    shutil.rmtree(out / WORK_FOLDER, ignore_errors=True)
    results.save(_facts(experiment, time.perf_counter() - started))
    results.write_csv(out / "results.csv")
    return results.results(experiment.pairs, experiment.seeds), example


def _remove_old_files(out: Path) -> None:
    """Remove the files of another experiment, so that the folder never mixes two experiments."""
    for name in (EXAMPLE, "results.csv", "report.html"):
        (out / name).unlink(missing_ok=True)
    shutil.rmtree(out / WORK_FOLDER, ignore_errors=True)


@dataclass(frozen=True)
class _Runner:
    """An experiment, its data and its results file."""

    experiment: Experiment
    data: ExperimentData
    results: ResultsFile
    verbose: bool

    def run_seeds(self, missing: Mapping[int, Sequence[Pair]], example: Example | None, file: Path) -> Example:
        """Run every seed with missing pairs; the first seed's statistics also give the example."""
        experiment, first = self.experiment, self.experiment.seeds[0]
        for i, seed in enumerate(experiment.seeds):
            if not missing[seed] and (seed != first or example is not None):
                continue
            title = f"seed {seed} ({i + 1} of {len(experiment.seeds)})"
            measured = self.run_seed(seed, missing[seed], title)
            if example is None:
                example = make_example(
                    self.data,
                    replace(experiment.settings, seed=seed),
                    measured,
                    experiment.pairs[0],
                    mean_shift=experiment.mean_shift,
                )
                write_example(example, file, self.results.identity)
            remove_group(self.data.store(seed))
        assert example is not None, "the first seed gives the example"
        return example

    def run_seed(self, seed: int, pairs: Sequence[Pair], title: str) -> SeedStatistics:
        """Measure one seed and evaluate its missing pairs; all counts are saved together at the end."""
        started = time.perf_counter()
        options = self.experiment.pair_options
        options = replace(options, settings=replace(options.settings, seed=seed))
        with progress_bar(title, shown=self.verbose) as show:
            n_blocks = 0

            def blocks(done: int, total: int) -> None:
                nonlocal n_blocks
                n_blocks = total
                if show:
                    show(done, total + len(pairs))

            measured = measure_seed(self.data, options.settings, blocks)
            pair_results = evaluate_pairs(
                self.data,
                measured,
                pairs,
                options,
                (lambda done, total: show(n_blocks + done, n_blocks + total)) if show else None,
            )
        if pair_results:
            counts = {
                pair: {"tested": result.tested, "correct": result.correct, "fallbacks": result.fallbacks}
                for pair, result in zip(pairs, pair_results, strict=True)
            }
            self.results.add(seed, counts, time.perf_counter() - started, _work(measured, pair_results))
        return measured


def _work(measured: SeedStatistics, pair_results: Sequence[PairResult]) -> WorkByProcess:
    """Number of blocks and pairs, and peak memory, of each process for one seed."""
    peaks = measured.peak_bytes_by_process
    blocks = {name: (count, 0, peaks[name]) for name, count in measured.blocks_by_process.items()}
    each = [blocks, *({one.process: (0, 1, one.peak_bytes)} for one in pair_results)]
    return merged_work(
        {process: {"blocks": n, "pairs": m, "peak_bytes": peak} for process, (n, m, peak) in part.items()}
        for part in each
    )


def _facts(experiment: Experiment, seconds: float) -> Mapping[str, Any]:
    images = experiment.images
    return {
        "data": images.origin,
        "split": images.split,
        "training_images": len(images.train_labels),
        "test_images": len(images.test_labels),
        "seconds": seconds,
        "versions": {name: version(name) for name in ("fxdask", "numpy", "scipy", "dask", "zarr")}
        | {"python": platform.python_version()},
    }
