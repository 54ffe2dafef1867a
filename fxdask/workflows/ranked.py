"""The result of a ranking as numbers: scores, ranks and p-values of every feature by every criterion."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.criteria.base import Scores
from fxdask.kernels.criteria.multiple_testing import adjusted_p_values, false_discovery_threshold

__all__ = ["SHORT_RULES", "RankedFeatures", "ranks_of"]

SHORT_RULES = {"bh": "benjamini_hochberg", "by": "benjamini_yekutieli"}
"""What users call the rules of false discoveries."""


@dataclass(frozen=True, kw_only=True)
class RankedFeatures:
    """Scores of every feature by every criterion, and what follows from them."""

    names: NDArray
    """(feature,) names; x0, x1, ... if X has none"""
    classes: NDArray
    class_counts: NDArray[np.int64]
    criteria: tuple[str, ...]
    scores: Mapping[str, Scores]
    """By criterion, (class, feature) scores, or (1, feature) if all classes share them; larger is better."""
    p_values: Mapping[str, Scores]
    """By criterion that is a test, p-values of the same shape."""
    missing: NDArray[np.int64]
    """(feature,) missing values that were left out"""
    n_anchors: int | None = None
    """Samples whose neighbours ReliefF looked for; None without ReliefF."""
    shown: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """The features whose densities the report shows."""
    curves: NDArray[np.float64] = field(default_factory=lambda: np.empty((0, 0, 0)))
    """(shown, 1 + class, point) points, and the density of every class there"""
    chosen: NDArray[np.int64] | None = None
    """Features that do not repeat each other, in the order of the choice; None if they were not asked for."""
    store: str | None = None
    info: Mapping[str, Any] = field(default_factory=dict)

    @property
    def n_samples(self) -> int:
        """Number of samples."""
        return int(self.class_counts.sum())

    def score(self, criterion: str) -> NDArray[np.float64]:
        """(feature,) the score that a feature is ranked by: the largest of its classes."""
        return self._known(self.scores, criterion).max(axis=0)

    def rank(self, criterion: str) -> NDArray[np.int64]:
        """(feature,) ranks from 1, the best; of equal scores the lower feature comes first."""
        return ranks_of(self.score(criterion))

    def order(self, criterion: str) -> NDArray[np.int64]:
        """(rank,) features, best first."""
        return np.argsort(self.rank(criterion))

    def p_value(self, criterion: str) -> NDArray[np.float64]:
        """(feature,) p-values; with several tests of a feature the smallest times their number (Bonferroni)."""
        of_classes = self._known(self.p_values, criterion)
        # The two tests of two classes are the same one.
        n_tests = len(of_classes) if len(of_classes) > 2 else 1
        return np.minimum(1.0, n_tests * of_classes.min(axis=0))

    def adjusted_p_value(self, criterion: str, rule: str = "bh") -> NDArray[np.float64]:
        """(feature,) the smallest false discovery rate at which each feature is accepted."""
        return adjusted_p_values(self.p_value(criterion), _rule(rule))

    def threshold(self, criterion: str, rate: float = 0.05, rule: str = "bh") -> float:
        """The largest p-value to accept for this false discovery rate; -1 if none is."""
        return false_discovery_threshold(self.p_value(criterion), rate, _rule(rule))

    def _known(self, by_criterion: Mapping[str, Scores], criterion: str) -> Scores:
        if criterion not in by_criterion:
            raise InvalidInputError(
                f"this ranking has no {'scores' if by_criterion is self.scores else 'p-values'} of {criterion!r}; "
                f"it has those of {', '.join(map(repr, by_criterion)) or 'no criterion'}"
            )
        return by_criterion[criterion]

    def table(self) -> dict[str, NDArray]:
        """The columns of the ranking as a table, one row for each feature."""
        found: dict[str, NDArray] = {"feature": self.names}
        for name in self.criteria:
            found[f"{name}_score"], found[f"{name}_rank"] = self.score(name), self.rank(name)
            if name in self.p_values:
                found[f"{name}_p_value"] = self.p_value(name)
                for rule in SHORT_RULES:
                    found[f"{name}_p_{rule}"] = self.adjusted_p_value(name, rule)
        found["missing"] = self.missing
        return found


def ranks_of(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """(feature,) scores -> (feature,) ranks from 1, the best; of equal scores the lower feature comes first."""
    order = np.lexsort((np.arange(len(scores)), -scores))
    ranks = np.empty(len(scores), np.int64)
    ranks[order] = np.arange(1, len(scores) + 1)
    return ranks


def _rule(rule: str) -> str:
    if rule not in SHORT_RULES:
        raise InvalidInputError(f"the rule of false discoveries must be 'bh' or 'by', not {rule!r}")
    return SHORT_RULES[rule]
