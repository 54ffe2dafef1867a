"""One worker's work on one block of nodes or one range of samples: read, compute, write."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.evidence import Tally, Work, merge_work, peak_bytes, this_process
from fxdask.job import FitJob
from fxdask.kernels.binned import densities
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.density import bandwidths, log_density
from fxdask.kernels.ordered import SortedRows
from fxdask.kernels.preparation import FeatureSummary, checked_rows, summarize
from fxdask.kernels.preparation import merge_summaries as merge_feature_summaries
from fxdask.kernels.projection import Projected, project_packed
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.selection import TopNodes, merge_top, top_nodes
from fxdask.kernels.statistics import (
    SPREAD_SOURCES,
    class_statistics,
    node_tolerance,
    row_groups,
    sorted_classes,
    spread_with_fallback,
)
from fxdask.kernels.weights import weight_block
from fxdask.plan import NodeBlock, row_ranges
from fxdask.projecting import project, sample_tiles
from fxdask.reading import read_range
from fxdask.store.model import ModelStore
from fxdask.store.samples import Source, place_of
from fxdask.streaming import streamed_statistics
from fxdask.threads import one_blas_thread

__all__ = [
    "FitSummary",
    "fit_block",
    "merge_summaries",
    "probe_rows",
    "project_rows",
    "respond_block",
    "stage_rows",
    "survey_rows",
]

ROWS_PER_SUMMARY = 768
BYTES_PER_RESPONSE = 2**24  # enough for long calls, which two threads need to keep out of each other's way


@dataclass(frozen=True)
class FitSummary:
    """What comes back from one block or from several: small, whatever the number of samples.

    Without a store the divergences come back too, for there is nowhere else to put them.
    """

    top: TopNodes
    source_counts: NDArray[np.int64]  # (class, spread source)
    processes: dict[str, Work]
    n_resumed: int
    divergences: dict[int, NDArray[np.float64]]  # by block index


def merge_summaries(parts: Sequence[FitSummary]) -> FitSummary:
    """Summaries of disjoint blocks, in any order -> the summary of all of them."""
    divergences: dict[int, NDArray[np.float64]] = {}
    for part in parts:
        divergences.update(part.divergences)
    return FitSummary(
        merge_top([part.top for part in parts]),
        np.sum([part.source_counts for part in parts], axis=0),
        merge_work(part.processes for part in parts),
        sum(part.n_resumed for part in parts),
        divergences,
    )


def survey_rows(samples: Source, start: int, stop: int | None, normalize: str | None) -> tuple[FeatureSummary, bytes]:
    """Range of raw samples -> the summary of their inputs and a digest of their content."""
    rows = read_range(samples, start, stop)
    # Piece by piece: float64 copies of all rows would take many times their memory.
    pieces = row_ranges(len(rows), ROWS_PER_SUMMARY)
    summary = merge_feature_summaries(summarize(rows[low:high], normalize) for low, high in pieces)
    if not summary.is_finite:
        checked_rows(rows, start)
    canonical = np.ascontiguousarray(rows, dtype=rows.dtype.newbyteorder("<"))
    return summary, hashlib.sha256(canonical.data).digest()


def probe_rows(samples: Source, start: int, stop: int | None, probed: NDArray[np.intp]) -> NDArray:
    """Range of raw samples -> the probed ones among them."""
    return read_range(samples, start, stop)[probed - start]


def stage_rows(samples: Source, store: str, start: int, stop: int | None) -> None:
    """Range of raw samples -> their chunk of the store."""
    rows = checked_rows(read_range(samples, start, stop), start)
    ModelStore.open(store, "r+", finished=False).write_samples(start, rows)


@one_blas_thread()
def fit_block(job: FitJob, samples: Source, probes: Source | None, index: int) -> FitSummary:
    """One node block: weights, projections, statistics and scores; written if there is a store, then marked.

    A marked block is not computed again, so running a task twice does no harm.
    """
    block = job.plan.block(index)
    store = job.opened_store
    if store and store.is_done(block):
        _, _, sources, divergences = store.read_block("statistics", block)
        return FitSummary(*_top_and_counts(job, block, divergences, sources.astype(np.uint8)), {}, 1, {})
    tally = Tally()
    weights = weight_block(job.seed, block.start, block.stop, job.plan.n_inputs)
    tolerance = node_tolerance(weights, job.preparation.largest)
    arrays = {"weights": weights} if "weights" in job.plan.kept else {}
    if probes is not None:
        statistics = streamed_statistics(job, samples, probes, weights, block, tolerance, tally)
    else:
        projected = _project_block(job, samples, weights, block, tally)
        if "projections" in job.plan.kept:
            arrays["projections"] = np.empty((block.n_nodes, job.plan.n_samples), np.float32)
        statistics = class_statistics(
            projected, tolerance, job.location, job.spread, job.scratch, arrays.get("projections")
        )
    divergences = CRITERIA[job.criterion](statistics, job.priors, tolerance)
    if store:
        arrays["statistics"] = np.stack([statistics.location, statistics.spread, statistics.source, divergences])
        if place_of(samples) == store.url:
            store.check_staged()
        store.write_block(block, arrays)
    return FitSummary(
        *_top_and_counts(job, block, divergences, statistics.source),
        processes={this_process(): Work(1, tally.bytes_read, tally.passes, tally.rows_repeated, peak_bytes())},
        n_resumed=0,
        divergences={} if store else {index: divergences},
    )


def _top_and_counts(
    job: FitJob, block: NodeBlock, divergences: NDArray[np.float64], sources: NDArray[np.uint8]
) -> tuple[TopNodes, NDArray[np.int64]]:
    counts = np.array([np.bincount(row, minlength=len(SPREAD_SOURCES)) for row in sources])
    return top_nodes(divergences, block.start, job.plan.n_selected), counts


def _project_block(
    job: FitJob, samples: Source, weights: NDArray[np.float32], block: NodeBlock, tally: Tally
) -> Projected:
    """(node, input) weights of a block, all samples -> their values."""
    tally.passes += 1
    (projected,) = project(job.tiles(samples, tally), job.plan.n_samples, weights, block.start, job.plan, job.scratch)
    return projected


@one_blas_thread()
def project_rows(
    job: FitJob, samples: Source, weights: NDArray[np.float32], start: int, stop: int | None
) -> NDArray[np.float32]:
    """(node, input) few weights, range of raw samples -> (node, sample) values in the samples' own order."""
    rows, tile = read_range(samples, start, stop), job.plan.tile
    values = np.empty((len(weights), len(rows)), np.float32)
    for low, high in row_ranges(len(rows), tile.samples):
        values[:, low:high] = project_packed(weights, job.preparation(rows[low:high]), tile)
    return values


@one_blas_thread()
def respond_block(
    job: FitJob,
    samples: Source | None,
    points: NDArray,
    rule: str | float,
    bandwidth_spread: str,
    density: str,
    offsets: NDArray[np.float64] | None,
    index: int,
) -> NDArray[np.float64]:
    """(point, input) raw samples, one node block -> (point, class, node) activations.

    The training values come from the store where it keeps them all, else from the samples. Where
    there are (point, class, node) offsets, a point's value at a node is moved by them first.
    """
    plan = job.plan
    block = plan.block(index)
    weights = weight_block(job.seed, block.start, block.stop, plan.n_inputs)
    one_class = np.zeros(len(points), np.uint8)
    tiles = sample_tiles(points, one_class, plan, job.preparation.of_new, Tally(), Scratch())
    (projected,) = project(tiles, len(points), weights, block.start, plan, Scratch())
    places = projected.gather(0)
    tolerance = node_tolerance(weights, job.preparation.largest)
    activations = np.empty((len(points), plan.n_classes, block.n_nodes))
    for k, rows, own in _trained_classes(job, samples, weights, block):
        sigma, _ = spread_with_fallback(own, bandwidth_spread, tolerance[rows])
        widths, _ = bandwidths(own.values, sigma, tolerance[rows], rule)
        at: NDArray[np.floating] = places[rows]
        if offsets is not None:
            at = at + offsets[:, k, block.start : block.stop][:, rows].T
        if density == "exact":
            each = zip(at, own.values, widths.tolist(), strict=True)
            activations[:, k, rows] = np.exp([log_density(*one) for one in each]).T
        else:
            activations[:, k, rows] = densities(at, own.values, widths, job.scratch).T
    return activations


def _trained_classes(
    job: FitJob, samples: Source | None, weights: NDArray[np.float32], block: NodeBlock
) -> Iterator[tuple[int, slice, SortedRows]]:
    """Each class's training values in turn, a few nodes at a time, ascending."""
    if samples is not None:
        projected = _project_block(job, samples, weights, block, Tally())
        yield from sorted_classes(projected, job.scratch, BYTES_PER_RESPONSE)
        return
    values = ModelStore.open(str(job.store)).read_block("projections", block)
    for k, columns in enumerate(job.plan.class_slices):
        for rows in row_groups(block.n_nodes, columns.stop - columns.start, BYTES_PER_RESPONSE):
            yield k, rows, SortedRows(values[rows, columns])
