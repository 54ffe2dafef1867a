"""Matplotlib figures as SVG in the colours of the page, light or dark.

Matplotlib is loaded by the first figure, because most calls, and workers, draw none.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape
from importlib import import_module
from io import BytesIO, StringIO
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["CLASS_COLOURS", "FAINT", "INK", "PAGE", "SERIES", "image_data", "new_figure", "styled", "svg_of"]

# Placeholder colours, replaced in the SVG by CSS variables, so that one figure fits the light and the dark page.
INK, FAINT, PAGE = "#0a0b0c", "#0a0b0b", "#0a0b0a"
NAMES = ("first", "second", "third", "fourth", "fifth", "sixth")
COLOURS = tuple(f"#0a0b{13 + i:02x}" for i in range(len(NAMES)))
PAGE_COLOURS = {INK: "var(--ink)", FAINT: "var(--faint)", PAGE: "var(--page)"} | {
    colour: f"var(--{name})" for colour, name in zip(COLOURS, NAMES, strict=True)
}
CLASS_COLOURS = COLOURS[:2]
DASHES = ("solid", "dashed", "dotted")
SERIES = tuple((colour, name, DASHES[i % 3]) for i, (colour, name) in enumerate(zip(COLOURS, NAMES, strict=True)))
"""(colour in the figure, its CSS variable, style of the line) of each curve; no two have the same colour."""

REM_PER_INCH = 6.4
SMALLEST_SCALE = 0.62  # in a narrow window; below it letters are too small, so the figure scrolls in its own box
# In inches: numbers and label of a vertical axis, those of a horizontal one, the title, and a margin.
LABEL, BELOW, ABOVE, GAP = 0.78, 0.52, 0.3, 0.16

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "fxdask",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 10,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
}


@contextmanager
def styled() -> Iterator[None]:
    """Draw in the style of the page; also a decorator."""
    with import_module("matplotlib").rc_context(STYLE):
        yield


def new_figure(
    n_rows: int, n_columns: int, size: tuple[float, float], *, layout: str = "none", **shared: Any
) -> tuple[Figure, NDArray[Any]]:
    """An empty figure of a size in inches, and its (row, column) panels, with room for labels between them.

    Any other layout than "none" measures all labels and draws the figure once more, which takes twice as long.
    """
    figure = import_module("matplotlib.figure").Figure(figsize=size, layout=layout)
    import_module("matplotlib.backends.backend_agg").FigureCanvasAgg(figure)
    room = _room_for_labels(n_rows, n_columns, size, **shared) if layout == "none" else {}
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, gridspec_kw=room, **shared)


def _room_for_labels(
    n_rows: int, n_columns: int, size: tuple[float, float], *, sharex: bool = False, sharey: bool = False, **_: Any
) -> dict[str, float]:
    """The ends of the panels as shares of the figure, and the gaps between them as shares of a panel."""
    width, height = size
    column_gap, row_gap = (GAP if shared else LABEL for shared in (sharey, sharex))
    panel_width = (width - LABEL - GAP - (n_columns - 1) * column_gap) / n_columns
    panel_height = (height - BELOW - ABOVE - (n_rows - 1) * row_gap) / n_rows
    return {
        "left": LABEL / width,
        "right": 1 - GAP / width,
        "bottom": BELOW / height,
        "top": 1 - ABOVE / height,
        "wspace": column_gap / panel_width,
        "hspace": row_gap / panel_height,
    }


def svg_of(figure: Figure, title: str) -> str:
    """The figure as an SVG element, with the title as its label for screen readers; titles of a page must differ."""
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for drawn, named in PAGE_COLOURS.items():
        svg = svg.replace(drawn, named)
    # Ids are unique within one figure only, and a page has several figures.
    prefix = "f" + hashlib.sha256(title.encode("utf-8", "replace")).hexdigest()[:10]
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    # The width is set in rem, so that letters are as large as in the text of the page.
    width = round(REM_PER_INCH * figure.get_size_inches()[0])
    size = f"max-width: {width}rem; min-width: {SMALLEST_SCALE * width:.0f}rem"
    label = f'role="img" aria-label="{escape(title)}"'
    svg = re.sub(
        r'<svg [^>]*?viewBox="([^"]*)"[^>]*>',
        lambda found: f'<svg {label} style="{size}" viewBox="{found[1]}">',
        svg,
        count=1,
    )
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def image_data(pixels: NDArray[np.uint8], shape: tuple[int, ...]) -> str:
    """(pixel,) grey image, or (pixel, 4) with colours and opacity -> a data URL with its PNG."""
    stream = BytesIO()
    import_module("matplotlib.image").imsave(stream, pixels.reshape(shape), cmap="gray", format="png")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
