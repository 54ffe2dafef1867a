"""Dask DataFrames: as an array of known shape, and labelled partition by partition."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dask.array as da
import numpy as np
from dask.array import Array as DaskArray
from dask.delayed import delayed

from fxdask.execution.compute import compute
from fxdask.execution.graphs import shared_constant
from fxdask.kernels.scorer import Scorer
from fxdask.tasks import frames as tasks
from fxdask.tasks.frames import FrameResult

__all__ = ["frame_as_array", "is_dask_frame", "lazy_frame"]


def is_dask_frame(value: Any) -> bool:
    """Whether this is a Dask DataFrame."""
    # A Dask Series has columns too.
    return hasattr(value, "to_dask_array") and hasattr(value, "columns") and value.ndim == 2


def frame_as_array(frame: Any, columns: Sequence[str], dtype: np.dtype) -> DaskArray:
    """A Dask DataFrame -> (sample, feature) Dask array of known chunks; the frame is read once for its lengths.

    The partitions are those of the optimised frame. ``to_dask_array(lengths=True)`` counts the rows of
    these, but makes its chunks from the partitions before: after a choice of columns Dask may read
    several files as one partition.
    """
    names = list(columns)
    partitions = frame[names].to_delayed()
    lengths = compute([delayed(len, pure=False)(partition) for partition in partitions])
    convert = delayed(tasks.partition_rows, pure=False)
    blocks = [
        da.from_delayed(convert(partition, names, dtype.str), shape=(length, len(names)), dtype=dtype)
        for partition, length in zip(partitions, lengths, strict=True)
        if length
    ]
    return da.concatenate(blocks) if blocks else da.zeros((0, len(names)), dtype=dtype)


def lazy_frame(scorer: Scorer, frame: Any, columns: Sequence[str], dtype: np.dtype, result: FrameResult) -> Any:
    """A Dask DataFrame -> a lazy Series or DataFrame of results with the same index and divisions; nothing is read."""
    empty = frame._meta
    nothing = result.finish(np.empty((0, scorer.n_classes)))
    return frame.map_partitions(
        tasks.score_partition,
        shared_constant(scorer, "scorer"),
        list(columns),
        dtype.str,
        result,
        meta=result.beside(empty, nothing),
    )
