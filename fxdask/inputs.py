"""What users pass as samples and labels, turned into one thing or refused in one sentence."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask
import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from fxdask.errors import InvalidInputError
from fxdask.graph import Handle
from fxdask.store.samples import address_of_path, is_zarr_array, read_all, shape_and_dtype, source_of_zarr

__all__ = ["Samples", "as_labels", "as_samples", "check_test_samples", "encode_labels", "is_remote"]


@dataclass(frozen=True)
class Samples:
    """Checked samples: where they are, their shape and type, and their inputs' names if they have any."""

    handle: Any
    n_samples: int
    n_inputs: int
    dtype: np.dtype
    names: NDArray | None = None

    @property
    def n_bytes(self) -> int:
        """Size of the raw values."""
        return self.n_samples * self.n_inputs * self.dtype.itemsize


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
        handle, shape, dtype = _known_chunks(X, name), X.shape, np.dtype(X.dtype)
    elif isinstance(X, (str, Path)):
        handle = address_of_path(X)
        shape, dtype = shape_and_dtype(handle)
    elif is_zarr_array(X):
        handle = source_of_zarr(X)
        shape, dtype = shape_and_dtype(handle)
    else:
        # Finiteness is found out in the pass over the data that is made anyway.
        handle = check_array(
            X,
            dtype="numeric",
            ensure_all_finite=False,
            ensure_min_samples=min_samples,
            input_name=name,
            order="C",
        )
        shape, dtype = handle.shape, handle.dtype
    return _checked(handle, shape, dtype, names, name)


def _checked(handle: Handle, shape: tuple[int, ...], dtype: np.dtype, names: NDArray | None, name: str) -> Samples:
    if len(shape) != 2:
        raise InvalidInputError(f"{name} has {len(shape)} dimensions but needs 2: samples and inputs")
    if dtype.kind == "c":
        raise InvalidInputError(f"Complex data not supported: {name} has dtype {dtype}; pass real numbers")
    if dtype.kind not in "biuf":
        raise InvalidInputError(f"{name} has dtype {dtype}, which does not hold numbers; pass a numeric array")
    if shape[1] == 0:
        raise InvalidInputError(f"{name} has 0 feature(s) (shape={shape}) while a minimum of 1 is required.")
    return Samples(handle, int(shape[0]), int(shape[1]), dtype, names)


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
    """Any accepted form of labels -> a NumPy vector."""
    if y is None:
        raise InvalidInputError(f"this classifier requires {name} to be passed, but the target {name} is None")
    if hasattr(y, "to_dask_array"):
        y = y.to_dask_array(lengths=True)
    if isinstance(y, DaskArray):
        # Unknown chunk sizes do no harm here: the labels are computed at once.
        (y,) = dask.compute(y)
    elif isinstance(y, (str, Path)):
        y = read_all(address_of_path(y))
    elif is_zarr_array(y):
        y = y[...]
    return column_or_1d(y, warn=True)


def encode_labels(y: NDArray, n_samples: int) -> tuple[NDArray, NDArray[np.integer], NDArray[np.int64]]:
    """(sample,) labels -> (class,) classes, (sample,) class codes, (class,) sizes."""
    if len(y) != n_samples:
        raise InvalidInputError(f"y has {len(y)} labels but X has {n_samples} samples; they must be of one length")
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise InvalidInputError("Input y contains NaN or infinity; every sample needs a label")
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


def check_test_samples(estimator: BaseEstimator, samples: Samples, n_inputs: int) -> None:
    """Refuse samples of another width than the model's, in scikit-learn's words."""
    if samples.n_inputs != n_inputs:
        raise InvalidInputError(
            f"X has {samples.n_inputs} features, "
            f"but {type(estimator).__name__} is expecting {n_inputs} features as input"
        )
