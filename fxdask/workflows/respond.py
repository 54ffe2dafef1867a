"""Compute the activations of all nodes, selected or not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.execution import respond as graphs
from fxdask.execution.graphs import broadcast
from fxdask.execution.resources import checked_limit, measured_resources
from fxdask.execution.scan import scan_samples
from fxdask.kernels.preprocessing import checked_rows
from fxdask.planning.machine import SHARE_OF_LIMIT
from fxdask.planning.respond_plan import ResponsePlan, plan_responses
from fxdask.progress import progress_bar
from fxdask.sizes import format_bytes, row_ranges
from fxdask.store.sources import open_rows
from fxdask.tasks.respond import ResponseOptions, ResponsePoints
from fxdask.tasks.telemetry import available_bytes
from fxdask.workflows.data import Samples
from fxdask.workflows.model import FittedModel

__all__ = ["loaded_rows", "respond", "response_batches"]


def respond(
    model: FittedModel, points: NDArray, training: Samples | None, memory_limit: Any = None, *, verbose: bool = False
) -> NDArray[np.float64]:
    """(point, feature) raw samples -> (point, class, node) activations, from the store or from the training samples."""
    plan = _plan(model, len(points), training, memory_limit)
    shape = (len(points), model.job.plan.n_classes, model.job.plan.n_nodes)
    if plan.points_at_a_time < len(points):
        raise MemoryPlanError(
            f"the activations of {len(points):,} samples take {format_bytes(8 * int(np.prod(shape)))}, but only those "
            f"of {plan.points_at_a_time:,} samples fit into memory together; pass so many at a time, raise "
            "memory_limit, or write them to a file: fxdask responses"
        )
    ((_, activations),) = response_batches(model, points, training, plan, verbose=verbose)
    return activations


def response_batches(
    model: FittedModel,
    points: NDArray,
    training: Samples | None,
    plan: ResponsePlan | None = None,
    memory_limit: Any = None,
    *,
    verbose: bool = False,
) -> Iterator[tuple[int, NDArray[np.float64]]]:
    """(index of the first point, (point, class, node) activations), for as many points as fit into memory."""
    model.check_weights()
    checked_rows(points)
    plan = plan or _plan(model, len(points), training, memory_limit)
    # Tasks cache by job; a copy of the job makes the cache end with this call, not with the model.
    nodes = plan.fit.nodes_per_block
    job = replace(model.job, plan=replace(model.job.plan, nodes_per_block=nodes, nodes_per_pass=nodes))
    settings, handle = model.settings, _training_handle(model, training)
    options = ResponseOptions(settings.bandwidth, settings.bandwidth_spread, model.scorer.density)
    for start, stop in row_ranges(len(points), plan.points_at_a_time):
        with progress_bar("responding", shown=verbose) as progress:
            yield start, graphs.respond(job, handle, ResponsePoints(points[start:stop]), options, progress)


def loaded_rows(samples: Samples) -> NDArray:
    """(sample, feature) all samples in memory."""
    if isinstance(samples.handle, (np.ndarray, DaskArray)):
        return np.asarray(samples.handle)
    return open_rows(samples.handle)(0, samples.n_samples)


def _plan(model: FittedModel, n_points: int, training: Samples | None, memory_limit: Any) -> ResponsePlan:
    """Nodes for each task and points at a time that fit into the memory of the tasks and of this process."""
    resources = measured_resources(memory_limit, compiles=True)
    limit = checked_limit(memory_limit)
    free = available_bytes() if limit is None else min(limit, available_bytes())
    return plan_responses(model.job.plan, n_points, resources, int(SHARE_OF_LIMIT * free), from_store=training is None)


def _training_handle(model: FittedModel, training: Samples | None) -> Any:
    """Handle of the checked training samples, or None if the tasks read projections from the store."""
    if training is None:
        if "projections" not in model.job.plan.kept:
            raise InvalidInputError(
                'responses need the training samples; pass X_train, or fit with keep_projections="all"'
            )
        return None
    scan = scan_samples(training.handle, training.n_samples, training.n_features, model.settings.normalize)
    if scan.digest != model.samples_digest:
        raise InvalidInputError("X_train differs from the samples of the fit; pass the same samples in the same order")
    if isinstance(training.handle, DaskArray):
        return broadcast(np.asarray(training.handle))
    return broadcast(training.handle)
