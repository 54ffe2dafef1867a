"""Self-contained HTML pages for reports, light and dark: their look, tables, coloured matrices and captions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from math import inf, isnan
from pathlib import Path

from fxdask.errors import StoreExistsError
from fxdask.store.files import check_file_path, write_file

__all__ = [
    "Cell",
    "captioned",
    "check_report_path",
    "colour_scale",
    "definitions",
    "html_page",
    "key_of_curves",
    "matrix",
    "panels",
    "share_of_range",
    "table",
    "write_report",
]

BYTES_OF_HEAD = 2000

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2330; --faint: #667085; --line: #d5dae3;
  --panel: #f5f7fa; --first: #1762a6; --second: #b9480e; --third: #0b7a5a; --fourth: #8a3fa0; --fifth: #8a6d00;
  --sixth: #5b6577; --above: #0b6e4f; --below: #a3242b; --cool: 23 98 166; --warm: 205 90 20; --strongest: 52%; }
@media (prefers-color-scheme: dark) {
  :root { --page: #14171c; --ink: #e6e9ef; --faint: #98a2b3; --line: #343b47; --panel: #1d222a;
    --first: #6db3f2; --second: #f59e5b; --third: #5fd3a5; --fourth: #d59bea; --fifth: #e3c84f; --sixth: #aab3c2;
    --above: #5fd3a5; --below: #ff8b8b; --cool: 80 150 215; --warm: 225 125 60; --strongest: 62%; } }
body { background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 72rem; overflow-wrap: anywhere; padding: 1.5rem; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: .4rem 0 .2rem; } h2 { font-size: 1.2rem; margin-top: 2.2rem; }
h3 { font-size: 1rem; margin: 1.4rem 0 .3rem; }
p { max-width: 48rem; } .faint, figcaption, caption { color: var(--faint); }
.scroll { margin: 1rem 0; max-height: 60rem; overflow: auto; overflow-wrap: normal; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
caption { text-align: left; padding: .3rem 0; }
caption span { display: inline-block; left: 0; max-width: calc(100vw - 3rem); position: sticky; }
th { font-weight: 600; }
th, td { border: 1px solid var(--line); padding: .25rem .5rem; text-align: right; white-space: nowrap; }
thead th, tbody th { background: var(--panel); } td.none { background: var(--panel); border-color: var(--panel); }
tbody th { left: 0; position: sticky; } thead th { position: sticky; top: 0; z-index: 1; }
thead th { white-space: normal; }
.matrix { font-size: .8rem; line-height: 1.3; } .matrix th, .matrix td { min-width: 2rem; padding: .15rem .3rem; }
.matrix b { font-size: .88rem; } .matrix small { color: inherit; opacity: .8; }
.matrix.turned thead th { max-height: 12rem; min-width: 0; overflow: hidden; padding: .3rem .1rem; text-align: left;
  transform: rotate(180deg); vertical-align: bottom; writing-mode: vertical-rl; }
.matrix.turned td { font-size: .72rem; min-width: 1.5rem; padding: .15rem; }
.cool { background: rgb(var(--cool) / calc(var(--s) * var(--strongest))); }
.warm { background: rgb(var(--warm) / calc(var(--s) * var(--strongest))); }
.scale { color: var(--faint); display: flex; flex-wrap: wrap; font-size: .8rem; gap: .3rem 1.2rem; margin: .4rem 0; }
.scale span { color: var(--ink); display: inline-block; margin-left: .3rem; padding: .05rem .4rem; }
.above { color: var(--above); } .below { color: var(--below); }
.matrix .above, .matrix .below { color: inherit; font-weight: 600; }
figure { margin: 1rem 0; min-width: 0; overflow-x: auto; } figure svg { display: block; height: auto; width: 100%; }
figcaption { max-width: 48rem; }
.panels { display: grid; gap: .5rem 1.5rem; grid-template-columns: repeat(auto-fill, minmax(min(100%, 20rem), 1fr)); }
.panels figure { display: flex; flex-direction: column; justify-content: flex-end; margin: .5rem 0; }
.panels figcaption { color: var(--ink); order: -1; }
.key { display: flex; flex-wrap: wrap; font-size: .8rem; gap: 0 .9rem; }
.key i { border-top: 3px solid; display: inline-block; margin-right: .35rem; vertical-align: middle; width: 1.5rem; }
.picture { height: auto; image-rendering: pixelated; max-width: 22rem; width: 100%; }
.bars tbody th { min-width: 7rem; overflow-wrap: anywhere; white-space: normal; }
.bars tr td:last-child { min-width: 4rem; padding: .2rem 0; text-align: left; width: 24rem; }
@media (max-width: 40rem) { .bars { font-size: .85rem; } .bars th, .bars td { padding: .2rem .3rem; }
  .bars tr td:last-child { width: 6rem; } .scroll:has(.bars) { max-height: none; } }
.bars td div { background: var(--first); height: .8rem; width: calc(var(--s) * 100%); }
.pictures { display: flex; gap: 1.5rem; } .pictures img { border: 1px solid var(--line); height: 96px;
  image-rendering: pixelated; width: 96px; }
dl { display: grid; gap: .2rem 1.2rem; grid-template-columns: fit-content(45%) 1fr; }
dt { color: var(--faint); } dd { margin: 0; }
"""


def html_page(title: str, generator: str, parts: Iterable[str]) -> str:
    """A page made of its parts; the generator's name marks it as a report that may be overwritten."""
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8">{_generator_tag(generator)}\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _generator_tag(generator: str) -> str:
    return f'<meta name="generator" content="{escape(generator)}">'


def check_report_path(path: Path, generator: str) -> None:
    """Refuse a path that cannot be written, or that holds another file than a report."""
    check_file_path(path, "report")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as stream:
            head = stream.read(BYTES_OF_HEAD)
        if _generator_tag(generator).encode() not in head:
            raise StoreExistsError(f"{path} exists and is not a report of fxdask; choose another path")


def write_report(path: Path, page: str) -> None:
    """Write the page; readers find either the old page or the new one, never a part."""
    write_file(path, page, "report")


def table(heads: list[str], rows: Sequence[Sequence[str]]) -> str:
    """An HTML table with a header row; the first cell of every row is a header too."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return _scrolled(f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>", heads[0])


@dataclass(frozen=True)
class Cell:
    """A cell of a matrix: its content as HTML, and a share from 0 to 1 that colours it cool, or warm."""

    content: str
    share: float = 0.0
    is_warm: bool = False
    hint: str = ""
    """Text that appears when the pointer rests on the cell."""

    def html(self) -> str:
        """The cell as HTML."""
        hint = f' title="{escape(self.hint)}"' if self.hint else ""
        return f"<td{_colour(self.share, is_warm=self.is_warm)}{hint}>{self.content}</td>"


def _colour(share: float, *, is_warm: bool) -> str:
    """Attributes that colour an element; none for a share of zero."""
    return f' class="{"warm" if is_warm else "cool"}" style="--s:{min(1.0, share):.3g}"' if share > 0 else ""


def matrix(
    title: str, heads: Sequence[str], rows: Sequence[tuple[str, Sequence[Cell | None]]], corner: str = ""
) -> str:
    """A table of coloured cells; None leaves a cell out. Many columns, or long heads, have their heads turned."""
    is_turned = len(heads) > 12 or sum(max(5, len(head)) for head in heads) > 110
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(name)}</th>'
        + "".join('<td class="none"></td>' if cell is None else cell.html() for cell in cells)
        + "</tr>"
        for name, cells in rows
    )
    return _scrolled(
        f'<table class="matrix{" turned" if is_turned else ""}"><caption><span>{escape(title)}</span></caption>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>",
        title,
    )


def _scrolled(content: str, title: str) -> str:
    """Content that scrolls in its own box where it does not fit, also by keyboard."""
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(title)}">{content}</div>'


def colour_scale(colours: Iterable[tuple[str, bool, Sequence[tuple[str, float]]]]) -> str:
    """What the colours of a matrix mean: for each colour its meaning, whether it is warm, and (text, share) samples."""
    entries = []
    for meaning, is_warm, samples in colours:
        shown = "".join(f"<span{_colour(share, is_warm=is_warm)}>{escape(text)}</span>" for text, share in samples)
        entries.append(f"<div>{escape(meaning)}{shown}</div>")
    return f'<div class="scale">{"".join(entries)}</div>'


def share_of_range(value: float, low: float, high: float) -> float:
    """The place of a value in a range, from 0.05 to 1, so that the lowest one has some colour too; 0 for NaN."""
    if isnan(value) or value == -inf:
        return 0.0
    return 1.0 if value >= high or high <= low else 0.05 + 0.95 * max(0.0, value - low) / (high - low)


def captioned(figure: str, text: str) -> str:
    """A figure with its caption."""
    return f"<figure>{figure}<figcaption>{escape(text)}</figcaption></figure>"


def panels(figures: Iterable[tuple[str, str]]) -> str:
    """(figure, caption as HTML) of several small figures, as many beside each other as fit."""
    shown = "".join(f"<figure>{figure}<figcaption>{caption}</figcaption></figure>" for figure, caption in figures)
    return f'<div class="panels">{shown}</div>'


def key_of_curves(curves: Iterable[tuple[str, str, str]]) -> str:
    """(text, colour, style of the line) of each curve -> the key of a figure."""
    entries = "".join(
        f'<span><i style="border-top-color: var(--{colour}); border-top-style: {line}"></i>{escape(text)}</span>'
        for text, colour, line in curves
    )
    return f'<div class="key">{entries}</div>'


def definitions(rows: Iterable[tuple[str, object]]) -> str:
    """A list of names and their values."""
    listed = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in rows)
    return f"<dl>{listed}</dl>"
