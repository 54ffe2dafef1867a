"""The report: self-contained, complete, and readable in light and dark mode."""

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import combinations

import numpy as np
import pytest
from matplotlib.image import imread

import fxdask
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.experiment.datasets import OTHER_SPLIT, PUBLISHED_SPLIT
from fxdask.experiment.report import page
from fxdask.experiment.results import Results, published_figures

ALL_PAIRS = list(combinations(range(10), 2))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.fixture(scope="module")
def digits():
    return fxdask.reproduce("digits", seeds=3, pairs=[(0, 1), (3, 8)], n_nodes=300, n_selected=4)


def made_up(dataset="mnist", offset=0, n_seeds=2, **identity):
    """Results whose accuracies are the paper's figures plus an offset in points."""
    published = published_figures(dataset)
    tested = np.full(45, 10_000)
    correct = {
        name: np.array([[round(100 * (values[pair] + offset))] * n_seeds for pair in ALL_PAIRS])
        for name, values in published.mean.items()
    }
    usual = {"dataset": dataset, "n_nodes": 10_000, "n_selected": 10, "mean_shift": True}
    return Results(
        identity=usual | identity,
        pairs=ALL_PAIRS,
        seeds=list(range(n_seeds)),
        correct=correct,
        tested=tested,
        facts={"data": "made up"},
    )


class Parts(HTMLParser):
    """The elements, addresses, ids and text of a page."""

    VOID = ("meta", "br", "img", "link", "input", "hr")

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.addresses, self.words, self.identities = [], [], [], [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        named = dict(attributes)
        self.addresses += [named[name] for name in ("src", "href", "xlink:href") if name in named]
        self.identities += [named["id"]] if "id" in named else []
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in self.VOID:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def test_the_page_is_complete_and_self_contained(digits, tmp_path):
    digits.to_html(tmp_path / "report.html")
    parts = Parts((tmp_path / "report.html").read_text())
    assert parts.tags.count("svg") == 3
    assert parts.tags.count("img") == 2
    assert "script" not in parts.tags
    assert all(address.startswith(("data:", "#")) for address in parts.addresses)
    assert len(set(parts.identities)) == len(parts.identities)
    assert {address[1:] for address in parts.addresses if address[0] == "#"} <= set(parts.identities)
    for words in (
        "2 pairs of classes, 3 seeds, 300 random nodes",
        "The paper has no figures for this experiment",
        "node, sorted by its response",
        "extended criterion D",
        "Fisher's criterion F",
        "density per unit of projection",
        "scikit-learn",
        np.__version__,
    ):
        assert words in parts.text
    means = digits.results.mean("extended_fisher")
    assert all(f"{mean:.2f}" in parts.text for mean in means)


def test_every_figure_of_the_paper_is_shown(digits):
    results = made_up()
    text = Parts(page(results, digits._example, (8, 8))).text
    for criterion, values in results.published.mean.items():
        for pair, figure in values.items():
            assert f"{figure:.2f} ±0.00 {figure:.2f}" in text, (criterion, pair)
    assert "86.54 86.54 +0.00 0.00" in text
    assert "25.50 25.50" in text
    assert "▲" not in text.replace("▲ or ▼", "")
    assert "▼" not in text.replace("▲ or ▼", "")


@pytest.mark.parametrize(("offset", "mark"), [(5, "▲+5.00"), (-5, "▼-5.00")])
def test_large_differences_are_marked(digits, offset, mark):
    text = Parts(page(made_up(offset=offset), digits._example, (8, 8))).text
    assert text.count(mark) == 90


def test_one_seed_has_no_interval(digits):
    text = Parts(page(made_up(offset=5, n_seeds=1), digits._example, (8, 8))).text
    assert "nan" not in text.lower()
    assert "±" not in text
    assert "▲" not in text
    assert text.count("+5.00") == 90 + 2  # every pair, and both averages


@pytest.mark.parametrize(("name", "value"), [("n_nodes", 5_000), ("n_selected", 5), ("mean_shift", False)])
def test_another_experiment_is_not_compared_with_the_paper(digits, name, value):
    results = made_up(**{name: value})
    assert results.published is None
    assert "The paper has no figures" in Parts(page(results, digits._example, (8, 8))).text


@pytest.mark.parametrize(
    ("split", "note"),
    [(PUBLISHED_SPLIT, None), (OTHER_SPLIT, "not the published"), (None, "a copy that fxdask does not know")],
)
def test_the_report_notes_another_split(digits, split, note):
    facts = {} if split is None else {"split": split}
    text = Parts(page(replace(made_up("fashion_mnist"), facts=facts), digits._example, (8, 8))).text
    assert ("Note." in text) is (note is not None)
    assert note is None or f"{note}" in text.partition("Accuracy of every pair")[0]


def test_file_names_are_escaped(digits):
    results = replace(made_up(), facts={"data": "IDX files in <script>alert(1)</script>"})
    assert "script" not in Parts(page(results, digits._example, (8, 8))).tags


def test_only_a_report_is_overwritten(digits, tmp_path):
    file = tmp_path / "report.html"
    digits.to_html(file)
    digits.to_html(file)
    file.write_text("<p>mine</p>")
    with pytest.raises(StoreExistsError, match="is not a report of fxdask; choose another path"):
        digits.to_html(file)
    assert file.read_text() == "<p>mine</p>"
    file.write_text("")
    digits.to_html(file)
    assert "±" in file.read_text(encoding="utf-8")


def test_paths_that_cannot_be_written_are_refused(digits, tmp_path):
    with pytest.raises(InvalidInputError, match=r"no report can be written to .*: it is a folder"):
        digits.to_html(tmp_path)
    with pytest.raises(InvalidInputError, match="its folder does not exist"):
        digits.to_html(tmp_path / "nowhere" / "report.html")


def test_the_report_is_utf_8_in_any_locale(tmp_path):
    command = [sys.executable, "-m", "fxdask", "reproduce", "digits", "--seeds", "2", "--nodes", "50", "--pairs", "0-1"]
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    run = subprocess.run(command, capture_output=True, check=False, cwd=tmp_path, env=os.environ | plain)
    assert run.returncode == 0, run.stderr
    assert "±" in (tmp_path / "reproduce-digits" / "report.html").read_text(encoding="utf-8")


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser")
@pytest.mark.parametrize(("scheme", "is_dark"), [(0, True), (1, False)])
def test_a_browser_renders_the_report(digits, tmp_path, scheme, is_dark):
    digits.to_html(tmp_path / "report.html")
    subprocess.run(
        [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--window-size=1200,2400",
            f"--blink-settings=preferredColorScheme={scheme}",
            f"--user-data-dir={tmp_path / 'profile'}",
            f"--screenshot={tmp_path / 'shot.png'}",
            f"file://{tmp_path / 'report.html'}",
        ],
        check=True,
        capture_output=True,
        timeout=120,
    )
    shot = imread(tmp_path / "shot.png")[:, :, :3]
    brightness = shot.mean(axis=2)
    assert (np.median(brightness) < 0.2) == is_dark
    # Text and lines contrast with the page, in the tables at the top and in the figures below.
    for part in (brightness[:700], brightness[1200:2200]):
        contrasting = np.abs(part - np.median(brightness)) > 0.5
        assert 0.002 < contrasting.mean() < 0.3
    colourful = shot.max(axis=2) - shot.min(axis=2) > 0.3
    assert colourful[1000:].mean() > 0.0005
