"""The paper's experiment from data to results: every seed and pair once, whoever stopped it in between."""

from __future__ import annotations

import platform
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fxdask import graph
from fxdask.datasets import ImageSet
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.example import Example, make_example, read_example, write_example
from fxdask.fitted import FitSettings
from fxdask.kernels.weights import SCHEME
from fxdask.pair_tasks import PairOutcome
from fxdask.pairing import Bench, MeasuredSeed, judge_pairs, lay_out, measure_seed
from fxdask.progress import progress_bar
from fxdask.results import Pair, Recorded, Results
from fxdask.store.group import remove_group

__all__ = ["Experiment", "run"]

WORK_FOLDER = ".fxdask-work"  # begun and removed here, so the name is one that nobody else gives
FEWEST_TRAINING_IMAGES = 2


@dataclass(frozen=True)
class Experiment:
    """What is to be done: data, network, seeds and pairs."""

    images: ImageSet
    settings: FitSettings
    """The network, whatever its seed."""
    seeds: list[int]
    pairs: list[Pair]
    mean_shift: bool = True

    @property
    def identity(self) -> dict[str, Any]:
        """What a pair's and seed's numbers depend on."""
        return {
            "dataset": self.images.name,
            "data": self.images.digest(),
            "n_nodes": self.settings.n_nodes,
            "n_selected": self.settings.n_selected,
            "mean_shift": self.mean_shift,
            "weight_scheme": SCHEME,
        }

    def check(self) -> None:
        """Refuse pairs of classes of which there are too few images."""
        for k in sorted({k for pair in self.pairs for k in pair}):
            trained = int((self.images.train_labels == k).sum())
            tested = int((self.images.test_labels == k).sum())
            if trained < FEWEST_TRAINING_IMAGES or tested < 1:
                raise InvalidInputError(
                    f"class {k} has {trained} training and {tested} test images; "
                    f"{FEWEST_TRAINING_IMAGES} and 1 are needed"
                )


def run(
    experiment: Experiment,
    out: Path,
    *,
    overwrite: bool = False,
    nodes_per_block: int | str = "auto",
    memory_limit: Any = None,
    verbose: bool = False,
) -> tuple[Results, Example]:
    """Do what is still missing in the folder, seed by seed, and read the results from there."""
    experiment.check()
    started = time.perf_counter()
    if not (out / "results.json").exists() and any(out.iterdir()):
        raise StoreExistsError(f"{out} holds other files; choose a new or an empty folder, or one with such results")
    recorded = Recorded(out / "results.json", experiment.identity, overwrite=overwrite)
    example = None
    if recorded.is_begun:
        example = read_example(out / "example.npz", experiment.pairs[0], experiment.seeds[0])
    recorded.save({})  # from now on the folder is known for what it is
    work = out / WORK_FOLDER
    missing = {seed: recorded.missing(seed, experiment.pairs) for seed in experiment.seeds}
    if any(missing.values()) or example is None:
        bench = lay_out(experiment.images, work, "sample", nodes_per_block=nodes_per_block, memory_limit=memory_limit)
        for i, seed in enumerate(experiment.seeds):
            is_first = i == 0 and example is None
            if not missing[seed] and not is_first:
                continue
            title = f"seed {seed} ({i + 1} of {len(experiment.seeds)})"
            measured = _do_seed(experiment, bench, recorded, seed, missing[seed], title, verbose=verbose)
            if is_first:
                settings = replace(experiment.settings, seed=seed)
                example = make_example(bench, settings, measured, experiment.pairs[0], mean_shift=experiment.mean_shift)
                write_example(example, out / "example.npz")
            remove_group(bench.store(seed))
        shutil.rmtree(work)
    assert example is not None
    facts = _facts(experiment, time.perf_counter() - started)
    recorded.save(facts)
    results = recorded.results(experiment.pairs, experiment.seeds, facts)
    results.write_csv(out / "results.csv")
    return results, example


def _do_seed(
    experiment: Experiment,
    bench: Bench,
    recorded: Recorded,
    seed: int,
    pairs: Sequence[Pair],
    title: str,
    *,
    verbose: bool,
) -> MeasuredSeed:
    """One seed's statistics and all of its pairs that are missing, recorded when the last one is done."""
    started = time.perf_counter()
    settings = replace(experiment.settings, seed=seed)
    with progress_bar(title, shown=verbose) as show:
        n_blocks = 0

        def blocks(done: int, total: int) -> None:
            nonlocal n_blocks
            n_blocks = total
            if show:
                show(done, total + len(pairs))

        measured = measure_seed(bench, settings, blocks)
        outcomes = judge_pairs(
            bench,
            settings,
            measured,
            pairs,
            (lambda done, total: show(n_blocks + done, n_blocks + total)) if show else None,
            mean_shift=experiment.mean_shift,
        )
    if outcomes:
        counts = {
            pair: {"tested": outcome.tested, "correct": outcome.correct}
            for pair, outcome in zip(pairs, outcomes, strict=True)
        }
        recorded.add(seed, counts, time.perf_counter() - started, _work(measured, outcomes))
    return measured


def _work(measured: MeasuredSeed, outcomes: Sequence[PairOutcome]) -> dict[str, dict[str, int]]:
    """What each process did for one seed, and the most memory it had."""
    found: dict[str, dict[str, int]] = {}
    done = [
        (name, count, 0, measured.peak_bytes_by_process[name]) for name, count in measured.blocks_by_process.items()
    ]
    for process, blocks, pairs, peak in [*done, *((one.process, 0, 1, one.peak_bytes) for one in outcomes)]:
        mine = found.setdefault(process, {"blocks": 0, "pairs": 0, "peak_bytes": 0})
        mine["blocks"] += blocks
        mine["pairs"] += pairs
        mine["peak_bytes"] = max(mine["peak_bytes"], peak)
    return found


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
        "on_cluster": graph.active_client() is not None,
    }
