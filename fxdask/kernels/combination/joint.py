"""The log density of all selected nodes together: kernel densities joined by one Gaussian copula per class.

With s the normal scores of a sample at the nodes, and R the correlations of the class's scores,

    ln y = ln P + sum_u ln f_u - s' (R^-1 - I) s / 2 - ln det(R) / 2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from fxdask.kernels.combination.base import (
    ClassNodes,
    CombinationRule,
    Joined,
    MarginalErrors,
    Marginals,
    without_own_kernel,
)
from fxdask.kernels.copula import factor, rank_scores, score_sums, shrunk_correlation
from fxdask.kernels.projection import anchored_products

__all__ = ["JointRule"]

# A product of n terms is rounded by at most n units in the last place, in the product and in the final sum.
ROUNDING = 2.0**-52
# That of 10^15 samples; scores are clipped.
LARGEST_SCORE = 8.0
# A sample's share of its own quadratic form is below 1, but for the approximation that ranks do not change.
LARGEST_REMOVED = 0.99


class JointRule(CombinationRule):
    """Kernel densities as marginals, joined by a Gaussian copula of the class."""

    name = "joint"
    adds_log_densities = True
    needs_normal_scores = True
    stored_arrays = ("precision", "log_det", "shrinkage")

    def used_nodes(self, member: NDArray[np.bool_]) -> list[list[int]]:
        """Each class uses all nodes."""
        return [list(range(member.shape[1])) for _ in member]

    def n_densities(self, n_classes: int, n_selected: int, n_nodes: int) -> int:
        """Every class uses the selected nodes of all classes."""
        return n_classes * min(n_nodes, n_selected * n_classes)

    def learned_bytes(self, n_classes: int, n_nodes: int) -> int:
        """One matrix of all nodes per class."""
        return 8 * n_classes * n_nodes**2

    def learn(self, values: NDArray[np.float32], class_slices: Sequence[slice]) -> dict[str, NDArray]:
        """(u, sample) values, not sorted -> ``R^-1 - I``, ``ln det R`` and the shrinkage of each class."""
        n_classes, n_nodes = len(class_slices), len(values)
        precision = np.empty((n_classes, n_nodes, n_nodes))
        log_det, shrinkage = np.empty(n_classes), np.empty(n_classes)
        for k, columns in enumerate(class_slices):
            sums = score_sums(rank_scores(values[:, columns]))
            correlation, shrinkage[k] = shrunk_correlation(sums, columns.stop - columns.start)
            precision[k], log_det[k] = factor(correlation)
        return {"precision": precision, "log_det": log_det, "shrinkage": shrinkage}

    def join(self, marginals: Marginals, nodes: ClassNodes, errors: MarginalErrors | None = None) -> Joined:
        """The sum of the log densities, corrected by the quadratic form of the normal scores.

        The quadratic form of scores that are wrong by at most e differs by at most
        ``|(R^-1 - I) s| e + e' |R^-1 - I| e / 2``.
        """
        scores, precision = marginals.normal_scores, nodes.learned["precision"]
        assert scores is not None, "the joint rule is given normal scores"
        result = sum(marginals.log_densities, np.zeros(scores.shape[1]))
        if errors is None:
            form, _ = _quadratic_form(precision, scores, marginals.start, np.zeros(len(precision)))
            return Joined(result - 0.5 * (form + nodes.learned["log_det"]))
        form, error = _quadratic_form(precision, scores, marginals.start, errors.normal_score)
        absolute = np.abs(precision)
        rounding = 4 * len(precision) * ROUNDING * LARGEST_SCORE**2 * absolute.sum()
        error += errors.log_density.sum() + 0.5 * errors.normal_score @ absolute @ errors.normal_score + rounding
        return Joined(result - 0.5 * (form + nodes.learned["log_det"]), error)

    def join_held_out(self, marginals: Marginals, nodes: ClassNodes, n_samples: int) -> NDArray[np.float64]:
        """A class's marginals at some of its own training samples -> log scores as if each had been left out.

        Without the sample, R is smaller by a multiple c of s s'. Its inverse and determinant follow from
        s' R^-1 s (Sherman and Morrison), so no matrix is factored again.
        """
        assert marginals.normal_scores is not None, "the joint rule is given normal scores"
        share = (ndtr(marginals.normal_scores) * (n_samples + 1) - 0.5) / n_samples
        lowest = 0.5 / max(1, n_samples - 1)
        scores = ndtri(np.clip(share, lowest, 1 - lowest))
        squares = sum(scores**2, np.zeros(scores.shape[1]))
        form = squares + sum(scores * (nodes.learned["precision"] @ scores), np.zeros(scores.shape[1]))
        removed = np.minimum((1 - nodes.learned["shrinkage"]) / max(1, n_samples - 1) * form, LARGEST_REMOVED)
        terms = without_own_kernel(marginals.log_densities, nodes, n_samples + 1)
        quadratic = form / (1 - removed) - squares
        log_det = nodes.learned["log_det"] + np.log1p(-removed)
        return sum(terms, np.zeros(scores.shape[1])) - 0.5 * (quadratic + log_det)

    def rounding_growth(self, n_terms: int) -> int:
        """The rounding of all terms adds up."""
        return n_terms


def _quadratic_form(
    matrix: NDArray[np.float64], scores: NDArray[np.float64], start: int | None, score_errors: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(node, sample) scores s, (node,) errors e -> (sample,) ``s' matrix s``, (sample,) ``|matrix s| e``.

    With the index of the first sample, the products are those of :func:`anchored_products`.
    """
    form, slope_error = np.zeros(scores.shape[1]), np.zeros(scores.shape[1])
    add_products = _compiled()
    if start is None:
        slope = sum((column[:, None] * row for column, row in zip(matrix.T, scores, strict=True)), 0.0 * scores)
        add_products(scores, slope, score_errors, form, slope_error)
        return form, slope_error
    for some, slope in anchored_products(matrix, scores, start):
        add_products(scores[:, some], slope, score_errors, form[some], slope_error[some])
    return form, slope_error


def _add_products(
    scores: NDArray[np.float64],
    slope: NDArray[np.float64],
    score_errors: NDArray[np.float64],
    form: NDArray[np.float64],
    slope_error: NDArray[np.float64],
) -> None:
    """Add (node, sample) scores times slopes to the form, and absolute slopes times errors to their sum."""
    for node in range(len(scores)):
        for sample in range(scores.shape[1]):
            form[sample] += scores[node, sample] * slope[node, sample]
            slope_error[sample] += score_errors[node] * abs(slope[node, sample])


@cache
def _compiled() -> Callable[..., None]:
    """:func:`_add_products` compiled to machine code on first use: it reads both arrays once, while they are cached."""
    return import_module("numba").njit(nogil=True, cache=True)(_add_products)
