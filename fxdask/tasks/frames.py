"""The tasks on one partition of a Dask DataFrame: its values as an array, and its scores beside its index."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import NotFiniteError
from fxdask.kernels.scorer import Scorer
from fxdask.tasks.score import log_score_rows

__all__ = ["FrameResult", "partition_rows", "score_partition"]

WITHIN = " of its partition"


@dataclass(frozen=True)
class FrameResult:
    """What becomes of the scores of a partition: a column of this name, or one column per class."""

    finish: Callable[[NDArray[np.float64]], NDArray]
    """(sample, class) ln y -> (sample,) or (sample, column) values"""
    columns: str | list[Any]

    def beside(self, partition: Any, values: NDArray) -> Any:
        """The values as a Series, or as a DataFrame, with the index of the partition."""
        frame = type(partition)
        if isinstance(self.columns, str):
            return frame({self.columns: values}, index=partition.index)[self.columns]
        return frame(values, index=partition.index, columns=self.columns)


def partition_rows(partition: Any, columns: list[str], dtype: str) -> NDArray:
    """A pandas DataFrame -> (sample, feature) its values as one type; missing values become NaN."""
    frame, kind = partition[columns], np.dtype(dtype)
    if kind.kind == "f":
        return np.ascontiguousarray(frame.to_numpy(kind, na_value=np.nan))
    missing = frame.isna().to_numpy()
    if missing.any():
        sample, feature = np.argwhere(missing)[0]
        raise NotFiniteError("a missing value", int(sample), int(feature), str(columns[feature]), WITHIN)
    return np.ascontiguousarray(frame.to_numpy(kind))


def score_partition(partition: Any, scorer: Scorer, columns: list[str], dtype: str, result: FrameResult) -> Any:
    """A pandas DataFrame -> the result of its scores; rows are numbered from the start of the partition."""
    rows = partition_rows(partition, columns, dtype)
    try:
        scores = log_score_rows(scorer, rows, 0, None).scores
    except NotFiniteError as error:
        raise error.named(columns, WITHIN) from None
    return result.beside(partition, result.finish(scores))
