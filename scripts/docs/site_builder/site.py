"""Build all pages into a folder: Markdown files, the reference, files that pages link to, and the style sheet."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path, PurePosixPath
from urllib.parse import urlsplit

from site_builder.api import reference_names, reference_pages
from site_builder.look import page_html, style_sheet
from site_builder.markdown import highlighted, render
from site_builder.pages import MARKDOWN_PAGES, ROOT, Page

MARK = ".fxdask-site"  # a folder with this file was made here, and may be replaced
PICTURES = (".svg", ".png")
EXAMPLES = "scripts/examples"
LANGUAGES = {".py": "python", ".yaml": "yaml"}


class Site:
    """The pages under construction, and the files of the project that some page links to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pages = {page.source: page for page in MARKDOWN_PAGES}
        self.pictures: set[str] = set()
        for path in sorted((root / EXAMPLES).glob("*.py")):
            self.file_page(f"{EXAMPLES}/{path.name}")

    def file_page(self, name: str) -> Page:
        """The page that shows a file of the project."""
        group = "Examples" if name.startswith(EXAMPLES) else "Files"
        flat = name.replace("/", "-")
        return self.pages.setdefault(name, Page(f"{flat}.html", PurePosixPath(name).name, group, name))

    def resolve(self, address: str, source: str) -> str:
        """The address on the site of a link in a Markdown file; one that leads nowhere stays as it is."""
        parts = urlsplit(address)
        if parts.scheme or parts.netloc or not parts.path:
            return address
        name = os.path.normpath(str(PurePosixPath(source).parent / parts.path)).replace(os.sep, "/")
        fragment = f"#{parts.fragment}" if parts.fragment else ""
        if name in self.pages:
            return self.pages[name].file + fragment
        path = self.root / name
        if not path.is_file() or not path.resolve().is_relative_to(self.root.resolve()):
            return address
        if path.suffix in PICTURES:
            self.pictures.add(name)
            return path.name
        return self.file_page(name).file + fragment


def build(folder: Path, root: Path = ROOT) -> int:
    """Build the site of the project at ``root`` -> the number of its pages. An older site in the folder is replaced."""
    _empty(folder)
    site, names = Site(root), reference_names()
    found = {}
    for page in MARKDOWN_PAGES:
        text = (root / page.source).read_text()
        found[page] = render(text, partial(site.resolve, source=page.source), names)
    for page, text in reference_pages().items():
        found[page] = render(text, lambda address: address, names)
    for page in site.pages.values():
        if page not in found:
            found[page] = render(f"# {page.name}\n", str, {})
            found[page].body += highlighted(
                (root / page.source).read_text(), LANGUAGES.get(Path(page.source).suffix, "")
            )
    for page, rendered in found.items():
        (folder / page.file).write_text(page_html(page, rendered, list(found)))
    for name in site.pictures:
        shutil.copy(root / name, folder)
    (folder / "style.css").write_text(style_sheet())
    return len(found)


def _empty(folder: Path) -> None:
    """Make the folder, or remove an older site from it; a folder with anything else is refused."""
    if folder.is_dir() and any(folder.iterdir()):
        if not (folder / MARK).exists():
            raise FileExistsError(f"{folder} holds other files than a site of fxdask; choose another folder")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / MARK).touch()
