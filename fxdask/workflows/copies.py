"""Samples of a Dask collection, which is read once: into memory, or copied beside the store of the result."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray

from fxdask.errors import MemoryPlanError
from fxdask.execution.compute import Progress
from fxdask.execution.copy import FramePartitions, copy_array, copy_partitions, load_partitions
from fxdask.execution.frames import is_dask_frame
from fxdask.execution.resources import measured_resources
from fxdask.execution.workers import check_reachable
from fxdask.planning.machine import SHARE_OF_LIMIT
from fxdask.progress import progress_bar
from fxdask.sizes import format_bytes
from fxdask.store.group import check_room
from fxdask.store.lease import exclusive_lease
from fxdask.store.parts import create_parts, remove_parts, remove_parts_beside
from fxdask.store.transaction import is_finished_at
from fxdask.workflows.data import Samples, as_samples, dask_frame_columns
from fxdask.workflows.tables import named_features, opened

__all__ = ["CopyOptions", "readable_samples", "temporary_folder"]


@dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Where a Dask collection is copied, and when."""

    store: str | None
    """The store of the result: copies lie beside it while the call runs."""
    overwrite: bool = False
    memory_limit: Any = None
    verbose: bool = False
    most_loaded: int | None = None
    """Bytes up to which a DataFrame is loaded if there is no store, a longer one goes to a temporary folder; None:
    a DataFrame is always loaded, and refused if the memory is too small."""
    copies_array: bool
    """Whether an array would be read more than once."""
    features: Sequence[str] | NDArray | None = None
    """Names that a model was fitted with."""
    min_samples: int = 1


@contextmanager
def readable_samples(X: Any, options: CopyOptions) -> Iterator[Samples]:
    """Checked samples in any form; those of a Dask collection are read once, and copied for all later passes.

    The copies are removed at the end of the ``with`` block. A finished store needs none: either it
    holds the result of these samples, or the call is refused.
    """
    X, store = opened(X), options.store
    is_frame = is_dask_frame(X)
    is_large_array = isinstance(X, DaskArray) and options.copies_array and not X.nbytes <= (options.most_loaded or 0)
    is_done = store is not None and not options.overwrite and is_finished_at(store)
    if is_done or not (is_frame or is_large_array):
        yield as_samples(X, min_samples=options.min_samples, features=options.features)
    elif store is not None:
        with exclusive_lease(store):
            remove_parts_beside(store)
            with _copied(X, store, options) as samples:
                yield samples
    elif is_frame:
        with _without_store(X, options) as samples:
            yield samples
    else:
        with temporary_folder("the copy of X") as folder, _copied(X, str(Path(folder, "X")), options) as samples:
            yield samples


@contextmanager
def _without_store(X: Any, options: CopyOptions) -> Iterator[Samples]:
    """Load a DataFrame; a longer one than may be loaded is copied to a temporary folder, or refused."""
    free = int(SHARE_OF_LIMIT * measured_resources(options.memory_limit, local=True).limit)
    most = free if options.most_loaded is None else min(free, options.most_loaded)
    columns, dtype, names = dask_frame_columns(X, features=options.features)
    partitions = FramePartitions.of(X, columns, dtype)
    with named_features(names):
        loaded = load_partitions(partitions, most)
    n_bytes = sum(rows.nbytes for rows in loaded)
    if n_bytes > most and options.most_loaded is None:
        raise MemoryPlanError(
            f"the first {len(loaded)} of {len(partitions.rows)} partitions of X need {format_bytes(n_bytes)} but "
            f"{format_bytes(most)} of memory may be used without a store; pass store=, or more memory"
        )
    if n_bytes <= most:
        array = np.concatenate(loaded) if loaded else np.empty((0, len(columns)), dtype)
        del loaded
        yield Samples(handle=array, n_samples=len(array), n_features=len(columns), dtype=dtype, names=names)
        return
    with temporary_folder("the copy of X") as folder, _copied(X, str(Path(folder, "X")), options, loaded) as samples:
        del loaded
        yield samples


@contextmanager
def _copied(X: Any, store: str, options: CopyOptions, loaded: Sequence[NDArray] = ()) -> Iterator[Samples]:
    """Copy a collection beside a store for the time of a ``with`` block."""
    url = create_parts(store)
    try:
        check_reachable(url, "the copy of X")
        with progress_bar("copying", shown=options.verbose) as progress:
            if isinstance(X, DaskArray):
                samples = as_samples(X, min_samples=options.min_samples)
                check_room(store, samples.n_bytes)
                samples = replace(samples, handle=copy_array(samples.handle, url, progress))
            else:
                samples = _copied_frame(X, url, options.features, loaded, progress)
        yield samples
    finally:
        remove_parts(url)


def _copied_frame(
    X: Any, url: str, features: Sequence[str] | NDArray | None, loaded: Sequence[NDArray], progress: Progress | None
) -> Samples:
    """Copy the partitions of a DataFrame that are not loaded yet, and those that are."""
    columns, dtype, names = dask_frame_columns(X, features=features)
    with named_features(names):
        copy = copy_partitions(FramePartitions.of(X, columns, dtype), loaded, url, progress)
    return Samples(handle=copy, n_samples=copy.n_rows, n_features=len(columns), dtype=dtype, names=names)


@contextmanager
def temporary_folder(what: str) -> Iterator[str]:
    """A folder that is removed at the end, for copies; Dask's setting temporary-directory chooses its disk."""
    with tempfile.TemporaryDirectory(prefix="fxdask-", dir=dask.config.get("temporary-directory", None)) as folder:
        try:
            check_reachable(folder, what)
        except Exception as error:
            raise type(error)(f"{error}; or pass store= with such a path") from error
        yield folder
