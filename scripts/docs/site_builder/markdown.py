"""Markdown -> HTML: headings with the anchors that GitHub gives them, highlighted code, links to other pages."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from markdown_it import MarkdownIt
from markdown_it.token import Token
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound


@dataclass
class Rendered:
    """A document as HTML: its title, its body, and (anchor, text) of its sections."""

    title: str = ""
    body: str = ""
    sections: list[tuple[str, str]] = field(default_factory=list)


def slug(text: str) -> str:
    """The anchor that GitHub gives a heading: its letters, digits and hyphens, with hyphens for spaces."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")


def render(text: str, resolve: Callable[[str], str], names: Mapping[str, str]) -> Rendered:
    """Render a document.

    ``resolve`` turns the address of a link or picture into that on the site; ``names`` maps code such as
    ``fxdask.load`` to the page of the reference that describes it.
    """
    parser = MarkdownIt("commonmark", {"html": False, "highlight": highlighted}).enable("table")
    parser.add_render_rule("table_open", lambda *_: '<div class="scroll"><table>')
    parser.add_render_rule("table_close", lambda *_: "</table></div>")
    tokens = parser.parse(text)
    found = Rendered()
    used: dict[str, int] = {}
    for i, token in enumerate(tokens):
        if token.type == "heading_open":
            _give_anchor(token, tokens[i + 1], used, found)
        elif token.type == "inline":
            _relink(token, resolve, names)
    found.body = parser.renderer.render(tokens, parser.options, {})
    return found


def _give_anchor(opening: Token, content: Token, used: dict[str, int], found: Rendered) -> None:
    """Set the id of a heading, with a number at its end if the document has had the same one before."""
    words = "".join(child.content for child in content.children or [])
    anchor = slug(words)
    used[anchor] = used.get(anchor, -1) + 1
    anchor += f"-{used[anchor]}" if used[anchor] else ""
    opening.attrSet("id", anchor)
    if opening.tag == "h1" and not found.title:
        found.title = words
    elif opening.tag == "h2":
        found.sections.append((anchor, words))


def _relink(inline: Token, resolve: Callable[[str], str], names: Mapping[str, str]) -> None:
    """Resolve the addresses in a line of text, and link code that names something of the reference."""
    children: list[Token] = []
    is_in_link = False
    for token in inline.children or []:
        if token.type == "link_open":
            token.attrSet("href", resolve(str(token.attrGet("href"))))
        elif token.type == "image":
            token.attrSet("src", resolve(str(token.attrGet("src"))))
            token.attrSet("loading", "lazy")
        is_in_link = token.type == "link_open" or (is_in_link and token.type != "link_close")
        page = names.get(token.content) if token.type == "code_inline" and not is_in_link else None
        linked = [Token("link_open", "a", 1, {"href": page}), token, Token("link_close", "a", -1)] if page else [token]
        children += linked
    inline.children = children


def highlighted(code: str, language: str, _: Any = None) -> str:
    """A block of code as HTML; the words after its fence choose the language."""
    try:
        lexer = get_lexer_by_name(language) if language else None
    except ClassNotFound:
        lexer = None
    marked = highlight(code, lexer, HtmlFormatter(nowrap=True)) if lexer else escape(code)
    return f'<pre class="{escape(language) or "plain"}" tabindex="0"><code>{marked}</code></pre>\n'
