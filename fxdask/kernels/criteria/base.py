"""The interface of a criterion: a score of columns, and the measurements that it needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.statistics import ClassStatistics

__all__ = ["Criterion", "Measurements", "Need", "Scores"]

Scores = NDArray[np.float64]


class Need(Enum):
    """Measurements of columns that a criterion may need."""

    LOCATION_AND_SPREAD = "location and spread"
    MOMENTS = "moments"
    SORTED_COLUMNS = "sorted columns"
    ROWS = "rows"


@dataclass(frozen=True)
class Measurements:
    """Measurements of some columns, the input of a criterion."""

    statistics: ClassStatistics
    priors: Scores
    """(class,) priors."""
    tolerance: Scores
    """(class, column) spread at or below which a class is treated as constant at a column."""


@dataclass(frozen=True)
class Criterion:
    """A score of columns: larger is better, and a column with -inf is never selected."""

    name: str
    needs: frozenset[Need]
    score: Callable[[Measurements], Scores]
    """Measurements -> (class, column) scores."""
    summary: str
    """One line for users."""
