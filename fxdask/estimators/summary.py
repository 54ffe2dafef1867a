"""A fitted classifier as a few named numbers, for the command line."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.estimators.classifier import FisherNetworkClassifier
from fxdask.kernels.importance import shares_of_features

__all__ = ["summary_of"]

HIDDEN = {"store", "overwrite", "verbose", "random_state", "nodes_per_block", "memory_limit"}
FEATURES_SHOWN = 5


def summary_of(classifier: FisherNetworkClassifier) -> dict[str, Any]:
    """What a fitted model was made from and what it found, in types that JSON has."""
    rows = zip(
        classifier.classes_.tolist(),
        classifier.sample_counts_.tolist(),
        classifier.priors_.tolist(),
        _best_nodes(classifier).tolist(),
        strict=True,
    )
    return {
        "store": classifier.store_,
        "features": classifier.n_features_in_,
        "seed": classifier.seed_,
        "parameters": {name: value for name, value in classifier.get_params().items() if name not in HIDDEN},
        "projection": {"used": classifier.projection_, "requested": classifier.projection},
        "normalization": {"used": classifier.normalize_, "requested": classifier.normalize},
        "temperature": classifier.temperature_,
        "nodes_selected": len(classifier.network_.nodes),
        **_of_joint_models(classifier),
        "spreads_from": classifier.spread_sources_,
        **_important_features(classifier),
        "classes": [
            {"label": label, "samples": samples, "prior": prior, "best_node": node}
            for label, samples, prior, node in rows
        ],
    }


def _best_nodes(classifier: FisherNetworkClassifier) -> NDArray[np.int64]:
    """(class,) the selected node with the largest divergence of each class; shared nodes are not in this order."""
    nodes = classifier.selected_nodes_
    if len(nodes) == len(classifier.classes_):
        return nodes[:, 0]
    return nodes[0][classifier.divergences_[:, nodes[0]].argmax(axis=1)]


def _of_joint_models(classifier: FisherNetworkClassifier) -> dict[str, Any]:
    """How the overlap of the classes fell during a joint selection, and how much the joint rule shrank correlations."""
    facts: dict[str, Any] = {}
    overlaps, shrinkage = classifier.overlaps_, classifier.network_.learned.get("shrinkage")
    if overlaps is not None:
        steps = sorted({1, (len(overlaps) + 1) // 2, len(overlaps)})
        facts["overlap_of_the_classes"] = [{"nodes": step, "overlap": float(overlaps[step - 1])} for step in steps]
    if shrinkage is not None:
        facts["shrinkage"] = {"lowest": float(shrinkage.min()), "highest": float(shrinkage.max())}
    return facts


def _important_features(classifier: FisherNetworkClassifier) -> dict[str, Any]:
    """The features of the largest importance; nothing for an older store, where all weights would be drawn again."""
    correlations = classifier._fitted_model().importances
    if correlations is None:
        return {}
    importances = shares_of_features(correlations)
    names = getattr(classifier, "feature_names_in_", np.arange(len(importances)))
    best = np.argsort(-importances, kind="stable")[:FEATURES_SHOWN].tolist()
    rows = zip(names[best].tolist(), importances[best].tolist(), strict=True)
    return {"most_important_features": [{"feature": name, "importance": share} for name, share in rows]}
