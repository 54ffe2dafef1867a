"""Choosing a plan that fits into memory, or explaining why none does."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import fields, replace
from operator import lt

from fxdask.errors import InvalidInputError, MemoryPlanError
from fxdask.planning.fit_plan import FitPlan
from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import SHARE_OF_LIMIT, Resources
from fxdask.planning.prediction import SECONDS_PER_TASK
from fxdask.sizes import FULL_TILE_NODES, LANES, MIB, format_bytes

__all__ = ["plan_fit", "replanned"]

VALUES_BYTES_PER_BLOCK = 48 * MIB
WEIGHTS_BYTES_PER_BLOCK = 32 * MIB
FEWEST_BLOCKS = 24
BLOCKS_PER_THREAD = 3
SECONDS_PER_PRODUCT = 1e-11
"""Of a quick thread, for the product of a feature and a weight."""
SECONDS_PER_VALUE = 2e-9
"""Of a quick thread, for the order statistics of a projected value."""
MOST_PARTS = 8
"""Parts of a structured transform that are separate blocks, so that several threads share it."""
SAMPLES_PER_CLASS_AND_CHUNK = 8192
FEWEST_SAMPLES_PER_CLASS_AND_CHUNK = 256
WAYS = (False, True)
"""Whether a streamed fit counts the values inside its brackets before it keeps some of them."""
REMEDY = "give workers more memory or fewer threads each, or raise memory_limit for local threads"


def plan_fit(
    size: FitSize,
    nodes_per_block: int | str = "auto",
    *,
    samples: SampleFacts | None = None,
    resources: Resources | None = None,
) -> FitPlan:
    """Split a fit into node blocks, and each block into passes over the samples, so that tasks fit into memory.

    Parameters
    ----------
    size : FitSize
    nodes_per_block : int or "auto"
        "auto" chooses whole tiles with about 48 MiB of projected values; more on so many threads that
        the scheduler could not feed them with such blocks; or, if the values of one tile do not fit,
        as many nodes as can be streamed. The choice never changes a result.
    samples : SampleFacts, optional
        Type and location of the samples.
    resources : Resources, optional
        Memory and threads; if None, memory is not checked.

    Returns
    -------
    FitPlan

    Examples
    --------
    >>> from fxdask.planning.fit_plan import FitPlan
    >>> from fxdask.planning.fit_size import FitSize, SampleFacts
    >>> from fxdask.planning.fit_search import plan_fit
    >>> from fxdask.planning.machine import Resources
    >>> small = Resources(limit=512 * 2**20, baseline=140 * 2**20, threads=1, processes=2)
    >>> on_disk = SampleFacts(in_memory=False, probes_in_memory=False)
    >>> size = FitSize(n_nodes=2_000, n_features=784, class_counts=(700_000, 700_000), n_selected=10)
    >>> plan = plan_fit(size, samples=on_disk, resources=small)
    >>> plan.is_streamed, plan.nodes_per_block, plan.passes_per_block
    (True, 96, 1)
    """
    n_nodes, n_selected = size.n_nodes, size.n_selected
    if n_selected > n_nodes:
        raise InvalidInputError(
            f"n_selected is {n_selected} but there are only {n_nodes} nodes; "
            f"set n_selected to {n_nodes} or fewer, or n_nodes to {n_selected} or more"
        )
    automatic = nodes_per_block == "auto"
    per_block = _nodes_of_whole_block(size, resources) if automatic else int(nodes_per_block)
    plan = _planned(size, min(per_block, n_nodes), samples or SampleFacts(), resources)
    if resources is not None:
        plan = _fitting_plan(plan, resources, automatic=automatic)
        _refuse_model_larger_than_memory(plan, resources)
    return plan


def _fitting_plan(plan: FitPlan, resources: Resources, *, automatic: bool) -> FitPlan:
    """The plan itself if it fits into memory, or another one that does."""
    while automatic and plan.task_bytes > resources.per_task and plan.nodes_per_block > plan.tile.nodes:
        fewer = max(1, plan.nodes_per_block // 2 // plan.tile.nodes) * plan.tile.nodes
        plan = replace(plan, nodes_per_block=fewer, nodes_per_pass=0)
    if plan.task_bytes > resources.per_task:
        return _streamed(plan, resources, automatic=automatic)
    few_nodes = plan.nodes_per_block < min(FULL_TILE_NODES, plan.n_nodes)
    if automatic and few_nodes and not plan.samples.in_memory and not plan.needs_all_values:
        # Every block reads all samples, and streaming has more nodes per block, so it may read less.
        with contextlib.suppress(MemoryPlanError):
            return min(plan, _streamed(plan, resources, automatic=True), key=lambda either: either.bytes_read)
    return plan


def _refuse_model_larger_than_memory(plan: FitPlan, resources: Resources) -> None:
    """Check that two copies of the model fit into the caller's memory: building it needs both."""
    allowed = resources.per_task * resources.threads if resources.with_caller else resources.caller_bytes
    # Tables are made one by one, so that only they themselves are there twice.
    if allowed is not None and 2 * plan.model_bytes > allowed:
        fewer = "" if plan.keeps_tables else ', pass keep_projections="table" with a rule that allows it,'
        remedy = "raise memory_limit" if resources.with_caller else "call from a machine with more memory"
        raise MemoryPlanError(
            f"the fitted model itself needs {format_bytes(2 * plan.model_bytes)} but this process may use "
            f"{format_bytes(max(0, allowed))}; reduce n_selected{fewer} or {remedy}"
        )


def replanned(plan: FitPlan, nodes_per_block: int) -> FitPlan:
    """The same fit with another number of nodes per block."""
    return plan_fit(plan.size, nodes_per_block, samples=plan.samples, resources=plan.resources)


def _planned(size: FitSize, nodes_per_block: int, samples: SampleFacts, resources: Resources | None) -> FitPlan:
    known = {field.name: getattr(size, field.name) for field in fields(FitSize)}
    return FitPlan(**known, nodes_per_block=nodes_per_block, samples=samples, resources=resources)


def _nodes_of_whole_block(size: FitSize, resources: Resources | None) -> int:
    per_tile = size.tile_shape.nodes
    if size.is_structured:
        return _nodes_of_structured_block(size, resources)
    threads = resources.threads * resources.processes if resources else 1
    by_values = max(VALUES_BYTES_PER_BLOCK // (4 * size.n_samples), _nodes_to_feed(size, threads))
    by_weights = WEIGHTS_BYTES_PER_BLOCK // (4 * size.n_features)
    # With few large blocks, some threads would be idle while the last block runs.
    by_count = size.n_nodes // max(FEWEST_BLOCKS, BLOCKS_PER_THREAD * threads)
    return per_tile * max(1, min(by_values, by_weights, by_count) // per_tile)


def _nodes_of_structured_block(size: FitSize, resources: Resources | None) -> int:
    """Whole transforms, or equal parts of one if there would be fewer blocks than tasks at a time.

    Every part transforms all samples again, but most of the time of a block is for its order statistics.
    """
    per_tile = size.tile_shape.nodes
    threads = resources.threads * resources.processes if resources else 1
    by_values = max(VALUES_BYTES_PER_BLOCK // (4 * size.n_samples), _nodes_to_feed(size, threads))
    by_count = size.n_nodes // max(FEWEST_BLOCKS, threads)
    per_block = per_tile * max(1, min(by_values, by_count) // per_tile)
    while per_block * threads > size.n_nodes and per_block > per_tile // MOST_PARTS:
        per_block //= 2
    return per_block


def _nodes_to_feed(size: FitSize, threads: int) -> int:
    """Nodes of a block that takes so long that the scheduler sends each thread its next block in time."""
    per_value = SECONDS_PER_VALUE + (0 if size.is_structured else size.n_features * SECONDS_PER_PRODUCT)
    return int(threads * SECONDS_PER_TASK / (size.n_samples * per_value))


def _streamed(plan: FitPlan, resources: Resources, *, automatic: bool) -> FitPlan:
    """The plan that holds the values of one chunk of samples at a time, with the least work.

    The values inside brackets are kept, or they are counted first, which takes more scans and less memory.
    """
    _refuse_streaming(plan, resources)
    tried = [
        _most_nodes_per_pass(replace(plan, is_counted=is_counted), resources, automatic=automatic)
        for is_counted in WAYS
    ]
    fitting = [found for found in tried if found.task_bytes <= resources.per_task]
    if fitting:
        return min(fitting, key=lambda found: found.work)
    remedy = REMEDY
    if not automatic and plan.nodes_per_block > plan.tile.nodes:
        remedy = f"set nodes_per_block to {plan.tile.nodes} or fewer, or {REMEDY}"
    least = min(found.task_bytes for found in tried)
    raise MemoryPlanError(
        f"a task needs {format_bytes(least)} at least but may use "
        f"{format_bytes(max(0, resources.per_task))}: {SHARE_OF_LIMIT} of the limit of {format_bytes(resources.limit)} "
        f"less the {format_bytes(resources.baseline)} already in use, for {resources.threads} "
        f"{'task' if resources.threads == 1 else 'tasks'} at a time; {remedy}"
    )


def _most_nodes_per_pass(plan: FitPlan, resources: Resources, *, automatic: bool) -> FitPlan:
    """The first streamed plan that fits into memory, or else the last one that was tried."""
    most = plan.nodes_per_block
    if automatic:
        # Every pass reads all samples, so many nodes per pass are better, up to one block per thread.
        most = -(-plan.n_nodes // (resources.threads * resources.processes))
    tried = plan
    for chunk, per_pass in _chunks_and_passes(plan, most):
        per_block = min(plan.n_nodes, max(per_pass, plan.tile.nodes)) if automatic else plan.nodes_per_block
        tried = replace(
            plan, nodes_per_block=per_block, nodes_per_pass=min(per_pass, per_block), samples_per_chunk=chunk
        )
        if tried.task_bytes <= resources.per_task:
            break
    return tried


def _refuse_streaming(plan: FitPlan, resources: Resources) -> None:
    """Refuse a plan that needs the values of all samples at once."""
    if "projections" in plan.kept:
        needy, instead = 'keep_projections="all"', 'set keep_projections to "selected"'
    elif plan.sorts_columns:
        needy, instead = "a criterion that sorts all values of a node", "choose another criterion"
    else:
        return
    fewer = replace(plan, nodes_per_block=plan.tile.nodes, nodes_per_pass=0)
    fits = fewer.task_bytes <= resources.per_task
    remedy = f"set nodes_per_block to {plan.tile.nodes}" if fits else f"{REMEDY}, or {instead}"
    raise MemoryPlanError(
        f"{needy} needs {format_bytes(plan.task_bytes)} for one block of {plan.nodes_per_block} "
        f"nodes but a task may use {format_bytes(max(0, resources.per_task))}; {remedy}"
    )


def _chunks_and_passes(plan: FitPlan, most: int) -> Iterator[tuple[int, int]]:
    """(samples per chunk, nodes per pass) to try, the best first.

    A part of a tile costs as much multiplication as the whole tile, so smaller chunks are tried first.
    """
    per_tile, chunks = plan.tile.nodes, _chunks(plan)
    for chunk in chunks:
        tiles = max(1, most // per_tile)
        while tiles:
            yield chunk, min(tiles * per_tile, plan.n_nodes)
            tiles = min(tiles - 1, tiles * 15 // 16)
    part = per_tile // 2
    while part >= LANES:
        for chunk in chunks:
            yield chunk, part
        part //= 2


def _chunks(plan: FitPlan) -> list[int]:
    """Samples per chunk to try, many first: whole tiles, with enough samples of every class that has brackets."""
    kept = replace(plan, samples_per_chunk=plan.tile.samples).kept_counts
    with_brackets = max(1, sum(map(lt, kept, plan.class_counts)))
    tiles, fewest_tiles = (
        max(1, with_brackets * per_class // plan.tile.samples)
        for per_class in (SAMPLES_PER_CLASS_AND_CHUNK, FEWEST_SAMPLES_PER_CLASS_AND_CHUNK)
    )
    counts = [tiles]
    while tiles > fewest_tiles:
        tiles = max(fewest_tiles, tiles // 2)
        counts.append(tiles)
    return [min(tiles * plan.tile.samples, plan.n_samples) for tiles in counts]
