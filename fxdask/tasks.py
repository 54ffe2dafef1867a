"""One worker's work on one block of nodes or one range of samples: read, compute, write."""

from __future__ import annotations

import hashlib
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.decision import FittedNetwork
from fxdask.kernels.density import bandwidths, log_density
from fxdask.kernels.preparation import FeatureSummary, Preparation, summarize
from fxdask.kernels.projection import ClassOrder, pad_rows, project_packed, project_tile, weight_tiles
from fxdask.kernels.selection import TopNodes, merge_top, top_nodes
from fxdask.kernels.statistics import SPREAD_SOURCES, class_statistics, node_tolerance, spread_of
from fxdask.kernels.weights import weight_block
from fxdask.plan import FitPlan, NodeBlock, row_ranges, rows_per_read
from fxdask.store.model import ModelStore
from fxdask.store.samples import Source, open_rows
from fxdask.store.scores import ScoreStore
from fxdask.threads import one_blas_thread

__all__ = [
    "FitJob",
    "FitSummary",
    "as_declared",
    "checked_rows",
    "fit_block",
    "log_score_block",
    "log_score_rows",
    "merge_summaries",
    "project_rows",
    "respond_block",
    "score_rows",
    "stage_rows",
    "survey_rows",
]


@dataclass(frozen=True)
class FitJob:
    """Everything a block's task needs besides the samples: it enters a graph once, not once per block."""

    plan: FitPlan
    seed: int
    preparation: Preparation
    codes: NDArray[np.integer]
    priors: NDArray[np.float64]
    criterion: str
    location: str
    spread: str
    store: str | None = None
    keep_all_projections: bool = False

    @cached_property
    def order(self) -> ClassOrder:
        """Where each sample stands once sorted by class."""
        return ClassOrder(self.codes, self.plan.n_classes)


@dataclass(frozen=True)
class FitSummary:
    """What comes back from one block or from several: small, whatever the number of samples.

    Without a store the divergences come back too, for there is nowhere else to put them.
    """

    top: TopNodes
    source_counts: NDArray[np.int64]  # (class, spread source)
    processes: dict[str, int]  # blocks computed, by host and process
    n_resumed: int
    divergences: dict[int, NDArray[np.float64]]  # by block index


def merge_summaries(parts: Sequence[FitSummary]) -> FitSummary:
    """Summaries of disjoint blocks, in any order -> the summary of all of them."""
    processes: Counter[str] = Counter()
    divergences: dict[int, NDArray[np.float64]] = {}
    for part in parts:
        processes.update(part.processes)
        divergences.update(part.divergences)
    return FitSummary(
        merge_top([part.top for part in parts]),
        np.sum([part.source_counts for part in parts], axis=0),
        dict(processes),
        sum(part.n_resumed for part in parts),
        divergences,
    )


def _rows(samples: Source, start: int, stop: int | None) -> NDArray:
    """The range of raw samples: read from where they are, or with no ``stop`` already the range itself."""
    return np.asarray(samples) if stop is None else open_rows(samples)(start, stop)


def this_process() -> str:
    """Host and process, as evidence of where a block was computed."""
    return f"{socket.gethostname()}:{os.getpid()}"


def checked_rows(rows: NDArray, start: int = 0) -> NDArray:
    """(sample, input) raw samples, unchanged; NaN and infinity are refused with their place."""
    if rows.dtype.kind == "f" and not np.isfinite(rows).all():
        sample, feature = np.argwhere(~np.isfinite(rows))[0]
        what = "NaN" if np.isnan(rows[sample, feature]) else "infinity"
        raise InvalidInputError(f"Input X contains {what}, first in sample {start + sample}, feature {feature}")
    return rows


def as_declared(rows: NDArray, shape: tuple[int, int], dtype: str) -> NDArray:
    """A chunk of a Dask array, unchanged, if it is what the array promised."""
    rows = np.asarray(rows)
    if rows.shape != shape or rows.dtype != np.dtype(dtype):
        raise InvalidInputError(
            f"X is a Dask array that promised {np.dtype(dtype)} of shape {shape} "
            f"but gave {rows.dtype} of shape {rows.shape}"
        )
    return rows


def survey_rows(samples: Source, start: int, stop: int | None, normalize: str | None) -> tuple[FeatureSummary, bytes]:
    """Range of raw samples -> the summary of their inputs and a digest of their content."""
    rows = _rows(samples, start, stop)
    summary = summarize(rows, normalize)
    if not summary.is_finite:
        checked_rows(rows, start)
    canonical = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
    return summary, hashlib.sha256(canonical.data).digest()


def stage_rows(samples: Source, store: str, start: int, stop: int | None) -> None:
    """Range of raw samples -> their chunk of the store."""
    rows = checked_rows(_rows(samples, start, stop), start)
    ModelStore.open(store, "r+", finished=False).write_samples(start, rows)


@one_blas_thread()
def fit_block(job: FitJob, samples: Source, index: int) -> FitSummary:
    """One node block: weights, projections, statistics and scores; written if there is a store, then marked.

    A marked block is not computed again, so running a task twice does no harm.
    """
    block = job.plan.block(index)
    store = ModelStore.open(job.store, "r+", finished=False) if job.store else None
    if store and store.is_done(block):
        divergences, sources = (store.read_block(name, block) for name in ("divergences", "spread_source"))
        return FitSummary(*_top_and_counts(job, block, divergences, sources), {}, 1, {})
    weights = weight_block(job.seed, block.start, block.stop, job.plan.n_inputs)
    values = project_block(job, samples, weights, block.start)
    tolerance = node_tolerance(weights, job.preparation.largest)
    statistics = class_statistics(values, job.plan.class_slices, tolerance, job.location, job.spread)
    divergences = CRITERIA[job.criterion](statistics, job.priors, tolerance)
    if store:
        arrays: dict[str, NDArray] = {
            "weights": weights,
            "location": statistics.location,
            "spread": statistics.spread,
            "spread_source": statistics.source,
            "divergences": divergences,
        }
        store.write_block(block, arrays | ({"projections": values} if job.keep_all_projections else {}))
    return FitSummary(
        *_top_and_counts(job, block, divergences, statistics.source),
        processes={this_process(): 1},
        n_resumed=0,
        divergences={} if store else {index: divergences},
    )


def _top_and_counts(
    job: FitJob, block: NodeBlock, divergences: NDArray[np.float64], sources: NDArray[np.uint8]
) -> tuple[TopNodes, NDArray[np.int64]]:
    counts = np.array([np.bincount(row, minlength=len(SPREAD_SOURCES)) for row in sources])
    return top_nodes(divergences, block.start, job.plan.n_selected), counts


def project_block(job: FitJob, samples: Source, weights: NDArray[np.float32], first_node: int) -> NDArray[np.float32]:
    """(node, input) weights of a block, all samples -> (node, sample) values sorted by class."""
    return _project(samples, job.order, job, weights, first_node, job.preparation)


def _project(
    samples: Source,
    order: ClassOrder,
    job: FitJob,
    weights: NDArray[np.float32],
    first_node: int,
    prepare: Callable[[NDArray], NDArray[np.float32]],
) -> NDArray[np.float32]:
    tile = job.plan.tile
    values = np.empty((len(weights), len(order.codes)), np.float32)
    scratch = np.empty((tile.nodes, tile.samples), np.float32)
    tiles = weight_tiles(weights, first_node, tile.nodes)
    for start, rows in _read_tiles(samples, len(order.codes), job.plan):
        by_class, runs = order.runs(start, start + len(rows))
        project_tile(values, tiles, pad_rows(prepare(rows[by_class]), tile.samples), runs, scratch)
    return values


def _read_tiles(samples: Source, n_samples: int, plan: FitPlan) -> Iterator[tuple[int, NDArray]]:
    """Every tile of raw samples with the index of its first, in order, a few at a read.

    Files may have changed since they were surveyed, so what is read from them is checked again.
    """
    read = open_rows(samples)
    for start, stop in row_ranges(n_samples, rows_per_read(plan.n_inputs)):
        rows = read(start, stop)
        if not isinstance(samples, np.ndarray):
            checked_rows(rows, start)
        for low, high in row_ranges(stop - start, plan.tile.samples):
            yield start + low, rows[low:high]


@one_blas_thread()
def project_rows(
    job: FitJob, samples: Source, weights: NDArray[np.float32], start: int, stop: int | None
) -> NDArray[np.float32]:
    """(node, input) few weights, range of raw samples -> (node, sample) values in the samples' own order."""
    return project_packed(weights, job.preparation(_rows(samples, start, stop)), job.plan.tile)


@one_blas_thread()
def respond_block(
    job: FitJob,
    samples: Source | None,
    points: NDArray,
    rule: str | float,
    bandwidth_spread: str,
    index: int,
) -> NDArray[np.float64]:
    """(point, input) raw samples, one node block -> (point, class, node) activations.

    The training values come from the store where it keeps them all, else from the samples.
    """
    block = job.plan.block(index)
    weights = weight_block(job.seed, block.start, block.stop, job.plan.n_inputs)
    if samples is None:
        values = ModelStore.open(str(job.store)).read_block("projections", block)
    else:
        values = project_block(job, samples, weights, block.start)
    one_class = ClassOrder(np.zeros(len(points), np.uint8), 1)
    places = _project(points, one_class, job, weights, block.start, job.preparation.of_new)
    tolerance = node_tolerance(weights, job.preparation.largest)
    activations = np.empty((len(points), job.plan.n_classes, block.n_nodes))
    for k, columns in enumerate(job.plan.class_slices):
        own = np.sort(values[:, columns], axis=1)
        widths, _ = bandwidths(own, spread_of(own, tolerance, bandwidth_spread)[0], tolerance, rule)
        for i, (row, width) in enumerate(zip(own, widths, strict=True)):
            activations[:, k, i] = np.exp(log_density(places[i], row, width))
    return activations


@one_blas_thread()
def log_score_rows(
    network: FittedNetwork, samples: Source, start: int = 0, stop: int | None = None
) -> NDArray[np.float64]:
    """Range of raw samples -> (sample, class) ln y."""
    return network.log_scores(checked_rows(_rows(samples, start, stop), start))


def log_score_block(network: FittedNetwork, rows: NDArray, block_info: Any = None) -> NDArray[np.float64]:
    """One chunk of a lazy array -> (sample, class) ln y; Dask tells where in the array the chunk stands."""
    start = block_info[None]["array-location"][0][0] if block_info else 0
    return log_score_rows(network, rows, start)


def score_rows(
    network: FittedNetwork, classes: NDArray, samples: Source, store: str, start: int, stop: int | None
) -> tuple[NDArray[np.intp], str]:
    """Range of raw samples -> their chunk of labels and scores in the store; returns class codes and the process."""
    scores = log_score_rows(network, samples, start, stop)
    codes = scores.argmax(axis=1)
    ScoreStore.open(store, "r+", finished=False).write(start, classes[codes], scores)
    return codes, this_process()
