"""What users pass as samples and labels, turned into one thing or refused in one sentence."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from fxdask.errors import InvalidInputError
from fxdask.store.sources import (
    address_of_mapped,
    address_of_path,
    is_zarr_array,
    read_all,
    shape_and_dtype,
    source_of_zarr,
)

__all__ = [
    "Samples",
    "as_labels",
    "as_samples",
    "checked_length",
    "encode_labels",
    "is_remote",
    "plain_labels",
]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Checked samples: where they are, their shape and type, and their inputs' names if they have any."""

    handle: Any
    n_samples: int
    n_features: int
    dtype: np.dtype
    names: NDArray | None = None

    @property
    def n_bytes(self) -> int:
        """Size of the raw values."""
        return self.n_samples * self.n_features * self.dtype.itemsize


def is_remote(X: Any) -> bool:
    """Whether X is read piece by piece: a path, or a Zarr or Dask array."""
    return isinstance(X, (str, Path, DaskArray)) or is_zarr_array(X) or hasattr(X, "to_dask_array")


def as_samples(X: Any, *, min_samples: int = 1, name: str = "X") -> Samples:
    """Any accepted form of samples -> checked samples; values are not looked at yet."""
    names = _names_of(X)
    handle: Any
    if hasattr(X, "to_dask_array"):
        X = X.to_dask_array(lengths=True)
    if isinstance(X, DaskArray):
        handle = _known_chunks(X, name)
    elif isinstance(X, (str, Path)):
        handle = address_of_path(X)
    elif is_zarr_array(X):
        handle = source_of_zarr(X)
    else:
        handle = address_of_mapped(X) or _in_memory(X, min_samples, name)
    shape, dtype = (handle.shape, handle.dtype) if isinstance(handle, DaskArray) else shape_and_dtype(handle)
    _check_kind(shape, dtype, name)
    if dtype.kind == "f" and dtype.itemsize > 8:
        if isinstance(X, (str, Path)):
            raise InvalidInputError(f"{name} has dtype {dtype}, wider than float64; save it as float64")
        handle, dtype = handle.astype(np.float64), np.dtype(np.float64)
    return Samples(handle=handle, n_samples=int(shape[0]), n_features=int(shape[1]), dtype=dtype, names=names)


def _in_memory(X: Any, min_samples: int, name: str) -> NDArray:
    """An array, a frame or lists -> a NumPy array, by scikit-learn's rules but in one sentence where it refuses."""
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InvalidInputError(f"{name} has masked values; fill them or leave those samples out")
    # What check_array says of these two is true but many lines long.
    if isinstance(X, (np.ndarray, list, tuple)):
        with contextlib.suppress(ValueError, TypeError):
            X = np.asarray(X)
        if isinstance(X, np.ndarray) and (X.ndim != 2 or X.dtype.kind == "c"):
            _check_kind(X.shape, X.dtype, name)
    try:
        # Finiteness is found out in the pass over the data that is made anyway.
        return check_array(
            X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=min_samples, input_name=name, order="C"
        )
    except ValueError as error:
        raise InvalidInputError(str(error).partition("\n")[0]) from error


def _check_kind(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    if len(shape) != 2:
        raise InvalidInputError(
            f"Expected 2D array: {name} has {len(shape)} dimensions but needs samples and inputs. "
            f"Reshape your data, one sample as {name}.reshape(1, -1)"
        )
    if dtype.kind == "c":
        raise InvalidInputError(f"Complex data not supported: {name} has dtype {dtype}; pass real numbers")
    if dtype.kind not in "biuf":
        raise InvalidInputError(f"{name} has dtype {dtype}, which does not hold numbers; pass a numeric array")
    if shape[1] == 0:
        raise InvalidInputError(f"{name} has 0 feature(s) (shape={shape}) while a minimum of 1 is required.")


def _names_of(X: Any) -> NDArray | None:
    """The columns of a frame, if all of them are named by words."""
    columns = list(getattr(X, "columns", ()))
    return np.asarray(columns, dtype=object) if columns and all(isinstance(name, str) for name in columns) else None


def _known_chunks(array: DaskArray, name: str) -> DaskArray:
    if any(np.isnan(length) for length in array.shape):
        raise InvalidInputError(
            f"{name} is a Dask array with unknown chunk sizes; call {name}.compute_chunk_sizes() first"
        )
    return array


def as_labels(y: Any, name: str = "y") -> NDArray:
    """Any accepted form of labels -> a NumPy vector of numbers, booleans or words."""
    if y is None:
        raise InvalidInputError(f"this classifier requires {name} to be passed, but the target {name} is None")
    if hasattr(y, "to_dask_array"):
        y = y.to_dask_array(lengths=True)
    if isinstance(y, DaskArray):
        # Unknown chunk sizes do no harm here: the labels are computed at once.
        (y,) = dask.compute(y)
    elif isinstance(y, (str, Path)):
        source = address_of_path(y)
        if len(shape_and_dtype(source)[0]) != 1:
            raise InvalidInputError(f"{y} has shape {shape_and_dtype(source)[0]} but labels are one row of values")
        y = read_all(source)
    elif is_zarr_array(y):
        y = y[...]
    if isinstance(y, np.ma.MaskedArray) and np.ma.is_masked(y):
        raise InvalidInputError(f"{name} has masked values; every sample needs a label")
    labels = column_or_1d(y, warn=True)
    if labels.dtype.kind == "T":
        labels = labels.astype(object).astype(str)
    if labels.dtype.kind not in "biufUO":
        raise InvalidInputError(f"{name} has dtype {labels.dtype}; labels are numbers, booleans or words")
    return labels


def checked_length(y: NDArray, n_samples: int) -> NDArray:
    """Labels, unchanged, if there is one for each sample."""
    if len(y) != n_samples:
        raise InvalidInputError(f"y has {len(y)} labels but X has {n_samples} samples; they must be of one length")
    return y


def encode_labels(y: NDArray, n_samples: int) -> tuple[NDArray, NDArray[np.integer], NDArray[np.int64]]:
    """(sample,) labels -> (class,) classes, (sample,) class codes, (class,) sizes."""
    checked_length(y, n_samples)
    if n_samples == 0:
        raise InvalidInputError("X has no samples (n_samples=0); a fit needs at least 2 of each class")
    y = plain_labels(y)
    check_classification_targets(y)
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InvalidInputError(
            f"y has one class only ({classes[0]}), n_samples={n_samples}; a classifier needs at least 2 classes"
        )
    if counts.min() < 2:
        lonely = classes[counts.argmin()]
        raise InvalidInputError(
            f"class {lonely} has {counts.min()} sample but a spread needs at least 2; "
            "add samples or leave the class out"
        )
    return classes, codes.astype(np.min_scalar_type(len(classes) - 1)), counts


def plain_labels(y: NDArray) -> NDArray:
    """Labels as numbers, booleans or words of one kind, none of them missing."""
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise InvalidInputError("Input y contains NaN or infinity; every sample needs a label")
    if y.dtype.kind == "O" and not all(isinstance(label, str) for label in y):
        return _plain_objects(y)
    return y


def _plain_objects(y: NDArray) -> NDArray:
    """Labels in an object array that are not all words -> a plain array, where they are of one kind."""
    plain = np.asarray(y.tolist()) if not any(label is None for label in y) else y
    same_kind = all(isinstance(label, str) for label in y) or not any(isinstance(label, str) for label in y)
    if plain.dtype.kind not in "biuf" or not same_kind:
        raise InvalidInputError("y mixes kinds of labels or leaves some out; use numbers, booleans or words throughout")
    if plain.dtype.kind == "f" and not np.isfinite(plain).all():
        raise InvalidInputError("Input y contains NaN or infinity; every sample needs a label")
    return plain
