"""Self-contained HTML pages for reports, light and dark."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from pathlib import Path

from fxdask.errors import InvalidInputError, StoreExistsError

__all__ = ["captioned", "check_report_path", "html_page", "table"]

BYTES_OF_HEAD = 2000

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
    if path.is_dir() or not path.absolute().parent.is_dir():
        reason = "it is a folder" if path.is_dir() else "its folder does not exist"
        raise InvalidInputError(f"no report can be written to {path}: {reason}; choose another path")
    if path.exists() and path.stat().st_size:
        with path.open("rb") as stream:
            head = stream.read(BYTES_OF_HEAD)
        if _generator_tag(generator).encode() not in head:
            raise StoreExistsError(f"{path} exists and is not a report of fxdask; choose another path")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """An HTML table with a header row; the first cell of every row is a header too."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def captioned(figure: str, text: str) -> str:
    """A figure with its caption."""
    return f"<figure>{figure}<figcaption>{escape(text)}</figcaption></figure>"
