"""The experiment's results as one self-contained HTML page."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fxdask.experiment.datasets import DATASETS, PUBLISHED_SPLIT, UNKNOWN_SPLIT
from fxdask.experiment.example import Example
from fxdask.experiment.figures import (
    agreement_figure,
    density_figure,
    divergence_figure,
    response_figure,
    variants_figure,
)
from fxdask.experiment.results import CRITERIA_COMPARED, Pair, Results
from fxdask.reporting.figures import image_data
from fxdask.reporting.page import (
    Cell,
    captioned,
    check_report_path,
    colour_scale,
    definitions,
    html_page,
    matrix,
    share_of_range,
    table,
    write_report,
)
from fxdask.sizes import format_bytes

__all__ = ["page", "write_page"]

GENERATOR = "fxdask reproduce"
TITLES = {"extended_fisher": "Extended Fisher criterion", "fisher": "Fisher's criterion"}

SHIFT = (
    "At every node the second class is shifted so that the two interquartile means differ by a draw from N(0, 1), "
    "which depends on seed, pair and node; its test images are shifted by the same amount."
)
READINGS = (
    "Each image is scaled to mean 0 and standard deviation 1.",
    "Locations are interquartile means, spreads MAD / 0.6745, bandwidths Silverman's, over the training images.",
    "Both classes have the same prior, in the criterion and in the decision.",
    SHIFT,
    "Both criteria choose from the same nodes, and the ten classes are measured once for each seed.",
)

RULES = {
    "sum": "Rule sum, the paper's: the sum of a class's densities over its own nodes.",
    "scaled": "Rule scaled: the same, with each density multiplied by the class's spread at the node.",
    "log": "Rule log: the sum of log densities over the nodes of both classes.",
    "joint": "Rule joint: the joint density of the nodes of both classes, by a Gaussian copula for each class.",
}
SELECTIONS = {
    "top": "Selection top, the paper's: the best nodes of each class by the criterion.",
    "joint": "Selection joint: nodes that both classes share, each chosen because it leaves the smallest overlap.",
}


def write_page(path: Path, results: Results, example: Example, image_shape: tuple[int, int]) -> None:
    """Write the page; an existing file is overwritten only if it is a report too."""
    check_report_path(path, GENERATOR)
    write_report(path, page(results, example, image_shape))


def page(results: Results, example: Example, image_shape: tuple[int, int]) -> str:
    """The whole report as HTML."""
    facts = DATASETS[results.identity["dataset"]]
    title = f"Random-projection networks on {facts.title}: extended against plain Fisher"
    parts = [
        f"<h1>{escape(title)}</h1>",
        _opening(results),
        _summary(results),
        _notes(results),
        "<h2>Accuracy of every pair</h2>",
        _legend(results),
        *(_matrix(results, criterion) for criterion in CRITERIA_COMPARED),
        _gains(results),
        _agreement(results),
        _beyond_the_paper(results),
        _figures(results, example, image_shape),
        _run_facts(results),
    ]
    return html_page(title, GENERATOR, parts)


def _opening(results: Results) -> str:
    identity, n_seeds = results.identity, len(results.seeds)
    shift = "with nearly equal means in each pair" if identity["mean_shift"] else "without any shift"
    n_networks = len(results.variants) * len(results.pairs) * n_seeds
    return (
        f"<p>{_counted(len(results.pairs), 'pair')} of classes, {_counted(n_seeds, 'seed')}, "
        f"{identity['n_nodes']:,} random nodes, the best {identity['n_selected']} for each class, {shift}: "
        f"{n_networks:,} networks. The experiment is that of I. Alsolami and T. Fukai, "
        "<cite>An Extension of Fisher's Criterion</cite>, arXiv 2212.09225.</p>"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _summary(results: Results) -> str:
    rows = results.summary()
    has_paper = "paper" in rows[0]
    heads = ["criterion", "average of this run, %"]
    heads += ["average in the paper, %", "difference", "mean absolute difference of pairs"] if has_paper else []
    keys = ["average", *(["paper", "difference", "mean_absolute_difference"] if has_paper else [])]
    body = [
        [TITLES[row["criterion"]], *(f"{row[key]:+.2f}" if key == "difference" else f"{row[key]:.2f}" for key in keys)]
        for row in rows
    ]
    gain = ["Gain of the extended criterion", f"{rows[0]['average'] - rows[1]['average']:.2f}"]
    if has_paper:
        theirs = rows[0]["paper"] - rows[1]["paper"]
        gain += [f"{theirs:.2f}", f"{rows[0]['average'] - rows[1]['average'] - theirs:+.2f}", ""]
    return table(heads, [*body, gain])


def _notes(results: Results) -> str:
    notes = []
    if results.published is not None and results.facts.get("split") != PUBLISHED_SPLIT:
        notes.append(f"The images are {results.facts.get('split', UNKNOWN_SPLIT)}.")
    if results.published is None:
        notes.append("The paper has no figures for this experiment, so there is no comparison.")
    return "".join(f"<p><strong>Note.</strong> {escape(note)}</p>" for note in notes)


def _legend(results: Results) -> str:
    text = "Mean over the seeds in percent, ± half the width of its 95% interval (Student's t)."
    if len(results.seeds) == 1:
        text = "In percent, of one seed, so there is no interval."
    if results.published is not None:
        text += " Below it are the paper's figure and the difference"
        limit = "the root of the sum of both squared intervals"
        text += f", marked ▲ or ▼ if it is larger than {limit}." if len(results.seeds) > 1 else "."
    return f"<p>{text}</p>"


def _grid(results: Results, title: str, cell: Callable[[int], Cell]) -> str:
    """A table of classes by classes, as in the paper; ``cell`` gives the content of the pair with an index."""
    names = DATASETS[results.identity["dataset"]].class_names
    index: dict[Pair, int] = {pair: i for i, pair in enumerate(results.pairs)}
    firsts, seconds = (sorted({pair[side] for pair in results.pairs}) for side in (0, 1))
    rows = [(names[a], [cell(index[a, b]) if (a, b) in index else None for b in seconds]) for a in firsts]
    return matrix(title, [names[b] for b in seconds], rows)


def _matrix(results: Results, criterion: str) -> str:
    mean, interval, theirs = results.mean(criterion), results.interval(criterion), results.published_mean(criterion)
    published = results.published
    low, high = float(mean.min()), float(mean.max())

    def cell(i: int) -> Cell:
        text = f"<b>{mean[i]:.2f}</b>" + (f" ±{interval[i]:.2f}" if np.isfinite(interval[i]) else "")
        if theirs is not None and published is not None:
            allowed = np.hypot(interval[i], published.interval[criterion][results.pairs[i]])
            difference = mean[i] - theirs[i]
            shown = f"{difference:+.2f}"
            if difference > allowed:  # never true with one seed, whose interval is NaN
                shown = f'<span class="above">▲{shown}</span>'
            elif difference < -allowed:
                shown = f'<span class="below">▼{shown}</span>'
            text += f"<br><small>{theirs[i]:.2f}</small> {shown}"
        return Cell(text, share_of_range(mean[i], low, high))

    steps = [(f"{value:.1f}%", share_of_range(value, low, high)) for value in np.linspace(low, high, 4)]
    return _grid(results, TITLES[criterion], cell) + colour_scale([("colours of this table", False, steps)])


def _gains(results: Results) -> str:
    gain = results.mean("extended_fisher") - results.mean("fisher")
    extended, plain = (results.published_mean(criterion) for criterion in CRITERIA_COMPARED)
    largest = max(float(np.abs(gain).max()), 1e-9)

    def cell(i: int) -> Cell:
        text = f"<b>{gain[i]:+.2f}</b>"
        if extended is not None and plain is not None:
            text += f"<br><small>{extended[i] - plain[i]:+.2f}</small>"
        return Cell(text, abs(gain[i]) / largest, is_warm=bool(gain[i] < 0))

    colours = [("gain", False, [(f"{largest * share:+.1f}", share) for share in (0.25, 0.5, 1.0)])]
    if (gain < 0).any():
        colours.append(("loss", True, [(f"{-largest * share:+.1f}", share) for share in (0.25, 0.5, 1.0)]))
    return _grid(results, "Gain of the extended criterion over Fisher's, in points", cell) + colour_scale(colours)


def _agreement(results: Results) -> str:
    figure = agreement_figure(results)
    return "" if figure is None else captioned(figure, "Every pair in this run and in the paper.")


def _beyond_the_paper(results: Results) -> str:
    """Averages and pairs of other rules and selections than the paper's; nothing if there are none."""
    if not results.is_beyond_the_paper:
        return ""
    names = DATASETS[results.identity["dataset"]].class_names
    used = [RULES[variant.rule] for variant in results.variants]
    used += [SELECTIONS[variant.selection] for variant in results.variants]
    meanings = "".join(f"<li>{escape(text)}</li>" for text in dict.fromkeys(used))
    pair_names = [f"{names[a]} and {names[b]}" for a, b in results.pairs]
    text = "All networks choose from the same nodes, and have the same pairs, shifts and priors. "
    text += "Pairs are sorted by the paper's own rule and selection with the extended criterion."
    return "\n".join(
        [
            f"<h2>Beyond the paper's rule</h2><ul>{meanings}</ul>",
            _averages(results),
            captioned(variants_figure(results, pair_names), text),
            "<details><summary>The same figures as numbers</summary>",
            *(_pairs_of(results, criterion, pair_names) for criterion in CRITERIA_COMPARED),
            "</details>",
        ]
    )


def _averages(results: Results) -> str:
    """One row per variant: its average with its interval, and its gain over the paper's rule and selection."""
    heads = ["criterion, rule, selection", "average of the pairs, %", "95% interval", "gain over the paper's rule"]
    rows = []
    for variant, row in zip(results.variants, results.comparison(), strict=True):
        interval = "" if row["interval"] is None else f"±{row['interval']:.2f}"
        gain = "" if variant.is_papers else f"{row['gain']:+.2f}"
        named = f"{TITLES[variant.criterion]}, {variant.rule}, {variant.selection}"
        rows.append([named, f"{row['average']:.2f}", interval, gain])
    return table(heads, rows)


def _pairs_of(results: Results, criterion: str, pair_names: list[str]) -> str:
    """The means of every pair for one criterion, one column per rule and selection."""
    variants = [variant for variant in results.variants if variant.criterion == criterion]
    columns = [results.mean(variant.name) for variant in variants]
    heads = [TITLES[criterion], *(f"{variant.rule}, {variant.selection}" for variant in variants)]
    theirs = results.published_mean(criterion)
    if theirs is not None:
        columns, heads = [theirs, *columns], [heads[0], "the paper's", *heads[1:]]
    rows = [[name, *(f"{column[i]:.2f}" for column in columns)] for i, name in enumerate(pair_names)]
    return table(heads, rows)


def _figures(results: Results, example: Example, image_shape: tuple[int, int]) -> str:
    classes = DATASETS[results.identity["dataset"]].class_names
    names = (classes[example.pair[0]], classes[example.pair[1]])
    shift = f" {names[1]} is shifted as in the experiment." if results.identity["mean_shift"] else ""
    pictures = "".join(
        f'<figure><img alt="a test image of {escape(name)}" src="{image_data(pixels, image_shape)}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, pixels in zip(names, example.images, strict=True)
    )
    return "\n".join(
        [
            f"<h2>A closer look: {escape(names[0])} and {escape(names[1])}, seed {example.seed}</h2>",
            f'<div class="pictures">{pictures}</div>',
            captioned(
                response_figure(example, names),
                "Responses of all nodes to the two test images above; each class's densities are sorted separately."
                + shift,
            ),
            captioned(
                divergence_figure(example, names),
                "Scores of the nodes: the extended criterion has one value per class, Fisher's one for both. "
                "Infinite values are left out.",
            ),
            captioned(
                density_figure(example, names),
                "The best node of each class: densities of the training images, and some test images as vertical lines."
                + shift,
            ),
        ]
    )


def _run_facts(results: Results) -> str:
    facts = results.facts
    rows: list[tuple[str, Any]] = [
        ("data", facts.get("data")),
        ("images", f"{facts.get('training_images', 0):,} for training, {facts.get('test_images', 0):,} for testing"),
        ("split", facts.get("split")),
        ("seeds", ", ".join(map(str, results.seeds))),
        ("time of all seeds", f"{facts.get('seconds_of_all_seeds', 0):.1f} s"),
        ("bandwidths from a fallback", facts.get("fallbacks", 0)),
        ("time of this call", f"{facts.get('seconds', 0):.1f} s"),
    ]
    for process, work in facts.get("processes", {}).items():
        share = f"{work['blocks']} blocks of nodes, {work['pairs']} pairs, at most {format_bytes(work['peak_bytes'])}"
        rows.append((f"process {process}", share))
    rows += [(name, number) for name, number in facts.get("versions", {}).items()]
    applied = [text for text in READINGS if text != SHIFT or results.identity["mean_shift"]]
    readings = "".join(f"<li>{escape(text)}</li>" for text in applied)
    return f"<h2>How it was done</h2><ul>{readings}</ul><h2>This run</h2>{definitions(rows)}"
