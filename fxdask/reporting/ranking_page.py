"""The page of a ranking: the best features by each criterion, agreement of the criteria, densities of the best."""

from __future__ import annotations

from html import escape
from math import inf, isfinite, isnan
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.kernels.criteria.table import CRITERIA
from fxdask.reporting.figures import SERIES, new_figure, styled, svg_of
from fxdask.reporting.page import (
    Cell,
    check_report_path,
    definitions,
    html_page,
    key_of_curves,
    matrix,
    panels,
    write_report,
)
from fxdask.workflows.ranked import RankedFeatures

__all__ = ["GENERATOR", "ranking_page", "report_ranking"]

GENERATOR = "fxdask ranking"
MOST_BARS = 20
MOST_CLASSES = 20
MOST_COMPARED = 20
LONGEST_NAME = 32
FALSE_DISCOVERY_RATE = 0.05
PANEL = (4.0, 2.3)


def report_ranking(ranking: RankedFeatures, path: str | Path) -> None:
    """Write the page of a ranking."""
    if not isinstance(path, (str, Path)):
        raise InvalidInputError(f"path must be the path of a file, not {path!r}")
    check_report_path(Path(path), GENERATOR)
    write_report(Path(path), ranking_page(ranking))


def ranking_page(ranking: RankedFeatures) -> str:
    """The whole page as HTML."""
    n_features = len(ranking.names)
    by = _words(ranking.criteria[0]) if len(ranking.criteria) == 1 else f"{len(ranking.criteria)} criteria"
    title = f"{n_features:,} {'feature' if n_features == 1 else 'features'} ranked by {by}"
    parts = [
        f"<h1>{title}</h1>",
        _opening(ranking),
        *(_bars(ranking, name) for name in ranking.criteria),
        _agreement(ranking),
        _densities(ranking),
    ]
    return html_page(title, GENERATOR, filter(None, parts))


def _opening(ranking: RankedFeatures) -> str:
    counts = zip(ranking.classes.tolist(), ranking.class_counts.tolist(), strict=True)
    classes = ", ".join(f"{_short(label)}: {count:,}" for label, count in list(counts)[:MOST_CLASSES])
    more = len(ranking.classes) - MOST_CLASSES
    rows: list[tuple[str, object]] = [
        ("samples", f"{ranking.n_samples:,}"),
        ("classes", f"{classes} and {more:,} more" if more > 0 else classes),
        ("missing values left out", f"{int(ranking.missing.sum()):,}"),
    ]
    if ranking.n_anchors is not None:
        how = "all samples" if ranking.n_anchors >= ranking.n_samples else f"{ranking.n_anchors:,} of the samples"
        rows.append(("relief compares the neighbours of", how))
    rows.append(("store", ranking.store or "none, in memory only"))
    return definitions(rows)


def _bars(ranking: RankedFeatures, criterion: str) -> str:
    """The best features by one criterion as bars."""
    scores, order = ranking.score(criterion), ranking.order(criterion)[:MOST_BARS]
    finite = [float(scores[feature]) for feature in order if isfinite(scores[feature])]
    high, low = max(finite, default=1.0), min([0.0, *finite])
    p_values = ranking.p_value(criterion) if criterion in ranking.p_values else None
    body = "".join(_bar(ranking, feature, scores[feature], (low, high), p_values) for feature in order.tolist())
    heads = ("feature", "score") if p_values is None else ("feature", "score", "p")
    head = "".join(f'<th scope="col">{text}</th>' for text in heads) + "<td></td>"
    title = f"By {_words(criterion)}"
    return (
        f"<h2>{title}</h2><p>{escape(CRITERIA[criterion].summary.capitalize())}.{_discoveries(ranking, criterion)}</p>"
        f'<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table class="bars">'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _bar(
    ranking: RankedFeatures,
    feature: int,
    score: float,
    span: tuple[float, float],
    p_values: NDArray[np.float64] | None,
) -> str:
    low, high = span
    share = 1.0 if score == inf else (score - low) / (high - low) if score > low else 0.0
    p_value = "" if p_values is None else f"<td>{p_values[feature]:.2g}</td>"
    name = escape(_short(ranking.names[feature]))
    return (
        f'<tr><th scope="row">{name}</th><td>{score:.4g}</td>{p_value}<td><div style="--s:{share:.3g}"></div></td></tr>'
    )


def _discoveries(ranking: RankedFeatures, criterion: str) -> str:
    """How many features are accepted, for a criterion that is a test."""
    if criterion not in ranking.p_values:
        return ""
    p_values = ranking.p_value(criterion)
    found = [int((p_values <= ranking.threshold(criterion, FALSE_DISCOVERY_RATE, rule)).sum()) for rule in ("bh", "by")]
    return (
        f" Features accepted at a false discovery rate of {FALSE_DISCOVERY_RATE:.0%}: {found[0]:,} by "
        f"Benjamini and Hochberg, {found[1]:,} by Benjamini and Yekutieli."
    )


def _agreement(ranking: RankedFeatures) -> str:
    """Correlations of the ranks by each two criteria, and how many of the best features they share."""
    names = ranking.criteria
    if len(names) < 2 or len(ranking.names) < 2:
        return ""
    with np.errstate(invalid="ignore"):  # scores that are all equal correlate with none
        correlation = np.corrcoef([_shared_ranks(ranking.score(name)) for name in names])
    # Of few features the better half is compared, because all criteria share all features.
    n_best = min(MOST_COMPARED, -(-len(ranking.names) // 2))
    best = [set(ranking.order(name)[:n_best].tolist()) for name in names]

    def cell(i: int, j: int) -> Cell | None:
        if i == j:
            return None
        value, shared = float(correlation[i, j]), len(best[i] & best[j])
        if isnan(value):
            return Cell("none", hint=f"all scores by {names[i]} or by {names[j]} are equal")
        text = f"<b>{value:.2f}</b><br><small>{shared} of {n_best}</small>"
        return Cell(text, abs(value), is_warm=value < 0, hint=f"{names[i]} and {names[j]}")

    rows = [(_words(name), [cell(i, j) for j in range(len(names))]) for i, name in enumerate(names)]
    caption = f"Correlation of the ranks, and features that both have among their first {n_best}"
    return "<h2>Agreement of the criteria</h2>" + matrix(caption, [_words(name) for name in names], rows)


def _shared_ranks(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(feature,) scores -> (feature,) ranks of which equal scores share their mean, so that ties show no agreement."""
    _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[places]


def _densities(ranking: RankedFeatures) -> str:
    """The densities of the classes along the best features."""
    if not len(ranking.shown):
        return ""
    n_shown = min(len(ranking.classes), len(SERIES))
    key = key_of_curves(
        (_short(label), css, line)
        for label, (_, css, line) in zip(ranking.classes[:n_shown].tolist(), SERIES, strict=False)
    )
    figures = []
    for feature, curves in zip(ranking.shown.tolist(), ranking.curves, strict=True):
        name = _short(ranking.names[feature])
        placed = ", ".join(f"{_words(one)} {ranking.rank(one)[feature]}" for one in ranking.criteria)
        figures.append(
            (_density_figure(curves[: n_shown + 1], f"Densities of {name}"), f"<b>{escape(name)}</b>: {placed}")
        )
    more = ""
    if n_shown < len(ranking.classes):
        more = f" The first {n_shown} of {len(ranking.classes)} classes are shown."
    text = (
        f"The best features by each criterion, with their ranks.{more} The outermost 0.5% on either side are left out."
    )
    return f"<h2>Densities of the best features</h2><p>{text}</p>{key}{panels(figures)}"


@styled()
def _density_figure(curves: NDArray[np.float64], title: str) -> str:
    figure, axes = new_figure(1, 1, PANEL)
    panel: Any = axes[0, 0]
    for heights, (colour, _, line) in zip(curves[1:], SERIES, strict=False):
        panel.plot(curves[0], heights, color=colour, linestyle=line, linewidth=1.5)
    panel.set_ylim(bottom=0)
    panel.ticklabel_format(axis="both", style="sci", scilimits=(-2, 4))
    panel.set_ylabel("density")
    return svg_of(figure, title)


def _words(criterion: str) -> str:
    return criterion.replace("_", " ")


def _short(name: Any) -> str:
    text = str(name)
    return text if len(text) <= LONGEST_NAME else f"{text[: LONGEST_NAME - 1]}…"
