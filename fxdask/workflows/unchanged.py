"""Refuse results of samples that changed while a job read them, because it would mix old and new values."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from dask.array import Array as DaskArray

from fxdask.errors import ChangedSamplesError
from fxdask.store.sources import fingerprint, location_of

__all__ = ["changed_samples", "file_versions", "unchanged_files"]


def file_versions(handle: Any) -> str | None:
    """A digest of the names, sizes and times of the samples' files; None if there are no files, or no times."""
    return None if isinstance(handle, (np.ndarray, DaskArray)) else fingerprint(handle)


def changed_samples(handle: Any) -> ChangedSamplesError:
    """The error about samples that changed during a job."""
    where = None if isinstance(handle, (np.ndarray, DaskArray)) else location_of(handle)
    return ChangedSamplesError(
        f"the samples {f'at {where} ' if where else ''}changed while this call read them, so its result would mix old "
        "and new values; make the same call again with samples that stay as they are"
    )


@contextmanager
def unchanged_files(handle: Any) -> Iterator[None]:
    """Refuse the result of a ``with`` block if the files of the samples changed in it."""
    before = file_versions(handle)
    yield
    if file_versions(handle) != before:
        raise changed_samples(handle)
