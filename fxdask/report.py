"""The experiment's results as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from fxdask.datasets import DATASETS, PUBLISHED_SPLIT, UNKNOWN_SPLIT
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.example import Example
from fxdask.figures import agreement_figure, density_figure, divergence_figure, image_data, response_figure
from fxdask.plan import format_bytes
from fxdask.results import CRITERIA_COMPARED, Pair, Results, replace_file

__all__ = ["check_place", "page", "write_page"]

BYTES_OF_HEAD = 2000

GENERATOR = '<meta name="generator" content="fxdask reproduce">'
TITLES = {"extended_fisher": "Extended Fisher criterion", "fisher": "Fisher's criterion"}

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2330; --faint: #667085; --line: #d5dae3;
  --panel: #f5f7fa; --first: #1762a6; --second: #b9480e; --above: #0b6e4f; --below: #a3242b; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --ink: #e6e9ef; --faint: #98a2b3; --line: #343b47; --panel: #1d222a;
    --first: #6db3f2; --second: #f59e5b; --above: #5fd3a5; --below: #ff8b8b; } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 76rem; padding: 1.5rem; }
h1 { font-size: 1.6rem; margin-bottom: .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
p { max-width: 48rem; } .faint, figcaption, caption { color: var(--faint); }
.scroll { margin: 1rem 0; overflow-x: auto; } table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; white-space: nowrap; } th { font-weight: 600; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: right; white-space: nowrap; }
thead th, tbody th { background: var(--panel); } td.none { background: var(--panel); border-color: var(--panel); }
.matrix td { font-size: .85rem; line-height: 1.3; min-width: 4.4rem; } .matrix b { font-size: .95rem; }
.matrix small { color: var(--faint); } .above { color: var(--above); } .below { color: var(--below); }
figure { margin: 1rem 0; } figure svg { height: auto; width: 100%; }
.pictures { display: flex; gap: 1.5rem; } .pictures img { border: 1px solid var(--line); height: 96px;
  image-rendering: pixelated; width: 96px; }
dl { display: grid; gap: .2rem 1.2rem; grid-template-columns: max-content 1fr; } dt { color: var(--faint); }
dd { margin: 0; overflow-wrap: anywhere; }
"""

SHIFT = (
    "At every node the second class is moved so that the two interquartile means differ by a draw from N(0, 1), which "
    "depends on seed, pair and node; its test images are moved with it."
)
READINGS = (
    "Each image is brought to mean 0 and standard deviation 1.",
    "Locations are interquartile means, spreads MAD / 0.6745, bandwidths Silverman's, over the training images.",
    "Both classes have the same prior, in the criterion and in the decision.",
    SHIFT,
    "Both criteria choose from the same nodes, and the ten classes are measured once for each seed.",
)


def write_page(path: Path, results: Results, example: Example, image_shape: tuple[int, int]) -> None:
    """Write the page; what stands there already is replaced only if it is such a page too."""
    check_place(path)
    replace_file(path, page(results, example, image_shape))


def check_place(path: Path) -> None:
    """Refuse a place where no report can be, or where something else is."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        reason = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise InvalidInputError(f"no report can be written to {path}: {reason}")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as stream:
            head = stream.read(BYTES_OF_HEAD)
        if GENERATOR.encode() not in head:
            raise StoreExistsError(f"{path} is there already and is no report of fxdask; choose another path")


def page(results: Results, example: Example, image_shape: tuple[int, int]) -> str:
    """All of the report."""
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
        _figures(results, example, image_shape),
        _run_facts(results),
    ]
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{GENERATOR}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _opening(results: Results) -> str:
    identity, n_seeds = results.identity, len(results.seeds)
    moved = "with the means of each pair moved together" if identity["mean_shift"] else "without any shift"
    n_networks = 2 * len(results.pairs) * n_seeds
    return (
        f"<p>{_counted(len(results.pairs), 'pair')} of classes, {_counted(n_seeds, 'seed')}, "
        f"{identity['n_nodes']:,} random nodes, the best {identity['n_selected']} for each class, {moved}: "
        f"{n_networks:,} networks. The experiment is that of I. Alsolami and T. Fukai, "
        "<cite>An Extension of Fisher's Criterion</cite>, arXiv 2212.09225.</p>"
    )


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _summary(results: Results) -> str:
    rows = results.summary()
    has_paper = "paper" in rows[0]
    heads = ["criterion", "average here, %"]
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
    return _table(heads, [*body, gain])


def _table(heads: list[str], rows: list[list[str]]) -> str:
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _notes(results: Results) -> str:
    notes = []
    if results.published is not None and results.facts.get("split") != PUBLISHED_SPLIT:
        notes.append(f"The images are {results.facts.get('split', UNKNOWN_SPLIT)}.")
    if results.published is None:
        notes.append("The paper has no figures for this experiment, so none stand beside these.")
    return "".join(f"<p><strong>Note.</strong> {escape(note)}</p>" for note in notes)


def _legend(results: Results) -> str:
    text = "Mean over the seeds in percent, ± half the width of its 95% interval (Student's t)."
    if len(results.seeds) == 1:
        text = "In percent, with one seed: of the spread over seeds nothing is known."
    if results.published is not None:
        text += " Below it the paper's figure and the difference"
        allowed = "larger than the intervals of both, added in squares, allow"
        text += f", marked ▲ or ▼ where it is {allowed}." if len(results.seeds) > 1 else "."
    return f"<p>{text}</p>"


def _grid(results: Results, title: str, cell: Callable[[int], str]) -> str:
    """A table of classes against classes, as the paper has it; ``cell`` gives the content of a pair by its place."""
    names = DATASETS[results.identity["dataset"]].class_names
    place: dict[Pair, int] = {pair: i for i, pair in enumerate(results.pairs)}
    firsts, seconds = (sorted({pair[side] for pair in results.pairs}) for side in (0, 1))
    head = "".join(f'<th scope="col">{escape(names[b])}</th>' for b in seconds)
    rows = []
    for a in firsts:
        cells = (f"<td>{cell(place[a, b])}</td>" if (a, b) in place else '<td class="none"></td>' for b in seconds)
        rows.append(f'<tr><th scope="row">{escape(names[a])}</th>{"".join(cells)}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">'
        f'<table class="matrix"><caption>{escape(title)}</caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _matrix(results: Results, criterion: str) -> str:
    mean, interval, theirs = results.mean(criterion), results.interval(criterion), results.published_mean(criterion)
    published = results.published

    def cell(i: int) -> str:
        text = f"<b>{mean[i]:.2f}</b>" + (f" ±{interval[i]:.2f}" if np.isfinite(interval[i]) else "")
        if theirs is None or published is None:
            return text
        allowed = np.hypot(interval[i], published.interval[criterion][results.pairs[i]])
        difference = mean[i] - theirs[i]
        shown = f"{difference:+.2f}"
        if difference > allowed:  # never with one seed, of which no interval is known
            shown = f'<span class="above">▲{shown}</span>'
        elif difference < -allowed:
            shown = f'<span class="below">▼{shown}</span>'
        return f"{text}<br><small>{theirs[i]:.2f}</small> {shown}"

    return _grid(results, TITLES[criterion], cell)


def _gains(results: Results) -> str:
    gain = results.mean("extended_fisher") - results.mean("fisher")
    extended, plain = (results.published_mean(criterion) for criterion in CRITERIA_COMPARED)

    def cell(i: int) -> str:
        text = f"<b>{gain[i]:+.2f}</b>"
        return text if extended is None or plain is None else f"{text}<br><small>{extended[i] - plain[i]:+.2f}</small>"

    return _grid(results, "Gain of the extended criterion over Fisher's, in points", cell)


def _agreement(results: Results) -> str:
    figure = agreement_figure(results)
    return "" if figure is None else _captioned(figure, "Every pair here and in the paper.")


def _captioned(figure: str, text: str) -> str:
    return f"<figure>{figure}<figcaption>{escape(text)}</figcaption></figure>"


def _figures(results: Results, example: Example, image_shape: tuple[int, int]) -> str:
    classes = DATASETS[results.identity["dataset"]].class_names
    names = (classes[example.pair[0]], classes[example.pair[1]])
    moved = f" {names[1]} is moved as the experiment asks." if results.identity["mean_shift"] else ""
    pictures = "".join(
        f'<figure><img alt="a test image of {escape(name)}" src="{image_data(pixels, image_shape)}">'
        f"<figcaption>{escape(name)}</figcaption></figure>"
        for name, pixels in zip(names, example.images, strict=True)
    )
    return "\n".join(
        [
            f"<h2>A closer look: {escape(names[0])} and {escape(names[1])}, seed {example.seed}</h2>",
            f'<div class="pictures">{pictures}</div>',
            _captioned(
                response_figure(example, names),
                "Responses of all nodes to the two test images above, each class's sorted by itself." + moved,
            ),
            _captioned(
                divergence_figure(example, names),
                "How the nodes score: the extended criterion has a value for each class, Fisher's one for both. "
                "Infinite values are left out.",
            ),
            _captioned(
                density_figure(example, names),
                "The best node of each class: densities of the training images, and some test images as strokes."
                + moved,
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
        ("bandwidths by a fallback", facts.get("fallbacks", 0)),
        ("time of this call", f"{facts.get('seconds', 0):.1f} s"),
    ]
    for process, work in facts.get("processes", {}).items():
        share = f"{work['blocks']} blocks of nodes, {work['pairs']} pairs, at most {format_bytes(work['peak_bytes'])}"
        rows.append((f"process {process}", share))
    rows += [(name, number) for name, number in facts.get("versions", {}).items()]
    listed = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in rows)
    applied = [text for text in READINGS if text != SHIFT or results.identity["mean_shift"]]
    readings = "".join(f"<li>{escape(text)}</li>" for text in applied)
    return f"<h2>How it was done</h2><ul>{readings}</ul><h2>This run</h2><dl>{listed}</dl>"
