"""The figures of the experiment's report."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from fxdask.experiment.example import Example
from fxdask.experiment.results import CRITERIA_COMPARED, Results
from fxdask.reporting.figures import CLASS_COLOURS, INK, new_figure, styled, svg_of

__all__ = ["agreement_figure", "density_figure", "divergence_figure", "response_figure", "variants_figure"]

SHOWN_POINTS = 600
SHOWN_SAMPLES = 250
RULE_MARKERS = {"sum": "o", "scaled": "D", "log": "^", "joint": "s"}
SELECTION_COLOURS = dict(zip(("top", "joint"), CLASS_COLOURS, strict=True))


def response_figure(example: Example, names: tuple[str, str]) -> str:
    """Sorted responses of all nodes to one test image of each class, for both classes' densities."""
    with styled():
        figure, axes = new_figure(1, 2, (8.4, 3.4), sharey=True)
        for i, own in enumerate(names):
            panel: Axes = axes[0, i]
            for k, of_class in enumerate(names):
                ascending = np.sort(example.responses[i, k])
                at = _spaced(len(ascending))
                panel.plot(at + 1, ascending[at], color=CLASS_COLOURS[k], label=f"densities of {of_class}")
            panel.set_title(f"a test image of {own}")
            panel.set_xlabel("node, sorted by its response")
            panel.legend(loc="upper left")
        axes[0, 0].set_ylabel("response: density per unit of projection")
        return svg_of(figure, "Sorted responses of all nodes")


def _spaced(count: int) -> NDArray[np.intp]:
    """Count -> evenly spaced indices, at most SHOWN_POINTS, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, SHOWN_POINTS)).round().astype(np.intp))


def divergence_figure(example: Example, names: tuple[str, str]) -> str:
    """Histograms of the nodes' scores: the extended criterion of each class, and Fisher's."""
    with styled():
        figure, axes = new_figure(1, 2, (8.4, 3.2))
        left, right = axes[0]
        finite = [row[np.isfinite(row)] for row in example.divergences]
        all_finite = np.concatenate([*finite, np.zeros(1)])
        edges = np.linspace(all_finite.min(), all_finite.max() + 1e-9, 80)
        for k, (row, of_class) in enumerate(zip(finite, names, strict=True)):
            left.hist(row, edges, histtype="step", linewidth=1.4, color=CLASS_COLOURS[k], label=f"D of {of_class}")
        left.set_xlabel("extended criterion D")
        left.set_ylabel("nodes")
        left.set_yscale("log")
        left.legend()
        ratios = example.ratios[np.isfinite(example.ratios)]
        right.hist(ratios, 80, histtype="step", linewidth=1.4, color=INK)
        right.set_xlabel("Fisher's criterion F")
        right.set_ylabel("nodes")
        right.set_yscale("log")
        return svg_of(figure, "Distributions of the criteria over all nodes")


def density_figure(example: Example, names: tuple[str, str]) -> str:
    """The best node of each class: both classes' densities, and the values of test images."""
    with styled():
        figure, axes = new_figure(1, 2, (8.4, 3.4))
        for panel, found in zip(axes[0], example.densities, strict=True):
            lowest = 0.0
            for k, of_class in enumerate(names):
                panel.plot(found.values, found.densities[k], color=CLASS_COLOURS[k], label=f"{of_class}, training")
                lowest -= 0.05 * found.densities.max()
                tested = found.tested[k]
                shown = tested[:: max(1, len(tested) // SHOWN_SAMPLES)]
                panel.plot(
                    shown,
                    np.full(len(shown), lowest),
                    "|",
                    color=CLASS_COLOURS[k],
                    alpha=0.5,
                    label=f"{of_class}, test",
                )
            panel.axhline(0, color=INK, linewidth=0.5)
            panel.set_title(f"node {found.node:,}, the best for {names[found.of_class]}")
            panel.set_xlabel("projection, in standard deviations of a pixel")
            panel.legend(fontsize=8)
        for panel in axes[0]:
            panel.set_ylabel("density per unit of projection")
        return svg_of(figure, "Densities of two selected nodes")


def agreement_figure(results: Results) -> str | None:
    """Accuracy of every pair against the paper's; None if the paper has no figures for it."""
    published = {criterion: results.published_mean(criterion) for criterion in CRITERIA_COMPARED}
    if results.published is None:
        return None
    with styled():
        figure, axes = new_figure(1, 1, (5.2, 4.6))
        panel: Axes = axes[0, 0]
        markers = dict(zip(CRITERIA_COMPARED, ("o", "s"), strict=True))
        for k, criterion in enumerate(CRITERIA_COMPARED):
            panel.errorbar(
                np.asarray(published[criterion]),
                results.mean(criterion),
                yerr=np.nan_to_num(results.interval(criterion)),
                fmt=markers[criterion],
                color=CLASS_COLOURS[k],
                markersize=4,
                elinewidth=0.8,
                label=criterion.replace("_", " "),
            )
        ends = [panel.get_xlim(), panel.get_ylim()]
        both = (min(low for low, _ in ends), max(high for _, high in ends))
        panel.plot(both, both, color=INK, linewidth=0.8, linestyle="--", label="equal")
        panel.set_xlabel("accuracy in the paper, %")
        panel.set_ylabel("accuracy of this run, % (bars: 95% interval)")
        panel.legend()
        return svg_of(figure, "Accuracy of every pair in this run and in the paper")


def variants_figure(results: Results, pair_names: list[str]) -> str:
    """The mean accuracy of every variant for every pair; pairs are sorted by the paper's own network."""
    order = np.argsort(results.mean("extended_fisher"), kind="stable")
    rows = np.arange(len(order))
    with styled():
        figure, axes = new_figure(
            1, 2, (8.4, 1.9 + 0.2 * len(order)), layout="constrained", sharey=True, width_ratios=(3, 2)
        )
        for panel, criterion in zip(axes[0], CRITERIA_COMPARED, strict=True):
            theirs = results.published_mean(criterion)
            if theirs is not None:
                panel.plot(theirs[order], rows, "|", color=INK, markersize=9, label="the paper's figure")
            for variant in results.variants:
                if variant.criterion == criterion:
                    panel.plot(
                        results.mean(variant.name)[order],
                        rows,
                        RULE_MARKERS[variant.rule],
                        color=SELECTION_COLOURS[variant.selection],
                        markersize=4.5,
                        markerfacecolor="none" if variant.selection == "top" else None,
                        label=f"{variant.rule}, {variant.selection}",
                    )
            panel.set_title(f"nodes ranked by {criterion.replace('_', ' ')}")
            panel.set_xlabel("accuracy, %")
            panel.set_yticks(rows, [pair_names[i] for i in order])
            panel.set_ylim(-0.7, len(order) - 0.3)
            panel.grid(axis="y", linewidth=0.3)
        # The left panel has every rule and selection, so its legend serves both.
        figure.legend(
            *axes[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=5, title="rule, selection"
        )
        return svg_of(figure, "Accuracy of every pair by rule and selection")
