"""Matplotlib figures as SVG in the colours of the page, light or dark."""

from __future__ import annotations

import base64
import re
from io import BytesIO, StringIO
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import imsave
from numpy.typing import NDArray

__all__ = ["CLASS_COLOURS", "INK", "STYLE", "image_data", "new_figure", "svg_of"]

# Placeholder colours, replaced in the SVG by CSS variables, so that one figure fits the light and the dark page.
INK, FIRST, SECOND = "#0a0b0c", "#0a0b0d", "#0a0b0e"
PAGE_COLOURS = {INK: "var(--ink)", FIRST: "var(--first)", SECOND: "var(--second)"}
CLASS_COLOURS = (FIRST, SECOND)
REM_PER_INCH = 6.4
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
    "figure.constrained_layout.use": True,
}


def new_figure(n_rows: int, n_columns: int, size: tuple[float, float], **shared: Any) -> tuple[Figure, NDArray[Any]]:
    """An empty figure of a size in inches, and its (row, column) panels."""
    figure = Figure(figsize=size)
    FigureCanvasAgg(figure)
    return figure, figure.subplots(n_rows, n_columns, squeeze=False, **shared)


def svg_of(figure: Figure, title: str) -> str:
    """The figure as an SVG element, with the title as its label for screen readers."""
    text = StringIO()
    figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = text.getvalue()
    svg = svg[svg.index("<svg") :]
    for drawn, named in PAGE_COLOURS.items():
        svg = svg.replace(drawn, named)
    # Ids are unique within one figure only, and a page has several figures.
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'(id="|href="#|url\(#)', rf"\g<1>{prefix}-", svg)
    # The width is set in rem, so that letters are as large as in the text of the page.
    width = REM_PER_INCH * figure.get_size_inches()[0]
    opening = rf'<svg role="img" aria-label="{title}" style="max-width: {width:.0f}rem" viewBox="\1">'
    svg = re.sub(r'<svg [^>]*?viewBox="([^"]*)"[^>]*>', opening, svg, count=1)
    return re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)


def image_data(pixels: NDArray[np.uint8], shape: tuple[int, int]) -> str:
    """(pixel,) grey image -> a data URL with its PNG."""
    stream = BytesIO()
    imsave(stream, pixels.reshape(shape), cmap="gray", format="png")
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()
