"""The report: self-contained, complete, and readable in light and dark mode."""

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from web_pages import CHROMIUM, Parts, assert_contrast, measured_widths, screenshot

import fxdask
from fxdask.errors import InvalidInputError, StoreExistsError
from fxdask.experiment.datasets import OTHER_SPLIT, PUBLISHED_SPLIT
from fxdask.experiment.report import page
from fxdask.experiment.results import Results, published_figures

ALL_PAIRS = list(combinations(range(10), 2))


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


def test_the_page_is_complete_and_self_contained(digits, tmp_path):
    digits.to_html(tmp_path / "report.html")
    parts = Parts((tmp_path / "report.html").read_text())
    assert parts.tags.count("svg") == 3
    assert parts.tags.count("img") == 2
    parts.assert_self_contained()
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


def test_colours_follow_the_accuracies(digits):
    """In each table the best pair has the full colour and the worst nearly none; losses are warm."""
    results = made_up()
    drawn = page(results, digits._example, (8, 8))
    tables = re.findall(r'<table class="matrix">.*?</table>', drawn)
    assert len(tables) == 3
    for found, criterion in zip(tables, ("extended_fisher", "fisher"), strict=False):
        shares = {
            float(mean): float(share)
            for share, mean in re.findall(r'<td class="cool" style="--s:([\d.]+)"><b>([\d.]+)</b>', found)
        }
        means = results.mean(criterion)
        assert len(re.findall("<b>", found)) == 45
        assert shares[round(means.max(), 2)] == 1
        assert shares[round(means.min(), 2)] == 0.05
        ordered = sorted(shares)
        assert [shares[mean] for mean in ordered] == sorted(shares.values())
    assert 'class="warm"' not in tables[2]
    worse = replace(results, correct={**results.correct, "extended_fisher": results.correct["fisher"] - 100})
    gains = re.findall(r'<table class="matrix">.*?</table>', page(worse, digits._example, (8, 8)))[2]
    assert gains.count('class="warm"') == 45


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
@pytest.mark.parametrize("is_dark", [True, False])
def test_a_browser_renders_the_report(digits, tmp_path, is_dark):
    digits.to_html(tmp_path / "report.html")
    assert_contrast(screenshot(tmp_path / "report.html", is_dark=is_dark), is_dark=is_dark)


@pytest.mark.skipif(CHROMIUM is None, reason="needs a Chromium browser")
@pytest.mark.parametrize("dataset", ["mnist", "fashion_mnist"])
def test_the_matrices_fit_into_a_window(digits, tmp_path, dataset):
    """At 1,200 pixels nothing scrolls; in a narrow window tables scroll in their own boxes, but never the page."""
    (tmp_path / "report.html").write_text(page(made_up(dataset, offset=-5), digits._example, (8, 8)), encoding="utf-8")
    wide, narrow = measured_widths(tmp_path / "report.html", 1200, 500)
    assert wide["page"] <= wide["window"]
    assert wide["scrolling"] == 0
    assert narrow["page"] <= narrow["window"]
    assert narrow["scrolling"] > 0
