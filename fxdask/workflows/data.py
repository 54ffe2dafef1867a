"""Check samples and labels in every accepted form, and turn them into one form."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray
from sklearn.utils import check_array
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import column_or_1d

from fxdask.errors import InvalidInputError
from fxdask.execution.compute import compute_collection
from fxdask.execution.frames import frame_as_array, is_dask_frame
from fxdask.store.parquet import ParquetTable, TableColumn
from fxdask.store.parquet_rows import read_column
from fxdask.store.sources import (
    address_of_mapped,
    address_of_path,
    is_zarr_array,
    read_all,
    shape_and_dtype,
    source_of_zarr,
)
from fxdask.workflows.tables import check_columns, column_types, in_fitted_order, is_frame, opened

__all__ = [
    "Samples",
    "as_labels",
    "as_samples",
    "checked_length",
    "dask_frame_columns",
    "encode_labels",
    "is_remote",
    "plain_labels",
]


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Checked samples: an array or its address, shape and dtype, and the feature names if there are any."""

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
    """Whether X is read chunk by chunk: a path, a table, a Zarr array, or a collection of Dask."""
    return isinstance(X, (str, Path, DaskArray, ParquetTable)) or is_zarr_array(X) or hasattr(X, "to_dask_array")


def as_samples(
    X: Any, *, min_samples: int = 1, name: str = "X", features: Sequence[str] | NDArray | None = None
) -> Samples:
    """Any accepted form of samples -> checked samples; of a Dask DataFrame only the lengths are computed.

    ``features`` are the names that a model was fitted with: columns of Parquet and of Dask DataFrames
    are taken in their order.
    """
    X = opened(X)
    if isinstance(X, ParquetTable):
        return _samples_of_table(X, name, features)
    if is_dask_frame(X):
        columns, dtype, names = dask_frame_columns(X, name, features)
        array = frame_as_array(X, columns, dtype)
        return Samples(handle=array, n_samples=len(array), n_features=len(columns), dtype=dtype, names=names)
    if hasattr(X, "collect_schema") and not hasattr(X, "get_columns"):
        raise InvalidInputError(f"{name} is a Polars LazyFrame; pass {name}.collect(), or the path of its files")
    names = _names_of(X)
    handle: Any
    if hasattr(X, "to_dask_array"):  # a Dask Series
        _check_kind((0,), np.dtype(object), name)
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


def _samples_of_table(table: ParquetTable, name: str, features: Sequence[str] | NDArray | None) -> Samples:
    if features is not None:
        wanted = [str(feature) for feature in features]
        if table.chosen is None:
            # Nobody chose columns, so the other ones may be ids or labels.
            features_of_model = set(wanted)
            known = [column.name for column in table.schema if column.name in features_of_model]
        else:
            known = list(table.names)
        table = table.choose(in_fitted_order(known, wanted))
    check_columns(table.column_types(), name)
    address = table.address()
    names = np.asarray(address.columns, dtype=object)
    dtype = np.dtype(address.dtype)
    return Samples(handle=address, n_samples=address.n_rows, n_features=len(names), dtype=dtype, names=names)


def dask_frame_columns(
    frame: Any, name: str = "X", features: Sequence[str] | NDArray | None = None
) -> tuple[list[Any], np.dtype, NDArray | None]:
    """The columns of a Dask DataFrame in the order of the features, their common type, their names if they are text."""
    columns, names = list(frame.columns), _names_of(frame)
    if names is not None and features is not None:
        columns = in_fitted_order(columns, [str(feature) for feature in features])
        names = np.asarray(columns, dtype=object)
    if not columns:
        _check_kind((0, 0), np.dtype(np.float64), name)
    types = column_types(frame._meta[columns])
    check_columns(types, name)
    return columns, _common_type(types), names


def _common_type(columns: Sequence[TableColumn]) -> np.dtype:
    return np.result_type(*(np.dtype(column.dtype) for column in columns))


def _in_memory(X: Any, min_samples: int, name: str) -> NDArray:
    """An array, a DataFrame or lists -> a NumPy array by scikit-learn's rules, with errors of one line."""
    if isinstance(X, np.ma.MaskedArray) and np.ma.is_masked(X):
        raise InvalidInputError(f"{name} has masked values; fill them or remove those samples")
    if is_frame(X):
        if not len(X.columns):
            _check_kind((len(X), 0), np.dtype(np.float64), name)
        check_columns(column_types(X), name)
        X = X.to_numpy() if hasattr(X, "get_columns") else X
    # Checked before check_array, whose messages for these cases have many lines.
    if X is None or np.isscalar(X):
        _check_kind((), np.dtype(object), name)
    if isinstance(X, (np.ndarray, list, tuple)):
        with contextlib.suppress(ValueError, TypeError):
            X = np.asarray(X)
        if isinstance(X, np.ndarray) and (X.ndim != 2 or X.dtype.kind == "c"):
            _check_kind(X.shape, X.dtype, name)
    try:
        # The scan of the samples checks for NaN and infinity, so this call does not.
        return check_array(
            X, dtype="numeric", ensure_all_finite=False, ensure_min_samples=min_samples, input_name=name, order="C"
        )
    except ValueError as error:
        raise InvalidInputError(str(error).partition("\n")[0]) from error


def _check_kind(shape: tuple[int, ...], dtype: np.dtype, name: str) -> None:
    if len(shape) != 2:
        raise InvalidInputError(
            f"Expected 2D array: {name} has {len(shape)} dimensions but needs 2 (samples, features). "
            f"Reshape your data, a single sample with {name}.reshape(1, -1)"
        )
    if dtype.kind == "c":
        raise InvalidInputError(f"Complex data not supported: {name} has dtype {dtype}; pass real numbers")
    if dtype.kind not in "biuf":
        raise InvalidInputError(f"{name} has dtype {dtype}, which does not hold numbers; pass a numeric array")
    if shape[1] == 0:
        raise InvalidInputError(f"{name} has 0 feature(s) (shape={shape}) while a minimum of 1 is required.")


def _names_of(X: Any) -> NDArray | None:
    """The column names of a DataFrame, if all of them are strings."""
    columns = list(getattr(X, "columns", ()))
    return np.asarray(columns, dtype=object) if columns and all(isinstance(name, str) for name in columns) else None


def _known_chunks(array: DaskArray, name: str) -> DaskArray:
    if any(np.isnan(length) for length in array.shape):
        raise InvalidInputError(
            f"{name} is a Dask array with unknown chunk sizes; call {name}.compute_chunk_sizes() first"
        )
    return array


def as_labels(y: Any, n_samples: int | None = None, name: str = "y") -> NDArray:
    """Any accepted form of labels -> (sample,) numbers, booleans or strings.

    If the number of samples is given, stored labels of another number are refused before they are read.
    """
    if y is None:
        raise InvalidInputError(f"this estimator requires {name} to be passed, but the target {name} is None")
    y = opened(y)
    if isinstance(y, DaskArray) or hasattr(y, "to_dask_array"):
        # Labels are computed at once, so unknown chunk sizes are allowed.
        y = compute_collection(y)
    elif isinstance(y, ParquetTable):
        if len(y.names) != 1:
            raise InvalidInputError(f"{y.url} has {len(y.names)} columns; choose the one that holds the labels")
        address = y.address()
        _check_count(address.n_rows, n_samples)
        y = read_column(address)
    elif isinstance(y, (str, Path)):
        source = address_of_path(y)
        shape, _ = shape_and_dtype(source)
        if len(shape) != 1:
            raise InvalidInputError(f"{y} has shape {shape} but needs 1 dimension; save one label per sample")
        _check_count(shape[0], n_samples)
        y = read_all(source)
    elif is_zarr_array(y):
        _check_count(y.shape[0] if y.shape else 1, n_samples)
        y = y[...]
    if isinstance(y, np.ma.MaskedArray) and np.ma.is_masked(y):
        raise InvalidInputError(f"{name} has masked values; every sample needs a label")
    labels = column_or_1d(y, warn=True)
    if labels.dtype.kind == "T":
        labels = labels.astype(object).astype(str)
    if labels.dtype.kind not in "biufUO":
        raise InvalidInputError(f"{name} has dtype {labels.dtype}; labels must be numbers, booleans or strings")
    return labels


def checked_length(y: NDArray, n_samples: int) -> NDArray:
    """Return the labels unchanged, or refuse them if their number differs from that of the samples."""
    _check_count(len(y), n_samples)
    return y


def _check_count(n_labels: int, n_samples: int | None) -> None:
    if n_samples is not None and n_labels != n_samples:
        raise InvalidInputError(f"y has {n_labels} labels but X has {n_samples} samples; pass one label per sample")


def encode_labels(y: NDArray, n_samples: int) -> tuple[NDArray, NDArray[np.integer], NDArray[np.int64]]:
    """(sample,) labels -> (class,) classes, (sample,) class codes, (class,) sizes."""
    checked_length(y, n_samples)
    if n_samples == 0:
        raise InvalidInputError("X has no samples (n_samples=0); a fit needs at least 2 samples of each class")
    y = plain_labels(y)
    check_classification_targets(y)
    classes, codes, counts = np.unique(y, return_inverse=True, return_counts=True)
    if len(classes) < 2:
        raise InvalidInputError(
            f"y has one class only ({classes[0]}), n_samples={n_samples}; at least 2 classes are needed"
        )
    if counts.min() < 2:
        smallest = classes[counts.argmin()]
        raise InvalidInputError(
            f"class {smallest} has {counts.min()} sample but a spread needs at least 2; add samples or remove the class"
        )
    return classes, codes.astype(np.min_scalar_type(len(classes) - 1)), counts


def plain_labels(y: NDArray) -> NDArray:
    """Return labels of one type (numbers, booleans or strings), and refuse missing ones."""
    if y.dtype.kind == "f" and not np.isfinite(y).all():
        raise InvalidInputError("Input y contains NaN or infinity; every sample needs a label")
    if y.dtype.kind == "O" and not all(isinstance(label, str) for label in y):
        return _plain_objects(y)
    return y


def _plain_objects(y: NDArray) -> NDArray:
    """(sample,) labels of dtype object that are not all strings -> the same of a numeric or boolean dtype."""
    plain = np.asarray(y.tolist()) if not any(label is None for label in y) else y
    same_kind = all(isinstance(label, str) for label in y) or not any(isinstance(label, str) for label in y)
    if plain.dtype.kind not in "biuf" or not same_kind:
        raise InvalidInputError("y mixes types of labels or has missing ones; use only numbers, booleans or strings")
    if plain.dtype.kind == "f" and not np.isfinite(plain).all():
        raise InvalidInputError("Input y contains NaN or infinity; every sample needs a label")
    return plain
