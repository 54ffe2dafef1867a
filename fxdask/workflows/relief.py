"""ReliefF on samples of any size: anchors, their nearest rows, and the weights of all features."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.execution.rank import find_neighbours
from fxdask.execution.scan import probe_samples
from fxdask.kernels.criteria.base import Scores
from fxdask.kernels.criteria.relief import Anchors, ColumnRanges, neighbour_rows, relief_weights, spread_anchors
from fxdask.planning.machine import Resources
from fxdask.planning.rank_plan import RankSize, plan_relief
from fxdask.progress import progress_bar
from fxdask.tasks.relief import ReliefJob
from fxdask.workflows.model import TrainingData

__all__ = ["relief_scores"]


def relief_scores(
    data: TrainingData,
    priors: NDArray[np.float64],
    counts: tuple[int | None, int],
    outermost: NDArray[np.float64],
    resources: Resources,
    *,
    verbose: bool,
) -> Scores:
    """Samples, (class,) priors, numbers of anchors and neighbours -> (1, feature) weights.

    ``outermost`` are the (3, feature) missing values, lowest and highest values of all features.
    """
    samples, n_classes = data.samples, len(data.classes)
    handle, n_samples, n_features = samples.handle, samples.n_samples, samples.n_features
    n_anchors, n_neighbours = counts
    rows = spread_anchors(data.codes, n_classes, n_anchors)
    size = RankSize(n_samples=n_samples, n_features=n_features, itemsize=samples.dtype.itemsize)
    plan = plan_relief(size, len(rows), n_classes, n_neighbours, resources)
    ranges = _ranges(data, outermost)
    anchors = Anchors(rows, data.codes[rows], ranges.scaled(probe_samples(handle, n_samples, n_features, rows)))
    job = ReliefJob(anchors=anchors, ranges=ranges, codes=data.codes, n_classes=n_classes, n_neighbours=n_neighbours)
    with progress_bar("neighbours", shown=verbose) as progress:
        found = find_neighbours(job, handle, plan, progress)
    needed = ranges.scaled(probe_samples(handle, n_samples, n_features, neighbour_rows(found)))
    return relief_weights(anchors, found, needed, priors)


def _ranges(data: TrainingData, outermost: NDArray[np.float64]) -> ColumnRanges:
    """The range of every feature; missing values are refused, because ReliefF compares whole rows."""
    missing, lowest, highest = outermost
    if missing.any():
        feature, names = int(np.flatnonzero(missing)[0]), data.samples.names
        name = feature if names is None else repr(str(names[feature]))
        raise InvalidInputError(
            f"relief compares whole samples, but X has {int(missing.sum())} missing values, first in feature {name}; "
            "fill them, or leave relief out"
        )
    return ColumnRanges(lowest, highest)
