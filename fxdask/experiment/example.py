"""The data of the report's figures: one pair of classes in detail."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import numpy as np
from dask.delayed import delayed
from numpy.typing import NDArray

from fxdask.execution.compute import compute
from fxdask.execution.graphs import shared_constant
from fxdask.execution.respond import respond
from fxdask.experiment import evaluate_pair as tasks
from fxdask.experiment.evaluate_pair import NodeDensities
from fxdask.experiment.results import Pair
from fxdask.experiment.seeds import (
    EQUAL_PRIORS,
    ExperimentData,
    ScoredPair,
    SeedStatistics,
    pair_job,
    score_nodes,
    select_nodes,
)
from fxdask.store.sources import array_of_npy
from fxdask.tasks.reading import read_range
from fxdask.tasks.respond import ResponseOptions, ResponsePoints
from fxdask.workflows.data import as_samples
from fxdask.workflows.model import TrainingData
from fxdask.workflows.plan import FitOptions, plan_model
from fxdask.workflows.settings import FitSettings

__all__ = ["Example", "make_example", "read_example", "write_example"]


@dataclass(frozen=True, kw_only=True)
class Example:
    """Data of the figures, for one pair and one seed."""

    pair: Pair
    seed: int
    divergences: NDArray[np.float64]
    """(class of the pair, node) extended criterion."""
    ratios: NDArray[np.float64]
    """(node,) Fisher's criterion."""
    images: NDArray[np.uint8]
    """(class of the pair, pixel) one test image of each class."""
    responses: NDArray[np.float64]
    """(image, class of the density, node) activations of every node."""
    densities: list[NodeDensities]
    """Densities of the best node of each class."""

    def is_whole(self, n_nodes: int) -> bool:
        """Whether every array has the expected shape."""
        shapes = (self.divergences.shape, self.ratios.shape, self.responses.shape, self.images.shape[:-1])
        same_lengths = all(found.densities.shape == (2, *found.values.shape) for found in self.densities)
        return shapes == ((2, n_nodes), (n_nodes,), (2, 2, n_nodes), (2,)) and same_lengths


def make_example(
    data: ExperimentData, settings: FitSettings, measured: SeedStatistics, pair: Pair, *, mean_shift: bool
) -> Example:
    """Compute all nodes' scores and their responses to two test images, and the densities of two nodes."""
    scored = score_nodes(measured, data.data.classes, pair, mean_shift=mean_shift)
    choice = select_nodes(scored, settings.n_selected)
    firsts = [data.test.rows[k][0] for k in scored.codes]
    images = np.stack([read_range(data.test.samples, first, first + 1)[0] for first in firsts])
    job = shared_constant(pair_job(data, settings, measured), "pair")
    densities_of = delayed(tasks.node_densities, pure=False)
    (densities,) = compute([densities_of(job, choice, "extended_fisher")])
    return Example(
        pair=pair,
        seed=settings.seed,
        divergences=scored.scores["extended_fisher"],
        ratios=scored.scores["fisher"][0],
        images=images,
        responses=_responses(data, settings, measured, scored, images),
        densities=densities,
    )


def _responses(
    data: ExperimentData, settings: FitSettings, measured: SeedStatistics, scored: ScoredPair, images: NDArray[np.uint8]
) -> NDArray[np.float64]:
    """(image of each class, class of the density, node) activations with the second class shifted.

    A shifted density at a value equals the original density at the value minus the shift.
    """
    parts = [read_range(data.train.samples, *data.train.rows[k]) for k in scored.codes]
    counts = np.array([len(part) for part in parts])
    labels = np.repeat(np.arange(2, dtype=np.uint8), counts)
    # The pair is written to a file, like all training images, because workers read their samples by path.
    file = data.folder / "pair.npy"
    np.save(file, np.concatenate(parts))
    samples = as_samples(file)
    options = FitOptions(nodes_per_block=data.nodes_per_block, memory_limit=data.memory_limit)
    plan = plan_model(settings, TrainingData(samples, np.arange(2), labels, counts), options)
    class_norms = measured.job.class_norms[list(scored.codes)]
    job = replace(measured.job, plan=plan, codes=labels, priors=EQUAL_PRIORS, class_norms=class_norms, store=None)
    offsets = np.zeros((2, 2, settings.n_nodes))
    offsets[0, 1], offsets[1, 0] = -scored.shift, scored.shift
    response_options = ResponseOptions(settings.bandwidth, settings.bandwidth_spread, "table")
    return respond(job, samples.handle, ResponsePoints(images, offsets), response_options)


def write_example(example: Example, path: Path, identity: Mapping[str, Any]) -> None:
    """Write an example and the experiment's identity into one file, atomically."""
    arrays: dict[str, Any] = {"identity": json.dumps(identity, sort_keys=True)} | {
        field.name: getattr(example, field.name) for field in fields(Example) if field.name != "densities"
    }
    for i, found in enumerate(example.densities):
        of_node = asdict(found)
        tested = of_node.pop("tested")
        arrays |= {f"{name}_{i}": value for name, value in of_node.items()}
        arrays |= {f"tested_{i}_{k}": values for k, values in enumerate(tested)}
    partial = path.with_name(f".{path.name}.begun")
    with partial.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
    partial.replace(path)


def read_example(path: Path, identity: Mapping[str, Any], pair: Pair, seed: int) -> Example | None:
    """Read an example; None if it is missing, damaged, or of another experiment, pair or seed."""
    try:
        with ZipFile(path) as archive:
            arrays = {name.removesuffix(".npy"): array_of_npy(archive.read(name)) for name in archive.namelist()}
        if str(arrays["identity"]) != json.dumps(identity, sort_keys=True):
            return None
        densities = [
            NodeDensities(
                node=int(arrays[f"node_{i}"]),
                of_class=int(arrays[f"of_class_{i}"]),
                values=arrays[f"values_{i}"],
                densities=arrays[f"densities_{i}"],
                tested=[arrays[f"tested_{i}_{k}"] for k in range(2)],
            )
            for i in range(2)
        ]
        first, second = arrays["pair"].tolist()
        found = Example(
            pair=(first, second),
            seed=int(arrays["seed"]),
            divergences=arrays["divergences"],
            ratios=arrays["ratios"],
            images=arrays["images"],
            responses=arrays["responses"],
            densities=densities,
        )
        is_wanted = (found.pair, found.seed) == (pair, seed) and found.is_whole(identity["n_nodes"])
    except Exception:  # a damaged archive, or a damaged array in it, can fail in many ways
        return None
    return found if is_wanted else None
