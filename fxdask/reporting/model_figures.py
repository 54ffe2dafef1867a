"""The figures of a model's report."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.kernels.evaluation import N_BINS, EvaluationCounts, RoundedCounts
from fxdask.reporting.figures import FAINT, PAGE, SERIES, image_data, new_figure, styled, svg_of
from fxdask.reporting.model_facts import DivergenceCounts, NodeCurves

__all__ = [
    "FEW_SAMPLES",
    "TALLEST_PEAK",
    "correlation_picture",
    "density_figure",
    "divergence_figure",
    "is_cut",
    "outlier_figure",
    "overlap_figure",
    "reliability_figure",
    "series_of",
]

PANEL = (4.0, 2.3)
# A fixed layout takes less than half the time of one that measures every text, and a page may have sixty panels.
PANEL_AXES = (0.17, 0.23, 0.78, 0.68)
"""Left, bottom, width and height of the axes, as shares of the figure."""
TALLEST_PEAK = 10
"""A peak may be this many times as high as those of the other classes; the rest of it is cut off."""

COOL, WARM = (60, 130, 200), (220, 110, 45)
"""Red, green and blue of positive and negative correlations, on light and on dark pages."""

FEW_SAMPLES = 10
MOST_TICKS = 6
N_SCORE_BINS = 60
RARE_SHARE, FARTHEST_SCORE = 0.05, 6


def series_of(curves: NodeCurves, n_classes: int) -> list[tuple[str, str, str]]:
    """(colour, CSS variable, line) of each curve: a class keeps its colour in all figures if there are few classes."""
    if n_classes <= len(SERIES):
        return [SERIES[k] for k in curves.classes]
    return list(SERIES[: len(curves.classes)])


def is_cut(curves: NodeCurves) -> bool:
    """Whether the peak of the node's own class is too high to be drawn whole."""
    return bool(curves.densities[0].max() > TALLEST_PEAK * curves.densities[1:].max())


def _new_panel() -> tuple[Any, Any]:
    """A small empty figure, one of many on a page, and its axes."""
    figure, axes = new_figure(1, 1, PANEL)
    axes[0, 0].set_position(PANEL_AXES)
    return figure, axes[0, 0]


def _count_axis(panel: Any, largest: int) -> None:
    """Make the vertical axis one of counts up to about the largest, logarithmic, so that single ones are seen."""
    panel.set_yscale("log")
    panel.set_ylim(0.6, 2.5 * max(1, largest))
    panel.yaxis.set_major_formatter(lambda count, _: _count_text(count))
    panel.yaxis.set_minor_formatter("")


def _count_text(count: float) -> str:
    for unit, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if count >= unit:
            return f"{count / (1e3 if letter == 'k' else unit):.0f}{letter}"
    return f"{count:,.0f}"


@styled()
def density_figure(curves: NodeCurves, n_classes: int, title: str) -> str:
    """The densities of some classes along one node; the area below that of the node's own class is filled."""
    figure, panel = _new_panel()
    for i, (colour, _, line) in enumerate(series_of(curves, n_classes)):
        panel.plot(curves.points, curves.densities[i], color=colour, linestyle=line, linewidth=1.2 if i else 2)
        if i == 0:
            panel.fill_between(curves.points, curves.densities[i], color=colour, alpha=0.15, linewidth=0)
    top = TALLEST_PEAK * curves.densities[1:].max() if is_cut(curves) else 1.05 * curves.densities.max()
    panel.set_ylim(0, top)
    panel.set_xlim(curves.points[0], curves.points[-1])
    # Without a common power of ten, long numbers would push the label out of the figure.
    panel.ticklabel_format(axis="both", style="sci", scilimits=(-2, 4))
    panel.locator_params(axis="x", nbins=5)
    panel.set_xlabel("projection, centred")
    panel.set_ylabel("density")
    return svg_of(figure, title)


@styled()
def divergence_figure(found: DivergenceCounts, index: int, criterion: str, title: str) -> str:
    """Histogram of one class's divergences over all nodes, with a tick for each selected node."""
    figure, panel = _new_panel()
    if found.linear_width is not None:
        ticks = spaced_ticks(float(found.edges[0]), float(found.edges[-1]), found.linear_width)
        panel.set_xscale("asinh", linear_width=found.linear_width)
        panel.set_xticks(ticks, [f"{tick:,g}" for tick in ticks])
        panel.set_xticks([], minor=True)
    _count_axis(panel, int(found.counts.max()))
    panel.stairs(found.counts[index], found.edges, color=FAINT, fill=True, alpha=0.45)
    selected = found.selected[index]
    # The ticks stand at the top, where no bar reaches them.
    panel.plot(
        selected,
        np.full(len(selected), 0.94),
        "|",
        color=SERIES[0][0],
        markersize=11,
        markeredgewidth=1.4,
        transform=panel.get_xaxis_transform(),
    )
    panel.set_xlabel(criterion)
    panel.set_ylabel("nodes")
    return svg_of(figure, title)


def spaced_ticks(low: float, high: float, linear_width: float) -> list[float]:
    """Zero and powers of ten between low and high whose labels do not overlap on an axis by the inverse sinh."""
    powers = [10.0**k for k in range(-9, 300) if linear_width <= 10.0**k <= max(-low, high)]
    candidates = [0.0, *reversed(powers), *(-power for power in reversed(powers))]
    apart = (np.arcsinh(high / linear_width) - np.arcsinh(low / linear_width)) / MOST_TICKS
    chosen: list[float] = []
    for tick in candidates:
        place = np.arcsinh(tick / linear_width)
        if low <= tick <= high and all(abs(place - np.arcsinh(other / linear_width)) >= apart for other in chosen):
            chosen.append(tick)
    return sorted(chosen)


@styled()
def overlap_figure(overlaps: NDArray[np.float64]) -> str:
    """Overlap of the classes against the number of nodes."""
    figure, axes = new_figure(1, 1, (6.0, 3.0))
    panel = axes[0, 0]
    n_nodes = np.arange(1, len(overlaps) + 1)
    panel.plot(n_nodes, overlaps, color=SERIES[0][0], marker="o", markersize=3)
    if (overlaps > 0).all():
        panel.set_yscale("log")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_xlabel("number of nodes")
    panel.set_ylabel("overlap of the classes, Q")
    return svg_of(figure, "Overlap of the classes against the number of nodes")


def correlation_picture(correlations: NDArray[np.float64]) -> str:
    """(u, u) correlations -> a data URL of their picture; the stronger one is, the less transparent is its pixel."""
    signs = correlations[..., None] < 0
    pixels = np.where(signs, WARM, COOL)
    opacity = np.minimum(1, np.abs(correlations)) * 255
    image = np.concatenate([pixels, np.rint(opacity)[..., None]], axis=-1).astype(np.uint8)
    return image_data(image, image.shape)


@styled()
def reliability_figure(counts: EvaluationCounts) -> str:
    """Share of correct labels against the probability of the predicted class, and the number of samples below it."""
    figure, axes = new_figure(2, 1, (4.8, 4.8), sharex=True, height_ratios=(3, 1))
    curve, bars = axes[:, 0]
    used = np.flatnonzero(counts.in_bin)
    share = counts.correct_in_bin[used] / counts.in_bin[used]
    curve.plot((0, 1), (0, 1), color=FAINT, linewidth=0.8, linestyle="--")
    curve.plot(counts.mean_probability[used], share, color=SERIES[0][0])
    for some, filled in ((counts.in_bin[used] >= FEW_SAMPLES, True), (counts.in_bin[used] < FEW_SAMPLES, False)):
        colour = SERIES[0][0]
        style = {"color": colour, "markersize": 5, "markerfacecolor": colour if filled else PAGE}
        curve.plot(counts.mean_probability[used][some], share[some], "o", **style)
    curve.set_xlim(-0.02, 1.02)
    curve.set_ylim(-0.03, 1.03)
    curve.set_ylabel("share of correct labels")
    _count_axis(bars, int(counts.in_bin.max()))
    bars.stairs(counts.in_bin, np.linspace(0, 1, N_BINS + 1), color=FAINT, fill=True, alpha=0.45)
    bars.set_ylabel("samples")
    bars.set_xlabel("probability of the predicted class")
    return svg_of(figure, "Reliability of the probabilities")


@styled()
def outlier_figure(correct: RoundedCounts, wrong: RoundedCounts) -> tuple[str, int]:
    """Histograms of the outlier scores, correct and wrong labels; and how many scores lie left of the figure."""
    values = np.concatenate([correct.values, wrong.values])
    weights = np.concatenate([correct.counts, wrong.counts])
    low, high = score_range(values, weights)
    edges = np.linspace(low, high, N_SCORE_BINS + 1)
    figure, axes = new_figure(1, 1, (6.4, 3.0))
    panel = axes[0, 0]
    bars = [np.histogram(part.values, edges, weights=part.counts)[0] for part in (correct, wrong)]
    _count_axis(panel, int(np.max(bars)))
    for heights, (colour, _, line) in zip(bars, SERIES, strict=False):
        panel.stairs(heights, edges, color=colour, linestyle=line, linewidth=1.4)
    panel.set_xlim(low, high)
    panel.set_xlabel("ln of the sum of all classes' scores")
    panel.set_ylabel("samples")
    return svg_of(figure, "Outlier scores of the test samples"), int(weights[values < low].sum())


def score_range(values: NDArray[np.float64], counts: NDArray[np.int64]) -> tuple[float, float]:
    """(value,) scores and how often each occurs -> the range of the figure; far outliers to the left are outside.

    The left end is the lowest score, but at most six times as far from the median as the 5% quantile.
    """
    order = np.argsort(values, kind="stable")
    values, below = values[order], np.cumsum(counts[order])
    middle, rare = (values[np.searchsorted(below, share * below[-1])] for share in (0.5, RARE_SHARE))
    low, high = max(values[0], middle - FARTHEST_SCORE * (middle - rare)), values[-1]
    return (float(low), float(high)) if low < high else (float(low) - 0.5, float(high) + 0.5)
