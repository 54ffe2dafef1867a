"""Draw the picture of the README: two classes of equal mean and unequal variance, and what two criteria see.

python scripts/docs/picture.py writes equal-means.svg beside this file. The scores are computed by fxdask.
"""

import re
from pathlib import Path

import numpy as np

import fxdask
from fxdask.reporting.figures import FAINT, INK, SERIES, new_figure, styled, svg_of

N_SAMPLES, WIDER, SHIFT = 40_000, 2.5, 1.2
FEATURES = ("unequal variances", "unequal means", "neither")
CRITERIA = ("fisher", "extended_fisher")
TITLE = "Two classes with equal means and unequal variances: Fisher's criterion scores 0, the extended one does not"
NAMESPACES = 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
# A figure in a page has these as CSS variables of the page; a file of its own must bring them.
COLOURS = """<style>
svg { --page: #ffffff; --ink: #1d2330; --faint: #667085; --first: #1762a6; --second: #b9480e; --third: #0b7a5a; }
@media (prefers-color-scheme: dark) {
  svg { --page: #14171c; --ink: #e6e9ef; --faint: #98a2b3; --first: #6db3f2; --second: #f59e5b; --third: #5fd3a5; } }
</style>
<rect width="100%" height="100%" rx="8" style="fill: var(--page)"/>"""


def scores() -> np.ndarray:
    """(criterion, feature) scores of three features; a score below 0 is shown as 0, as it separates nothing."""
    y = np.arange(N_SAMPLES) % 2
    X = np.random.default_rng(0).standard_normal((N_SAMPLES, len(FEATURES)))
    X[y == 1, 0] *= WIDER
    X[y == 1, 1] += SHIFT
    ranking = fxdask.rank_features(X, y, criteria=list(CRITERIA))
    return np.maximum([ranking.scores[name].max(axis=0) for name in CRITERIA], 0)


@styled()
def picture() -> str:
    """The picture as one SVG, in colours that follow the reader's light or dark setting."""
    first, second, third = (colour for colour, *_ in SERIES[:3])
    figure, ((left, right),) = new_figure(1, 2, (9, 3.1), layout="constrained")
    x = np.linspace(-7, 7, 121)
    for spread, colour, name in ((1, first, "class 0"), (WIDER, second, "class 1")):
        density = np.exp(-0.5 * (x / spread) ** 2) / (spread * np.sqrt(2 * np.pi))
        left.plot(x, density, color=colour, linewidth=2, label=name)
        left.fill_between(x, density, color=colour, alpha=0.15, linewidth=0)
    left.set(title="One feature, two classes: the same mean", yticks=[], xlabel="value", ylim=(0, None))
    left.spines["left"].set_visible(False)
    left.legend(loc="upper left")
    series = zip(scores(), (FAINT, third), ("Fisher", "extended Fisher"), strict=True)
    for row, (values, colour, name) in enumerate(series):
        bars = right.barh(np.arange(len(FEATURES)) + 0.38 * (row - 0.5), values, 0.34, color=colour, label=name)
        right.bar_label(bars, [f"{value:.2f}" for value in values], padding=4, color=INK)
    right.set(title="What the criteria see", xlabel="score", xlim=(0, 1.9))
    right.set_yticks(range(len(FEATURES)), FEATURES)
    right.invert_yaxis()
    right.legend(loc="lower right")
    return svg_of(figure, TITLE)


def as_file(svg: str) -> str:
    """The SVG with its own size, colours and background, because it is shown on pages that do not know them."""
    start, _, rest = svg.partition(">")
    start = re.sub(r' style="[^"]*"', ' width="972" height="335"', start)
    return start.replace("<svg", f"<svg {NAMESPACES}", 1) + ">" + COLOURS + rest + "\n"


if __name__ == "__main__":
    path = Path(__file__).with_name("equal-means.svg")
    path.write_text(as_file(picture()))
    print(f"{path.name} is written")
