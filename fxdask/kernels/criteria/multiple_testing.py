"""False discovery rates: p-values of many columns -> adjusted p-values, and the threshold for a wanted rate."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.criteria.base import Scores

__all__ = ["FALSE_DISCOVERY_RULES", "adjusted_p_values", "false_discovery_threshold"]

FALSE_DISCOVERY_RULES = ("benjamini_hochberg", "benjamini_yekutieli")
"""The first holds for independent or positively dependent tests, the second for any."""


def adjusted_p_values(p_values: Scores, rule: str = "benjamini_hochberg") -> Scores:
    """(column,) p-values -> (column,) smallest false discovery rates at which each column is accepted."""
    order = np.argsort(p_values, kind="stable")
    allowed = p_values[order] * _penalties(len(p_values), rule)
    adjusted = np.empty(len(p_values))
    adjusted[order] = np.minimum(1.0, np.minimum.accumulate(allowed[::-1])[::-1])
    return adjusted


def false_discovery_threshold(p_values: Scores, rate: float, rule: str = "benjamini_hochberg") -> float:
    """(column,) p-values, wanted rate -> the largest p-value to accept; -1 if none is."""
    ordered = np.sort(p_values)
    accepted = np.flatnonzero(ordered * _penalties(len(p_values), rule) <= rate)
    return float(ordered[accepted[-1]]) if len(accepted) else -1.0


def _penalties(n: int, rule: str) -> NDArray[np.float64]:
    """(rank,) factors of the ascending p-values: n / rank, times the sum of 1 / rank if tests may depend."""
    ranks = np.arange(1, n + 1)
    if rule == "benjamini_hochberg":
        return n / ranks
    if rule == "benjamini_yekutieli":
        return n * np.sum(1 / ranks) / ranks
    raise ValueError(f"rule={rule!r} is not known; choose one of {', '.join(map(repr, FALSE_DISCOVERY_RULES))}")
