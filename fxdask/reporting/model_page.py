"""A fitted model as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from math import isfinite, isnan, sqrt
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fxdask.errors import InvalidInputError
from fxdask.reporting.model_facts import DivergenceCounts, ModelFacts, NodeCurves, facts_of
from fxdask.reporting.model_figures import (
    FEW_SAMPLES,
    correlation_picture,
    density_figure,
    divergence_figure,
    is_cut,
    outlier_figure,
    overlap_figure,
    reliability_figure,
    series_of,
)
from fxdask.reporting.page import (
    Cell,
    captioned,
    check_report_path,
    colour_scale,
    definitions,
    html_page,
    key_of_curves,
    matrix,
    panels,
    share_of_range,
    table,
    write_report,
)
from fxdask.workflows.evaluate import Evaluation, LabelledSamples, evaluate_model
from fxdask.workflows.model import FittedModel

__all__ = ["page", "report_model"]

GENERATOR = "fxdask report"
MOST_CLASSES_IN_A_MATRIX = 26
MOST_PAIRS = 25
MOST_ROWS, MOST_RANKS = 200, 50
MOST_FEATURES = 20
LONGEST_NAME = 24


def report_model(
    model: FittedModel, path: str | Path, test: LabelledSamples | None, *, memory_limit: Any, verbose: bool
) -> Evaluation | None:
    """Write the page of a model, with its results on test samples if there are any; return these results."""
    if not isinstance(path, (str, Path)):
        raise InvalidInputError(f"path must be the path of a file, not {path!r}")
    path = Path(path)
    check_report_path(path, GENERATOR)
    evaluation = None
    if test is not None:
        evaluation = evaluate_model(model, test, memory_limit=memory_limit, verbose=verbose)
    write_report(path, page(facts_of(model), evaluation))
    return evaluation


def page(facts: ModelFacts, evaluation: Evaluation | None = None) -> str:
    """The whole page as HTML; sections that a model has no facts for are left out."""
    title = f"A network of random projections for {len(facts.class_names)} classes"
    parts = [
        f"<h1>{title}</h1>",
        _opening(facts, evaluation),
        _classes(facts, evaluation),
        *([] if evaluation is None else [_test_results(evaluation)]),
        _nodes(facts),
        _densities(facts),
        _divergences(facts),
        _overlaps(facts),
        _correlations(facts),
        _importances(facts),
        _parameters(facts),
    ]
    return html_page(title, GENERATOR, filter(None, parts))


def _opening(facts: ModelFacts, evaluation: Evaluation | None) -> str:
    tested = ""
    if evaluation is not None:
        tested = f" Of {evaluation.n_samples:,} test samples, it labels {100 * evaluation.accuracy:.2f}% correctly."
    return (
        f"<p>Fitted on {facts.sample_counts.sum():,} samples of {facts.n_features:,} features. "
        f"{facts.n_nodes:,} random projections, called nodes, were ranked by how well they separate the classes; "
        f"{facts.n_used:,} of them were selected. A class is scored by kernel densities of its training samples "
        f"at these nodes.{tested}</p>"
    )


def _classes(facts: ModelFacts, evaluation: Evaluation | None) -> str:
    heads = ["class", "samples", "prior, %"]
    columns: list[Iterable[str]] = [
        map(_short, facts.class_names),
        (f"{count:,}" for count in facts.sample_counts.tolist()),
        (_percent(prior) for prior in facts.priors.tolist()),
    ]
    if evaluation is not None:
        tested, predicted = evaluation.confusion[evaluation.label_codes].sum(axis=1), evaluation.confusion.sum(axis=0)
        heads += ["test samples", "recall, %", "precision, %"]
        columns.append(f"{count:,}" for count in tested.tolist())
        columns += [_percentages(evaluation.correct, of) for of in (tested, predicted)]
    return "<h2>Classes</h2>" + table(heads, list(zip(*columns, strict=True)))


def _percentages(parts: NDArray[np.int64], totals: NDArray[np.int64]) -> list[str]:
    pairs = zip(parts.tolist(), totals.tolist(), strict=True)
    return [_percent(part / total) if total else "-" for part, total in pairs]


# Test data


def _test_results(evaluation: Evaluation) -> str:
    correct = int(evaluation.correct.sum())
    rows = [
        ("accuracy", f"{100 * evaluation.accuracy:.2f}% ({correct:,} of {evaluation.n_samples:,} samples)"),
        ("log loss", "-" if isnan(evaluation.log_loss) else f"{evaluation.log_loss:#.4g} (natural logarithm)"),
        ("expected calibration error", f"{100 * evaluation.calibration_error:.2f} points"),
    ]
    note = ""
    if evaluation.n_unknown:
        note = (
            f"<p><strong>Note.</strong> The model does not know the labels of {evaluation.n_unknown:,} of the test "
            "samples. These count as wrong, and have no log loss.</p>"
        )
    return "\n".join(
        [
            "<h2>On test data</h2>",
            definitions(rows),
            note,
            _confusion(evaluation),
            "<h3>Reliability of the probabilities</h3>",
            captioned(
                reliability_figure(evaluation.counts),
                "Below: how many test samples have which probability. Above: the share of these that were labelled "
                "correctly. On the dashed line, the probabilities are right; below it, they are too high. "
                f"Hollow points are of fewer than {FEW_SAMPLES} samples.",
            ),
            _outliers(evaluation),
        ]
    )


def _confusion(evaluation: Evaluation) -> str:
    known = set(evaluation.label_codes.tolist())
    names = [_short(str(label)) for label in evaluation.labels.tolist()]
    rows = [name if i in known else f"{name} (unknown)" for i, name in enumerate(names)]
    heads = [names[i] for i in evaluation.label_codes.tolist()]
    if len(names) > MOST_CLASSES_IN_A_MATRIX:
        text = "<h3>Confusions</h3><p>The pairs of classes that were confused most often.</p>"
        return text + _worst_pairs(evaluation, rows, heads)
    scale = colour_scale(
        [
            ("correct, share of the row", False, [("25%", 0.25), ("50%", 0.5), ("100%", 1.0)]),
            ("wrong, share of the row", True, [("1%", 0.1), ("5%", sqrt(0.05)), ("25%", 0.5), ("100%", 1.0)]),
        ]
    )
    cells = [(row, _confusion_cells(evaluation, i, row, heads)) for i, row in enumerate(rows)]
    shown = matrix("true class by row, predicted class by column", heads, cells)
    return f"<h3>Confusion matrix</h3>{shown}{scale}"


def _confusion_cells(evaluation: Evaluation, i: int, row: str, heads: list[str]) -> list[Cell]:
    """The cells of one true label; the colour of errors grows with the root of their share, so that few are seen."""
    counts, own = evaluation.confusion[i], evaluation.label_codes == i
    total = max(1, int(counts.sum()))
    cells = []
    for count, is_own, head in zip(counts.tolist(), own.tolist(), heads, strict=True):
        share = count / total
        hint = f"{row} labelled {head}: {count:,}, {100 * share:.1f}% of {row}"
        content = _compact(count, len(heads)) if count else ""
        cells.append(Cell(content, share if is_own else sqrt(share), is_warm=not is_own, hint=hint))
    return cells


def _worst_pairs(evaluation: Evaluation, rows: list[str], heads: list[str]) -> str:
    """A table of the most frequent confusions."""
    errors = evaluation.confusion.copy()
    totals = errors.sum(axis=1)
    errors[evaluation.label_codes, np.arange(len(heads))] = 0
    order = np.argsort(-errors, axis=None, kind="stable")[:MOST_PAIRS]
    listed = [
        [rows[i], heads[k], f"{errors[i, k]:,}", _percent(errors[i, k] / totals[i])]
        for i, k in zip(*np.unravel_index(order, errors.shape), strict=True)
        if errors[i, k]
    ]
    if not listed:
        return "<p>No sample was labelled wrongly.</p>"
    return table(["true class", "predicted class", "samples", "share of the true class, %"], listed)


def _outliers(evaluation: Evaluation) -> str:
    counts = evaluation.counts
    figure, n_outside = outlier_figure(counts.scores_correct, counts.scores_wrong)
    key = key_of_curves([("labelled correctly", "first", "solid"), ("labelled wrongly", "second", "dashed")])
    outside = f" {n_outside:,} even lower scores are left of the figure." if n_outside else ""
    text = "The lower the score of a test sample, the less it resembles the training samples of any class." + outside
    return f"<h3>Outlier scores</h3>{key}{captioned(figure, text)}"


# Nodes


def _nodes(facts: ModelFacts) -> str:
    return "<h2>Selected nodes</h2>" + (_shared_nodes(facts) if facts.is_shared else _nodes_by_class(facts))


def _nodes_by_class(facts: ModelFacts) -> str:
    n_rows, n_ranks = min(MOST_ROWS, len(facts.selected)), min(MOST_RANKS, facts.selected.shape[1])
    divergences = facts.divergences_of_selected[:n_rows, :n_ranks]
    low, high = _finite_range(divergences)

    def cell(node: int, score: float) -> Cell | None:
        if node < 0:
            return None
        return Cell(f"{node}<br><small>{_aligned(score, high)}</small>", share_of_range(score, low, high))

    rows = [
        (_short(name), [cell(node, score) for node, score in zip(nodes.tolist(), scores.tolist(), strict=True)])
        for name, nodes, scores in zip(
            facts.class_names[:n_rows], facts.selected[:n_rows, :n_ranks], divergences, strict=True
        )
    ]
    heads = [str(rank + 1) for rank in range(n_ranks)]
    steps = [(_aligned(value, high), share_of_range(value, low, high)) for value in np.linspace(low, high, 4).tolist()]
    text = "<p>The nodes of each class, best first, and below each its divergence D from the nearest other class.</p>"
    left_out = _left_out(
        (len(facts.selected), n_rows, "classes"), (facts.selected.shape[1], n_ranks, "nodes of a class")
    )
    shown = matrix("class by row, rank by column", heads, rows)
    return text + shown + colour_scale([("D", False, steps)]) + left_out


def _shared_nodes(facts: ModelFacts) -> str:
    nodes, divergences = facts.selected[0], facts.divergences_of_selected
    used = np.flatnonzero(nodes >= 0)[:MOST_ROWS]
    heads = ["step", "node", "largest D", "of class"]
    with_overlap = facts.overlaps is not None and len(facts.overlaps) >= len(used)
    heads += ["overlap Q after this step"] if with_overlap else []
    rows = []
    for rank in used.tolist():
        k = int(np.argmax(divergences[:, rank]))
        row = [str(rank + 1), str(nodes[rank]), _number(divergences[k, rank]), _short(facts.class_names[k])]
        rows.append(row + ([_number(facts.overlaps[rank])] if with_overlap and facts.overlaps is not None else []))
    text = "<p>All classes share these nodes, which were selected one after the other.</p>"
    return text + table(heads, rows) + _left_out((int((nodes >= 0).sum()), len(used), "nodes"))


def _left_out(*parts: tuple[int, int, str]) -> str:
    """A sentence about what a table leaves out, from (number, number shown, name) of each kind."""
    found = [f"the first {shown:,} of {total:,} {name}" for total, shown, name in parts if shown < total]
    return f"<p>The table has {' and '.join(found)}.</p>" if found else ""


def _densities(facts: ModelFacts) -> str:
    n_classes = len(facts.class_names)
    figures = [
        (density_figure(curves, n_classes, f"Densities {i}"), _density_caption(facts, curves))
        for i, curves in enumerate(facts.curves)
    ]
    text = "Kernel densities of the training samples along the best node of each class, whose own density is filled."
    if facts.curves and len(facts.curves[0].classes) < n_classes:
        n_others = len(facts.curves[0].classes) - 1
        text += f" Beside it are the {n_others} classes whose medians are nearest, in units of their spreads."
    return (
        f"<h2>Densities of the best nodes</h2><p>{text}{_only_hardest(facts, len(facts.curves))}</p>{panels(figures)}"
    )


def _density_caption(facts: ModelFacts, curves: NodeCurves) -> str:
    series = series_of(curves, len(facts.class_names))
    key = key_of_curves(
        (_short(facts.class_names[k]), name, line) for k, (_, name, line) in zip(curves.classes, series, strict=True)
    )
    cut = f"; its peak of {_number(curves.densities[0].max())} is cut off" if is_cut(curves) else ""
    name = escape(_short(facts.class_names[curves.of_class]))
    return f"<b>{name}</b>, node {curves.node}, D = {_number(curves.divergence)}{cut}{key}"


def _only_hardest(facts: ModelFacts, n_shown: int) -> str:
    n_classes = len(facts.class_names)
    return f" Shown are the {n_shown} of {n_classes:,} classes with the smallest D." if n_shown < n_classes else ""


def _divergences(facts: ModelFacts) -> str:
    found = facts.divergences
    figures = [
        (divergence_figure(found, i, "divergence D", f"Divergences {i}"), _divergence_caption(facts, found, i))
        for i in range(len(found.classes))
    ]
    text = (
        f"Histograms of D over all {facts.n_nodes:,} nodes, by the criterion {facts.node_criterion!r}. "
        "Ticks at the top are the selected nodes."
    )
    if found.linear_width is not None:
        text += " The axis of D is linear near zero and logarithmic beyond."
    return f"<h2>Distribution of D</h2><p>{escape(text)}{_only_hardest(facts, len(figures))}</p>{panels(figures)}"


def _divergence_caption(facts: ModelFacts, found: DivergenceCounts, i: int) -> str:
    infinite = int(found.n_infinite[i])
    left_out = f"; {infinite:,} infinite values are left out" if infinite else ""
    return f"<b>{escape(_short(facts.class_names[found.classes[i]]))}</b>{left_out}"


# What only some models have


def _overlaps(facts: ModelFacts) -> str:
    if facts.overlaps is None or not len(facts.overlaps):
        return ""
    text = (
        f"Expected overlap of the classes after each node of the joint selection: {_number(facts.overlaps[0])} with "
        f"one node, {_number(facts.overlaps[-1])} with all {len(facts.overlaps)}."
    )
    return "<h2>Overlap against the number of nodes</h2>" + captioned(overlap_figure(facts.overlaps), text)


def _correlations(facts: ModelFacts) -> str:
    if facts.correlations is None:
        return ""
    shown, figures = facts.correlations, []
    for k, of_class in enumerate(shown):
        name = escape(_short(facts.class_names[k]))
        picture = f'<img class="picture" alt="correlations of {name}" src="{correlation_picture(of_class)}">'
        shrunk = "" if facts.shrinkage is None else f", shrunk by {_number(facts.shrinkage[k])}"
        typical = sqrt(_mean_square_off_diagonal(of_class))
        figures.append((picture, f"<b>{name}</b>: root mean square {typical:.2f}{shrunk}"))
    scale = colour_scale(
        [
            ("positive", False, [("0.25", 0.25), ("0.5", 0.5), ("1", 1.0)]),
            ("negative", True, [("-0.25", 0.25), ("-0.5", 0.5), ("-1", 1.0)]),
        ]
    )
    text = (
        f"<p>Correlations of the {shown.shape[-1]} selected nodes within each class, in the order of the nodes' "
        f"numbers, as the rule {escape(repr(facts.parameters['combine']))} uses them.</p>"
    )
    left_out = _left_out((len(facts.class_names), len(shown), "classes")).replace("The table has", "Shown are")
    return f"<h2>Correlations of the nodes</h2>{text}{panels(figures)}{scale}{left_out}"


def _mean_square_off_diagonal(correlations: NDArray[np.float64]) -> float:
    n_nodes = len(correlations)
    return float(((correlations**2).sum() - (np.diag(correlations) ** 2).sum()) / max(1, n_nodes * (n_nodes - 1)))


def _importances(facts: ModelFacts) -> str:
    if facts.importances is None:
        return ""
    order = np.argsort(-facts.importances, kind="stable")[:MOST_FEATURES]
    names = facts.feature_names or [f"feature {i}" for i in range(facts.n_features)]
    largest = max(float(facts.importances[order[0]]), 1e-300)
    head = '<th scope="col">feature</th><th scope="col">importance, %</th><td></td>'
    body = "".join(
        f'<tr><th scope="row">{escape(_short(names[i]))}</th><td>{_percent(facts.importances[i])}</td>'
        f'<td><div style="--s:{facts.importances[i] / largest:.3f}"></div></td></tr>'
        for i in order.tolist()
    )
    text = f"<p>The {len(order)} most important of {facts.n_features:,} features; all together have 100%.</p>"
    return (
        f'<h2>Most important features</h2>{text}<div class="scroll" tabindex="0" role="region" '
        f'aria-label="Most important features"><table class="bars"><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _parameters(facts: ModelFacts) -> str:
    rows: list[tuple[str, object]] = [
        *((name, _parameter(value)) for name, value in facts.parameters.items()),
        ("seed", facts.seed),
        ("normalisation", facts.normalization),
        *facts.fallbacks.items(),
        ("error bound of tabulated densities", f"{facts.density_error:.1e}, relative"),
        ("temperature of the probabilities", f"{facts.temperature:.3g}"),
        ("store", facts.store or "none, in memory only"),
    ]
    return "<h2>Parameters</h2>" + definitions(rows)


# Numbers and names as text


def _parameter(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return ", ".join(map(_parameter, value))
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _number(value: float) -> str:
    """A number with four significant digits; infinity as a sign."""
    if not isfinite(value):
        return "-" if isnan(value) else ("∞" if value > 0 else "-∞")
    return f"{value:,.0f}" if 10_000 <= abs(value) < 10_000_000 else f"{value:.4g}"


def _aligned(value: float, largest: float) -> str:
    """A number of a table with as many decimals as the largest one needs."""
    if not isfinite(value) or abs(largest) >= 10_000:
        return _number(value)
    return f"{value:.{2 if abs(largest) < 100 else 1}f}"


def _percent(share: float) -> str:
    """A share in percent, with two decimals or, if it is very small, two digits."""
    return f"{100 * share:.2f}" if share == 0 or share >= 1e-4 else f"{100 * share:.2g}"


def _compact(count: int, n_columns: int) -> str:
    """A count, shortened to thousands or millions where columns are narrow."""
    if n_columns <= 12 or count < 10_000:
        return f"{count:,}" if n_columns <= 12 else str(count)
    return f"{count / 1e6:.1f}M" if count >= 999_500 else f"{count / 1e3:.0f}k"


def _short(name: str) -> str:
    """A name of bounded length, without line breaks and other characters that do not print."""
    printable = "".join(character if character.isprintable() else " " for character in name).strip() or "(empty)"
    return printable if len(printable) <= LONGEST_NAME else printable[: LONGEST_NAME - 1] + "…"


def _finite_range(values: NDArray[np.float64]) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
