"""Dead links of a built site: addresses of files or anchors that do not exist in its folder."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class _Addresses(HTMLParser):
    """The addresses that a page names, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what an element names."""
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif name in ("href", "src"):
                self.addresses.append(value or "")


def dead_links(folder: Path) -> list[str]:
    """One sentence for each dead link of the pages in a folder. Links to other hosts are not followed."""
    pages = {path.name: _Addresses(path.read_text()) for path in sorted(folder.glob("*.html"))}
    files = {path.name for path in folder.iterdir()}
    found = []
    for name, page in pages.items():
        for address in dict.fromkeys(page.addresses):
            reason = _why_dead(address, name, pages, files)
            found += [f"{name}: the link to {address!r} is dead: {reason}"] if reason else []
    return found


def _why_dead(address: str, page: str, pages: dict[str, _Addresses], files: set[str]) -> str:
    """Why a link does not work; empty if it does."""
    parts = urlsplit(address)
    if parts.scheme in ("http", "https", "mailto") and (parts.netloc or parts.scheme == "mailto"):
        return ""
    if parts.scheme or parts.netloc:
        return "it leads to no page of this site"
    target = unquote(parts.path) or page
    if target not in files:
        return f"there is no file {target}"
    if parts.fragment and (target not in pages or unquote(parts.fragment) not in pages[target].anchors):
        return f"{target} has no anchor {parts.fragment}"
    return ""
