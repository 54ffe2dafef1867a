"""A fitted network in memory: samples -> node values -> densities -> class scores -> labels."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from fxdask.kernels.density import log_density
from fxdask.kernels.preparation import Preparation
from fxdask.kernels.projection import project_packed
from fxdask.plan import tile_shape

__all__ = ["COMBINATIONS", "FittedNetwork", "class_probabilities"]

COMBINATIONS = ("sum", "scaled", "log")


@dataclass
class FittedNetwork:
    """What labelling needs, and no more: the selected rows, their training values, bandwidths and priors.

    ``u`` counts the union of all classes' selected nodes; ``member[k, u]`` says whether node u
    was selected for class k.
    """

    preparation: Preparation
    nodes: NDArray[np.int64]  # (u,)
    weights: NDArray[np.float32]  # (u, input)
    projections: NDArray[np.float32]  # (u, sample), sorted by class
    class_slices: list[slice]
    bandwidth: NDArray[np.float64]  # (class, u)
    spread: NDArray[np.float64]  # (class, u)
    member: NDArray[np.bool_]  # (class, u)
    log_priors: NDArray[np.float64]  # (class,)
    combine: str = "sum"
    _ascending: list[NDArray[np.float32]] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._ascending = [np.sort(self.projections[:, columns], axis=1) for columns in self.class_slices]

    def __getstate__(self) -> dict[str, Any]:
        # Sorted copies travel no further than this process: sorting again is cheaper than sending them.
        return {name: value for name, value in self.__dict__.items() if name != "_ascending"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()

    @property
    def n_inputs(self) -> int:
        """Inputs of a sample."""
        return self.weights.shape[1]

    def log_scores(self, samples: NDArray) -> NDArray[np.float64]:
        """(sample, input) raw samples -> (sample, class) ln y."""
        tile = tile_shape(self.n_inputs)
        scores = np.empty((len(samples), len(self.log_priors)))
        for start in range(0, len(samples), tile.samples):
            part = slice(start, start + tile.samples)
            scores[part] = self.class_scores(project_packed(self.weights, self.preparation.of_new(samples[part]), tile))
        return scores

    def class_scores(self, values: NDArray[np.float32]) -> NDArray[np.float64]:
        """(u, sample) node values -> (sample, class) ln y by the combination rule.

        ``sum``: the sum of f over the class's nodes; ``scaled``: each f times its node's spread;
        ``log``: the sum of ln f over all classes' nodes.
        """
        scores = np.empty((values.shape[1], len(self.log_priors)))
        for k, log_prior in enumerate(self.log_priors):
            if self.combine == "log":
                joined = np.zeros(values.shape[1])
                for u in range(len(self.nodes)):
                    joined += self._log_density(k, u, values[u])
            else:
                own = np.flatnonzero(self.member[k]).tolist()
                terms = np.array([self._log_density(k, u, values[u]) for u in own])
                if self.combine == "scaled":
                    # A class that is constant at a node is as wide as its bandwidth.
                    width = np.where(self.spread[k] > 0, self.spread[k], self.bandwidth[k])
                    terms += np.log(width[own])[:, None]
                joined = logsumexp(terms, axis=0)
            scores[:, k] = joined + log_prior
        return scores

    def _log_density(self, k: int, u: int, points: NDArray[np.float32]) -> NDArray[np.float64]:
        return log_density(points, self._ascending[k][u], self.bandwidth[k, u])


def class_probabilities(log_scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(sample, class) ln y -> (sample, class) softmax."""
    shifted = np.exp(log_scores - log_scores.max(axis=1, keepdims=True))
    return shifted / shifted.sum(axis=1, keepdims=True)
