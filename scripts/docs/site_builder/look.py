"""The look of all pages: one template and one style sheet, light and dark by the reader's setting."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pygments.formatters import HtmlFormatter

from site_builder.markdown import Rendered
from site_builder.pages import GROUPS, Page

STYLE = """
:root { color-scheme: light dark; --page: #ffffff; --ink: #1d2330; --faint: #5f6b80; --line: #d5dae3; --panel: #f5f7fa;
  --link: #1762a6; --mark: #e3eef9; }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --ink: #e6e9ef; --faint: #98a2b3; --line: #343b47;
  --panel: #1d222a; --link: #6db3f2; --mark: #22344a; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 1rem; }
body { background: var(--page); color: var(--ink); font: 16px/1.6 system-ui, sans-serif; margin: 0; }
a { color: var(--link); text-decoration: none; } a:hover { text-decoration: underline; }
.skip { left: -99rem; position: absolute; }
.skip:focus { background: var(--page); left: 1rem; padding: .5rem; top: 1rem; }
.frame { display: grid; grid-template-columns: 17rem minmax(0, 1fr); margin: 0 auto; max-width: 84rem; }
.side { border-right: 1px solid var(--line); font-size: .92rem; height: 100vh; overflow-y: auto; padding: 1.5rem 1rem;
  position: sticky; top: 0; }
.menu { display: none; }
nav ul { list-style: none; margin: 0; padding: 0; }
nav ul ul { border-left: 2px solid var(--line); margin: .2rem 0 .4rem .6rem; }
nav h2 { color: var(--faint); font-size: .75rem; letter-spacing: .06em; margin: 1.2rem 0 .3rem .5rem;
  text-transform: uppercase; }
nav a { border-radius: 4px; color: var(--ink); display: block; overflow-wrap: anywhere; padding: .15rem .5rem; }
nav a[aria-current] { background: var(--mark); color: var(--link); font-weight: 600; }
nav ul ul a { color: var(--faint); font-size: .88rem; }
main { max-width: 62rem; padding: 1.5rem 2.5rem 4rem; overflow-wrap: break-word; width: 100%; }
h1 { font-size: 2rem; line-height: 1.2; margin: .5rem 0 1rem; }
h2 { border-bottom: 1px solid var(--line); font-size: 1.35rem; margin: 2.5rem 0 .8rem; padding-bottom: .3rem; }
nav h2 { border: 0; padding: 0; } h3 { font-size: 1.1rem; margin: 1.8rem 0 .5rem; }
h6 { color: var(--faint); font-size: .85rem; letter-spacing: .04em; margin: 1.4rem 0 .3rem; text-transform: uppercase; }
img { background: var(--page); display: block; height: auto; max-width: 100%; }
p:has(> img) { overflow-x: auto; } p > img { min-width: 38rem; }
code { font: .84em/1.5 ui-monospace, "DejaVu Sans Mono", Menlo, Consolas, monospace; }
:not(pre) > code { background: var(--panel); border-radius: 4px; padding: .1em .3em; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 6px; margin: .8rem 0; overflow-x: auto;
  padding: .8rem 1rem; }
pre:has(+ pre.output) { border-radius: 6px 6px 0 0; margin-bottom: 0; }
pre.output { background: none; color: var(--faint); }
pre + pre.output { border-radius: 0 0 6px 6px; border-top: 0; margin-top: 0; }
p, li { max-width: 52rem; }
.scroll { margin: 1rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }
th, td { border: 1px solid var(--line); min-width: 4rem; padding: .35rem .6rem; text-align: left; vertical-align: top; }
th { background: var(--panel); font-weight: 600; } td > code, td > a > code { overflow-wrap: normal; }
li { margin: .25rem 0; } li > p { margin: .3rem 0; }
.turn { border-top: 1px solid var(--line); display: flex; gap: 1rem; justify-content: space-between; margin-top: 3rem;
  padding-top: 1rem; }
@media (max-width: 60rem) { .frame { display: block; } .side { display: none; } main { padding: 1rem 1rem 3rem; }
  .menu { border-bottom: 1px solid var(--line); display: block; padding: .6rem 1rem; }
  .menu summary { cursor: pointer; font-weight: 600; } h1 { font-size: 1.6rem; } pre { padding: .6rem .7rem; } }
"""


def style_sheet() -> str:
    """The style of the pages, and the colours of highlighted code, light and dark."""
    dark = f"@media (prefers-color-scheme: dark) {{\n{_code_colours('github-dark')}\n}}"
    return f"{STYLE}{_code_colours('default')}\n{dark}\n"


def _code_colours(style: str) -> str:
    """The colours of tokens alone: backgrounds are those of the page."""
    rules = HtmlFormatter(style=style).get_style_defs("pre").splitlines()
    return "\n".join(rule for rule in rules if rule.startswith("pre .") and "background" not in rule)


def page_html(page: Page, rendered: Rendered, pages: Sequence[Page]) -> str:
    """A whole page: navigation, content, and links to the pages before and after it."""
    title = rendered.title if page.file == "index.html" else f"{rendered.title} - fxdask"
    navigation = f'<nav aria-label="Pages">{_navigation(page, rendered, pages)}</nav>'
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(title)}</title>
<link rel="stylesheet" href="style.css"></head>
<body>
<a class="skip" href="#content">Skip to the content</a>
<details class="menu"><summary>Contents</summary>{navigation}</details>
<div class="frame">
<div class="side">{navigation}</div>
<main id="content">
{rendered.body}
{_turn(page, pages)}
</main>
</div>
</body></html>
"""


def _navigation(page: Page, rendered: Rendered, pages: Sequence[Page]) -> str:
    parts = []
    for group in GROUPS:
        heading = f"<h2>{escape(group)}</h2>" if group else ""
        entries = [_entry(other, page, rendered) for other in pages if other.group == group]
        parts.append(f"{heading}<ul>{''.join(entries)}</ul>" if entries else "")
    return "".join(parts)


def _entry(other: Page, page: Page, rendered: Rendered) -> str:
    """A page in the navigation; the current one shows its sections."""
    if other != page:
        return f'<li><a href="{other.file}">{escape(other.name)}</a></li>'
    inside = "".join(f'<li><a href="#{anchor}">{escape(words)}</a></li>' for anchor, words in rendered.sections)
    inside = f"<ul>{inside}</ul>" if inside else ""
    return f'<li><a href="{other.file}" aria-current="page">{escape(other.name)}</a>{inside}</li>'


def _turn(page: Page, pages: Sequence[Page]) -> str:
    """Links to the pages before and after this one in its group."""
    group = [other for other in pages if other.group == page.group]
    place = group.index(page)
    before = f'<a href="{group[place - 1].file}">← {escape(group[place - 1].name)}</a>' if place else "<span></span>"
    after = f'<a href="{group[place + 1].file}">{escape(group[place + 1].name)} →</a>' if place + 1 < len(group) else ""
    return f'<div class="turn">{before}{after}</div>' if len(group) > 1 else ""
