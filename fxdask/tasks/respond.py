"""The task that computes the activations of one block of nodes, selected or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.bandwidth import bandwidth_floor, bandwidths
from fxdask.kernels.density.binned import densities
from fxdask.kernels.density.exact import log_density
from fxdask.kernels.order_statistics import SortedRows, row_groups
from fxdask.kernels.scratch import Scratch
from fxdask.kernels.statistics import sorted_classes, spread_with_fallback
from fxdask.sizes import NodeBlock
from fxdask.store.model import ModelStore
from fxdask.store.sources import Source
from fxdask.tasks.cache import job_cache
from fxdask.tasks.columns import ProjectedNodes
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import TileReader
from fxdask.tasks.telemetry import TaskCounters
from fxdask.tasks.threads import one_blas_thread

__all__ = ["ResponseOptions", "ResponsePoints", "respond_block"]

BYTES_PER_RESPONSE = 2**24  # large, because threads wait less for Python's lock when NumPy calls are long


@dataclass(frozen=True)
class ResponseOptions:
    """How the densities are computed."""

    bandwidth: str | float
    bandwidth_spread: str
    density: str


@dataclass(frozen=True)
class ResponsePoints:
    """Raw samples whose activations are wanted."""

    rows: NDArray
    """(point, feature)"""
    offsets: NDArray[np.float64] | None = None
    """(point, class, node) offsets, added to a point's value before the density of a class is evaluated."""


@one_blas_thread()
def respond_block(
    job: FitJob, samples: Source | None, points: ResponsePoints, options: ResponseOptions, index: int
) -> NDArray[np.float64]:
    """Raw samples, one node block -> (point, class, node) activations.

    The training values come from the training samples or, if ``samples`` is None, from the store.
    """
    block = job.plan.block(index)
    columns = ProjectedNodes(job, np.empty(0) if samples is None else samples, block, TaskCounters())
    point_values = _point_values(job, columns, points.rows)
    scratch, n_points = job_cache(job).scratch, len(points.rows)
    activations = np.empty((n_points, job.plan.n_classes, block.n_nodes))
    for k, rows, own in _trained_classes(job, columns, block, from_store=samples is None):
        tolerance = columns.tolerance[k, rows]
        sigma, _ = spread_with_fallback(own, options.bandwidth_spread, tolerance)
        floor = bandwidth_floor(sigma, tolerance, columns.tolerance[:, rows])
        widths, _ = bandwidths(own.values, sigma, floor, options.bandwidth)
        at: NDArray[np.floating] = point_values[rows]
        if points.offsets is not None:
            at = at + points.offsets[:, k, block.start : block.stop][:, rows].T
        if options.density == "exact":
            each = zip(at, own.values, widths.tolist(), strict=True)
            activations[:, k, rows] = np.exp([log_density(*one) for one in each]).T
        else:
            activations[:, k, rows] = densities(at, own.values, widths, scratch).T
    return activations


def _point_values(job: FitJob, columns: ProjectedNodes, points: NDArray) -> NDArray[np.float32]:
    """(point, feature) raw samples -> (node, point) values."""
    reader = TileReader(
        codes=np.zeros(len(points), np.uint8),
        plan=job.plan,
        preprocess=job.preprocessing.apply_checked,
        counters=TaskCounters(),
        scratch=Scratch(),
    )
    (values,) = columns.product(Scratch()).chunks(reader.tiles(points), len(points))
    return values.gather(0)


def _trained_classes(
    job: FitJob, columns: ProjectedNodes, block: NodeBlock, *, from_store: bool
) -> Iterator[tuple[int, slice, SortedRows]]:
    """(class, nodes, ascending training values), class by class, a few nodes at a time."""
    if not from_store:
        yield from sorted_classes(columns.all_values(), job_cache(job).scratch, BYTES_PER_RESPONSE)
        return
    values = ModelStore.open(str(job.store)).read_block("projections", block)
    for k, class_columns in enumerate(job.plan.class_slices):
        for rows in row_groups(block.n_nodes, class_columns.stop - class_columns.start, BYTES_PER_RESPONSE):
            yield k, rows, SortedRows(values[rows, class_columns])
