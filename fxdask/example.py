"""One pair of classes seen closely: what the report's figures show."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask import graph, pair_tasks
from fxdask.fitted import FitSettings, TrainingData
from fxdask.fitting import FitPlace, plan_model
from fxdask.inputs import Samples
from fxdask.job import FitJob
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.shifts import mean_differences, moved_pair
from fxdask.pair_tasks import NodeDensities, SortedSamples
from fxdask.pairing import EQUAL_PRIORS, Bench, MeasuredSeed, choose_nodes, pair_job
from fxdask.reading import read_range
from fxdask.results import Pair

__all__ = ["Example", "make_example", "read_example", "write_example"]


@dataclass(frozen=True)
class Example:
    """Figures of one pair and one seed."""

    pair: Pair
    seed: int
    divergences: NDArray[np.float64]
    """(class of the pair, node) the extended criterion."""
    ratios: NDArray[np.float64]
    """(node,) Fisher's criterion."""
    images: NDArray[np.uint8]
    """(class of the pair, pixel) a test image of each class."""
    responses: NDArray[np.float64]
    """(image, class of the density, node) activations of every node."""
    densities: list[NodeDensities]
    """The best node of each class."""


def make_example(
    bench: Bench, settings: FitSettings, measured: MeasuredSeed, pair: Pair, *, mean_shift: bool
) -> Example:
    """Look closely at one pair: all nodes' scores, all nodes' responses to two test images, two nodes' densities."""
    choice = choose_nodes(measured, bench.data.classes, pair, mean_shift=mean_shift)
    difference = mean_differences(settings.seed, pair, settings.n_nodes) if mean_shift else None
    own, shift = moved_pair(measured.statistics, choice.pair, difference)
    scores = {name: CRITERIA[name](own, EQUAL_PRIORS, measured.tolerance) for name in ("extended_fisher", "fisher")}
    firsts = [first for first, _ in _ranges(bench.test, choice.pair)]
    images = np.stack([read_range(bench.test.samples, first, first + 1)[0] for first in firsts])
    job = graph.once(pair_job(bench, settings, measured), "pair")
    closely = delayed(pair_tasks.node_densities, pure=False)
    (densities,) = graph.compute([closely(job, choice, "extended_fisher")])
    return Example(
        pair,
        settings.seed,
        scores["extended_fisher"],
        scores["fisher"][0],
        images,
        _responses(bench, settings, measured, choice.pair, images, shift),
        densities,
    )


def _ranges(samples: SortedSamples, codes: Pair) -> list[tuple[int, int]]:
    return [samples.of_class(k) for k in codes]


def _responses(
    bench: Bench,
    settings: FitSettings,
    measured: MeasuredSeed,
    codes: Pair,
    images: NDArray[np.uint8],
    shift: NDArray[np.float64],
) -> NDArray[np.float64]:
    """(image of each class, class of the density, node) activations; everything of the second class is moved.

    A density that is moved has at a value what the unmoved one has at the value moved back.
    """
    parts = [read_range(bench.train.samples, *rows) for rows in _ranges(bench.train, codes)]
    rows, counts = np.concatenate(parts), np.array([len(part) for part in parts])
    labels = np.repeat(np.arange(2, dtype=np.uint8), counts)
    data = TrainingData(Samples(rows, len(rows), rows.shape[1], rows.dtype), np.arange(2), labels, counts)
    plan = plan_model(settings, data, FitPlace(None, False, bench.nodes_per_block, bench.memory_limit))
    job = FitJob(
        plan,
        settings.seed,
        measured.job.preparation,
        labels,
        EQUAL_PRIORS,
        settings.criterion,
        settings.location,
        settings.spread,
    )
    offsets = np.zeros((2, 2, settings.n_nodes))
    offsets[0, 1], offsets[1, 0] = -shift, shift
    return graph.respond(
        job, graph.place(rows), images, settings.bandwidth, settings.bandwidth_spread, "table", offsets=offsets
    )


def write_example(example: Example, path: Path) -> None:
    """Into one file, whole or not at all."""
    arrays: dict[str, Any] = {
        field.name: getattr(example, field.name) for field in fields(Example) if field.name != "densities"
    }
    for i, found in enumerate(example.densities):
        of_node = asdict(found)
        tested = of_node.pop("tested")
        arrays |= {f"{name}_{i}": value for name, value in of_node.items()}
        arrays |= {f"tested_{i}_{k}": values for k, values in enumerate(tested)}
    begun = path.with_name(f".{path.name}.{os.getpid()}")
    with begun.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
    begun.replace(path)


def read_example(path: Path, pair: Pair, seed: int) -> Example | None:
    """What an earlier call wrote, if it is of this pair and seed and can be read."""
    try:
        with np.load(path, allow_pickle=False) as stored:
            arrays = dict(stored)
        densities = [
            NodeDensities(
                int(arrays[f"node_{i}"]),
                int(arrays[f"of_class_{i}"]),
                arrays[f"values_{i}"],
                arrays[f"densities_{i}"],
                [arrays[f"tested_{i}_{k}"] for k in range(2)],
            )
            for i in range(2)
        ]
        first, second = arrays["pair"].tolist()
        found = Example(
            (first, second),
            int(arrays["seed"]),
            arrays["divergences"],
            arrays["ratios"],
            arrays["images"],
            arrays["responses"],
            densities,
        )
    except (OSError, KeyError, ValueError, EOFError, BadZipFile):
        return None
    return found if (found.pair, found.seed) == (pair, seed) else None
