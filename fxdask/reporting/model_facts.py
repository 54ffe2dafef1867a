"""The numbers that a fitted model's report shows, without any drawing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.density.exact import log_density
from fxdask.kernels.importance import shares_of_features
from fxdask.kernels.network import NetworkParameters
from fxdask.kernels.selection import NO_NODE
from fxdask.kernels.statistics import SPREAD_SOURCES
from fxdask.workflows.model import FittedModel

__all__ = ["DivergenceCounts", "ModelFacts", "NodeCurves", "divergence_counts", "facts_of", "nearest_classes"]

CURVE_POINTS = 200
MOST_CURVES = 6
NEAREST_SHOWN = 4
MOST_PANELS = 30
MOST_PICTURES = 12
N_DIVERGENCE_BINS = 60
# Beyond this many, evenly spaced ones of the sorted values give a curve that looks the same.
MOST_KERNELS = 50_000
# Single outliers would squeeze all other values into a corner of the figure.
SHARE_LEFT_OUT = 0.001
WIDE_RANGE = 50


@dataclass(frozen=True, kw_only=True)
class NodeCurves:
    """The densities of some classes along the best node of one class."""

    of_class: int
    node: int
    divergence: float
    points: NDArray[np.float64]
    """(point,) projections"""
    classes: list[int]
    """The classes drawn, the node's own class first."""
    densities: NDArray[np.float64]
    """(class drawn, point)"""


@dataclass(frozen=True, kw_only=True)
class DivergenceCounts:
    """How the divergences of all nodes are distributed, for the classes that are drawn."""

    classes: list[int]
    edges: NDArray[np.float64]
    """(bin + 1,)"""
    counts: NDArray[np.int64]
    """(class drawn, bin) nodes"""
    selected: list[NDArray[np.float64]]
    """For each class drawn, the finite divergences of its selected nodes."""
    n_infinite: NDArray[np.int64]
    """(class drawn,) nodes with an infinite divergence, which no bin holds."""
    linear_width: float | None
    """Bins are equally wide on a scale that is linear up to this width and then logarithmic; None: linear."""


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """Everything that the report of a model shows; the last fields are None for models that do not have them."""

    class_names: list[str]
    sample_counts: NDArray[np.int64]
    priors: NDArray[np.float64]
    n_features: int
    n_nodes: int
    n_used: int
    """Nodes that at least one class selected."""
    seed: int
    store: str | None
    parameters: Mapping[str, Any]
    node_criterion: str
    """The criterion of the divergences: one that compares rows ranks only the pool that another one leaves."""
    normalization: str
    fallbacks: Mapping[str, str]
    density_error: float
    """Largest bound on the relative error of a tabulated density."""
    temperature: float
    selected: NDArray[np.int64]
    """(class, rank) nodes, best first; one row if all classes share their nodes; -1 where there is none."""
    divergences_of_selected: NDArray[np.float64]
    """(class, rank) divergence of every class at its selected nodes, also if they are shared."""
    divergences: DivergenceCounts
    curves: list[NodeCurves]
    overlaps: NDArray[np.float64] | None = None
    """(node,) overlap of the classes after each step of a joint selection."""
    correlations: NDArray[np.float64] | None = None
    """(class, u, u) correlations of the selected nodes that the combination rule learned, of the first classes."""
    shrinkage: NDArray[np.float64] | None = None
    """(class,) how much these correlations were shrunk."""
    importances: NDArray[np.float64] | None = None
    """(feature,) importance of every feature, of sum 1."""
    feature_names: list[str] | None = None

    @property
    def is_shared(self) -> bool:
        """Whether all classes share their selected nodes."""
        return len(self.selected) < len(self.class_names)


@dataclass(frozen=True)
class _OptionalFacts:
    """What only some models have."""

    overlaps: NDArray[np.float64] | None
    importances: NDArray[np.float64] | None
    precision: NDArray[np.float64] | None
    shrinkage: NDArray[np.float64] | None


def _optional_facts(model: FittedModel) -> _OptionalFacts:
    """What the model has beyond the facts of every model."""
    learned = model.scorer.parameters.learned
    return _OptionalFacts(
        model.overlaps,
        None if model.importances is None else shares_of_features(model.importances),
        learned.get("precision"),
        learned.get("shrinkage"),
    )


def facts_of(model: FittedModel) -> ModelFacts:
    """The facts of a fitted model."""
    settings, parameters, plan = model.settings, model.scorer.parameters, model.job.plan
    optional = _optional_facts(model)
    rows = _rows_of_classes(model.selected_nodes, len(model.classes))
    at_selected = _at_nodes(model.divergences, rows)
    shown = _classes_shown(at_selected)
    return ModelFacts(
        class_names=[str(label) for label in model.classes.tolist()],
        sample_counts=np.array(plan.class_counts),
        priors=model.job.priors,
        n_features=plan.n_features,
        n_nodes=settings.n_nodes,
        n_used=len(parameters.nodes),
        seed=settings.seed,
        store=model.job.store,
        parameters={name: value for name, value in asdict(settings).items() if name not in ("normalize", "seed")},
        node_criterion=settings.node_criterion,
        normalization=_normalization(model.normalize_requested, parameters),
        fallbacks=_fallbacks(model),
        density_error=float(np.nanmax(model.density_error)),
        temperature=model.temperature,
        selected=model.selected_nodes,
        divergences_of_selected=at_selected,
        divergences=divergence_counts(model.divergences, at_selected, shown),
        curves=[_curves(parameters, rows[k], at_selected[k], k) for k in shown],
        overlaps=optional.overlaps,
        correlations=None if optional.precision is None else _correlations(optional.precision[:MOST_PICTURES]),
        shrinkage=optional.shrinkage,
        importances=optional.importances,
        feature_names=None if model.names is None else [str(name) for name in model.names],
    )


def _rows_of_classes(selected: NDArray[np.int64], n_classes: int) -> NDArray[np.int64]:
    """(class or 1, rank) selected nodes -> (class, rank), the shared row once for each class."""
    return np.broadcast_to(selected, (n_classes, selected.shape[1]))


def _at_nodes(divergences: NDArray[np.float64], rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """(class, node), (class, rank) nodes -> (class, rank) divergences; NaN where there is no node."""
    found = np.take_along_axis(divergences, np.maximum(rows, 0), axis=1)
    return np.where(rows == NO_NODE, np.nan, found)


def _classes_shown(at_selected: NDArray[np.float64]) -> list[int]:
    """The classes that get figures of their own: all, or those whose best node separates them least, in their order."""
    best = np.nanmax(at_selected, axis=1)
    return np.sort(np.argsort(best, kind="stable")[:MOST_PANELS]).tolist()


def _normalization(requested: str | None, parameters: NetworkParameters) -> str:
    words = {
        None: "none; one constant vector is subtracted from all samples, which changes no result",
        "sample": "each sample is scaled to mean 0 and standard deviation 1",
        "feature": "each feature is scaled to mean 0 and standard deviation 1 over the training samples",
    }
    applied = parameters.preprocessing.normalize
    chosen = "" if applied == requested else f" (chosen by {requested!r})"
    return f"{words.get(applied, applied)}{chosen}"


def _fallbacks(model: FittedModel) -> dict[str, str]:
    """How many spreads and bandwidths came from another estimator than the one requested."""
    counts = dict(zip(SPREAD_SOURCES, model.source_counts.sum(axis=0).tolist(), strict=True))
    others = {name: count for name, count in counts.items() if name != model.settings.spread and count}
    spreads = ", ".join(f"{count:,} by {name}" for name, count in others.items()) or "none"
    total = sum(counts.values())
    bandwidths = ", ".join(f"{count:,} by the {name}" for name, count in model.bandwidth_fallbacks.items() if count)
    return {
        "spreads by a fallback": f"{spreads}, of {total:,}",
        "bandwidths by a fallback": f"{bandwidths or 'none'}, of {model.density_error.size:,}",
    }


def divergence_counts(
    divergences: NDArray[np.float64], at_selected: NDArray[np.float64], shown: Sequence[int]
) -> DivergenceCounts:
    """(class, node) divergences, (class, rank) those of selected nodes, classes drawn -> counts in common bins."""
    finite = [row[np.isfinite(row)] for row in divergences[list(shown)]]
    edges, linear_width = _common_edges(np.concatenate(finite))
    counts = np.array([np.histogram(row, edges)[0] for row in finite])
    selected = [row[np.isfinite(row)] for row in at_selected[list(shown)]]
    n_infinite = np.array([np.isinf(divergences[k]).sum() for k in shown])
    return DivergenceCounts(
        classes=list(shown),
        edges=edges,
        counts=counts,
        selected=selected,
        n_infinite=n_infinite,
        linear_width=linear_width,
    )


def _common_edges(values: NDArray[np.float64]) -> tuple[NDArray[np.float64], float | None]:
    """(value,) finite values -> (bin + 1,) edges that hold all of them, and the linear width of the scale."""
    if not len(values):
        return np.array([0.0, 1.0]), None
    low, high = float(values.min()), float(values.max())
    lower, upper = np.quantile(values, (0.25, 0.75))
    width = float(upper - lower)
    if width > 0 and high - low > WIDE_RANGE * width:
        ends = np.arcsinh(np.array([low, high]) / width)
        edges = width * np.sinh(np.linspace(ends[0], ends[1], N_DIVERGENCE_BINS + 1))
        edges[[0, -1]] = low, high
        return edges, width
    if high == low:
        low, high = low - 0.5, high + 0.5
    return np.linspace(low, high, N_DIVERGENCE_BINS + 1), None


def _curves(
    parameters: NetworkParameters, row: NDArray[np.int64], divergences: NDArray[np.float64], k: int
) -> NodeCurves:
    """One class, its (rank,) selected nodes and their divergences -> the densities along the best of them."""
    best = int(np.nanargmax(divergences))
    node = int(row[best])
    u = int(np.searchsorted(parameters.nodes, node))
    drawn = nearest_classes(parameters, u, k)
    points = _points(parameters, u, drawn)
    densities = [
        np.exp(log_density(points, _thinned(parameters.ascending(j, u)), float(parameters.bandwidth[j, u])))
        for j in drawn
    ]
    return NodeCurves(
        of_class=k,
        node=node,
        divergence=float(divergences[best]),
        points=points,
        classes=drawn,
        densities=np.array(densities),
    )


def nearest_classes(parameters: NetworkParameters, u: int, k: int) -> list[int]:
    """One node and one class -> this class, then all others if there are few, or those with the nearest medians.

    Distances are in units of both spreads. Among equals, the earlier class is first.
    """
    n_classes = parameters.n_classes
    others = [j for j in range(n_classes) if j != k]
    if n_classes <= MOST_CURVES:
        return [k, *others]
    medians = np.array([_middle(parameters.ascending(j, u)) for j in range(n_classes)])
    spreads = np.hypot(parameters.spread[:, u], parameters.spread[k, u])
    gaps = np.abs(medians - medians[k])
    distances = np.divide(gaps, spreads, out=np.where(gaps > 0, np.inf, 0.0), where=spreads > 0)
    return [k, *sorted(others, key=lambda j: distances[j])[:NEAREST_SHOWN]]


def _middle(ascending: NDArray[np.float32]) -> float:
    return float(ascending[len(ascending) // 2])


def _points(parameters: NetworkParameters, u: int, classes: Sequence[int]) -> NDArray[np.float64]:
    """(point,) ascending values over the range of the training projections of these classes, without single outliers.

    Some lie in the range of each class, because one class is often much narrower than the others, or far from them.
    """
    ranges = []
    for k in classes:
        ascending, margin = parameters.ascending(k, u), 3 * parameters.bandwidth[k, u]
        left_out = int(SHARE_LEFT_OUT * len(ascending))
        ranges.append((float(ascending[left_out]) - margin, float(ascending[-1 - left_out]) + margin))
    lows, highs = zip(*ranges, strict=True)
    per_class = (CURVE_POINTS // 2) // (len(classes) + 1)
    # The first class is the node's own, whose curve matters most.
    parts = [np.linspace(*one, per_class * (1 if i else 2)) for i, one in enumerate(ranges)]
    everywhere = np.linspace(min(lows), max(highs), CURVE_POINTS - sum(map(len, parts)))
    return np.sort(np.concatenate([everywhere, *parts]))


def _thinned(ascending: NDArray[np.float32]) -> NDArray[np.float32]:
    step = -(-len(ascending) // MOST_KERNELS)
    return ascending[step // 2 :: step]


def _correlations(precision: NDArray[np.float64]) -> NDArray[np.float64]:
    """(class, u, u) inverse correlations minus the identity -> (class, u, u) correlations."""
    return np.linalg.inv(precision + np.eye(precision.shape[-1])).astype(np.float64)
