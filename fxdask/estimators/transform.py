"""How a fitted selector takes its features: from data in memory, and lazily from Dask collections."""

from __future__ import annotations

from typing import Any

import numpy as np
from dask.array import Array as DaskArray
from numpy.typing import NDArray
from sklearn.feature_selection import SelectorMixin
from sklearn.utils.validation import check_is_fitted

from fxdask.errors import InvalidInputError
from fxdask.execution.frames import is_dask_frame
from fxdask.workflows.data import is_remote
from fxdask.workflows.tables import in_fitted_order, is_frame

__all__ = ["FrameTransform", "LazyTransform", "spread_out"]


class FrameTransform(SelectorMixin):
    """``transform`` of arrays and DataFrames in memory, into the container that ``set_output`` asks for."""

    def transform(self, X: Any) -> Any:
        """Keep the selected features of data in memory."""
        check_is_fitted(self)
        if self.numeric_only and is_frame(X):
            # In one array, columns without numbers would turn all others into objects.
            return np.asarray(_selected_columns(self, X))
        if is_remote(X):
            raise InvalidInputError(
                "transform takes arrays, DataFrames and Dask collections; open the files with dask, "
                "such as dask.array.from_zarr(path) or dask.dataframe.read_parquet(path)"
            )
        return super().transform(X)


class LazyTransform:
    """``transform`` that leaves Dask collections lazy; a base class before :class:`FrameTransform`.

    scikit-learn wraps the ``transform`` of its own classes, which would load a Dask collection if ``set_output``
    asks for DataFrames. A method of another base class is not wrapped.
    """

    def transform(self, X: Any) -> Any:
        """Keep the selected features.

        Parameters
        ----------
        X : array, DataFrame, Dask array or DataFrame
            Columns of a Dask DataFrame are taken by their names.

        Returns
        -------
        array, DataFrame, lazy Dask array or lazy Dask DataFrame
            ``set_output`` does not change what is lazy.
        """
        if not (is_dask_frame(X) or isinstance(X, DaskArray)):
            return super().transform(X)  # type: ignore[misc]
        check_is_fitted(self)
        if is_dask_frame(X):
            return _selected_columns(self, X)
        _check_width(X, self.n_features_in_)  # type: ignore[attr-defined]
        return X[:, self.get_support(indices=True)]  # type: ignore[attr-defined]

    def inverse_transform(self, X: Any) -> Any:
        """Return the selected features to their places, with zeros at all others.

        Parameters
        ----------
        X : array, DataFrame, Dask array or DataFrame
            The selected features, as ``transform`` returns them.

        Returns
        -------
        array, or lazy Dask array
            One column per feature of the X that was fitted.
        """
        check_is_fitted(self)
        if is_dask_frame(X):
            X = X.to_dask_array()
        if not isinstance(X, DaskArray):
            return super().inverse_transform(X)  # type: ignore[misc]
        support = self.get_support(indices=True)  # type: ignore[attr-defined]
        _check_width(X, len(support))
        return X.rechunk({1: -1}).map_blocks(
            spread_out,
            support,
            self.n_features_in_,  # type: ignore[attr-defined]
            0,
            dtype=X.dtype,
            chunks=(X.chunks[0], (self.n_features_in_,)),  # type: ignore[attr-defined]
        )


def _selected_columns(selector: Any, frame: Any) -> Any:
    """The selected columns of a frame, by their names."""
    columns = {str(name): name for name in frame.columns}
    fitted = [str(name) for name in getattr(selector, "feature_names_in_", frame.columns)]
    in_order = in_fitted_order(list(columns), fitted)
    return frame[[columns[in_order[feature]] for feature in selector.get_support(indices=True).tolist()]]


def _check_width(X: DaskArray, n_features: int) -> None:
    """Refuse a Dask array that has another number of features."""
    if X.ndim != 2:
        raise InvalidInputError(f"X has {X.ndim} dimensions but needs 2 (samples, features); reshape it")
    if X.shape[1] != n_features:
        raise InvalidInputError(
            f"X has {X.shape[1]} features, but FilterSelector is expecting {n_features} features as input"
        )


def spread_out(values: NDArray, places: NDArray[np.intp], n_features: int, other: float) -> NDArray:
    """(..., ranked feature) values -> (..., feature) values, with another value for features that were left out."""
    found = np.full((*values.shape[:-1], n_features), other, values.dtype)
    found[..., places] = values
    return found
