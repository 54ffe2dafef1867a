"""Parts that all graphs share: constants, row ranges of samples, merges as a tree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import Delayed, delayed
from distributed import Future

from fxdask.execution.client import active_client, sending
from fxdask.sizes import row_ranges, rows_per_read
from fxdask.store.sources import Source
from fxdask.tasks.reading import as_declared

__all__ = ["SamplesHandle", "broadcast", "is_in_memory", "merged", "row_tasks", "shared_constant"]

MERGE_FAN_IN = 8

SamplesHandle = Source | Future | DaskArray
"""Samples in a form that a graph can hold: an array, an address, a Future on the workers, or a Dask array."""


def broadcast(samples: SamplesHandle) -> SamplesHandle:
    """Samples in this process's memory -> a Future with a copy on every worker; other samples are returned as given."""
    client = active_client()
    if client is None or not is_in_memory(samples):
        return samples
    with sending(client):
        return client.scatter(samples, broadcast=True, hash=False)


def is_in_memory(samples: SamplesHandle) -> bool:
    """Whether the samples are in this process's memory."""
    return isinstance(samples, np.ndarray)


def shared_constant(value: Any, name: str) -> Any:
    """A value as one entry of the graph that all tasks refer to, instead of a copy in each task."""
    if value is None or isinstance(value, Future):
        return value
    # Dask groups keys by the words before the first random one, so all constants of a stage are one group. Its
    # scheduler never forgets a group.
    return delayed(value, traverse=False, name=f"fxdask-{uuid4().hex}-{name}")


def row_tasks(
    samples: SamplesHandle, n_rows: int, n_features: int, per_range: int | None = None
) -> list[tuple[int, int | None, Any]]:
    """(start, stop, samples) of each row range.

    The ranges depend only on the shape, so that sums over them are the same whatever the chunks.
    For a Dask array, the rows themselves are passed as samples, and stop is None.
    """
    if n_rows == 0:
        return []
    per_range = per_range or rows_per_read(n_features)
    ranges = list(row_ranges(n_rows, per_range))
    if isinstance(samples, DaskArray):
        parts = samples.rechunk({0: per_range, 1: -1}).to_delayed()[:, 0]
        declared = delayed(as_declared, pure=False)
        return [
            (start, None, declared(part, (stop - start, n_features), samples.dtype.str))
            for (start, stop), part in zip(ranges, parts, strict=True)
        ]
    shared = shared_constant(samples, "samples")
    return [(start, stop, shared) for start, stop in ranges]


def merged(parts: list[Delayed], merge: Callable[[Sequence[Any]], Any]) -> list[Delayed]:
    """Many tasks -> a list of one task that merges their results as a tree; an empty list stays empty."""
    join, level = delayed(merge, pure=False), parts
    while len(level) > 1:
        level = [join(level[i : i + MERGE_FAN_IN]) for i in range(0, len(level), MERGE_FAN_IN)]
    return level
