"""Figures as SVG: colours of the page, labels for screen readers, unique ids."""

import subprocess
import sys

from web_pages import Parts

from fxdask.reporting.figures import INK, SERIES, new_figure, styled, svg_of


@styled()
def drawn(title):
    figure, axes = new_figure(1, 1, (4, 2))
    axes[0, 0].plot([0, 1], [1, 0], color=SERIES[2][0])
    axes[0, 0].set_xlabel("across")
    return svg_of(figure, title)


def test_colours_are_those_of_the_page():
    svg = drawn("a figure")
    assert "var(--ink)" in svg
    assert "var(--third)" in svg
    assert INK not in svg


def test_titles_are_escaped_labels_and_make_ids_unique():
    figures = drawn('<a> & "b"') + drawn("<a> & 'b'")
    parts = Parts(figures)
    parts.assert_self_contained()
    assert parts.identities
    assert 'aria-label="&lt;a&gt; &amp; &quot;b&quot;"' in figures


def test_a_title_gives_the_same_bytes_each_time():
    assert drawn("again") == drawn("again")


def test_the_width_follows_the_size_of_letters():
    assert 'style="max-width: 26rem; min-width: 16rem"' in drawn("a figure")


def test_matplotlib_is_loaded_by_the_first_figure_only():
    program = "import sys, fxdask.estimators.classifier, fxdask.cli.fit; sys.exit('matplotlib' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
