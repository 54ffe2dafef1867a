"""What a criterion is: a score of columns, and what has to be measured for it."""

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
    """What a criterion has to know of the columns that it scores."""

    LOCATION_AND_SPREAD = "location and spread"
    MOMENTS = "moments"
    SORTED_COLUMNS = "sorted columns"
    ROWS = "rows"


@dataclass(frozen=True)
class Measurements:
    """What was measured of some columns, as far as criteria asked for it."""

    statistics: ClassStatistics
    priors: Scores
    """(class,) priors."""
    tolerance: Scores
    """(column,) spread at or below which a column counts as constant."""


@dataclass(frozen=True)
class Criterion:
    """One way to score columns: larger is better, and -inf is never selected."""

    name: str
    needs: frozenset[Need]
    score: Callable[[Measurements], Scores]
    """Measurements -> (class, column) scores."""
    summary: str
    """One line for people."""
