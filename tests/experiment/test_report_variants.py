"""The report's section on rules and selections beside the paper's."""

from dataclasses import replace

import pytest
from experiment.test_report import ALL_PAIRS, Parts, made_up

import fxdask
from fxdask.experiment.figures import RULE_MARKERS, SELECTION_COLOURS
from fxdask.experiment.report import RULES, SELECTIONS, page
from fxdask.experiment.variants import variants_of
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.workflows import settings

TITLE = "Beyond the paper's rule"


@pytest.fixture(scope="module")
def digits():
    return fxdask.reproduce(
        "digits", seeds=2, pairs=[(0, 1), (3, 8)], n_nodes=100, n_selected=3, rules=["log", "joint"], selections="joint"
    )


def section_of(text):
    return Parts(text.partition(f"{TITLE}</h2>")[2].partition("<h2>")[0]).text


def made_up_beyond(**choices):
    """Results whose paper's networks have the paper's figures, and of which each other one is a little better."""
    results = made_up(**choices)
    correct = dict(results.correct)
    for i, variant in enumerate(variants_of(results.identity)):
        correct.setdefault(variant.name, correct[variant.criterion] + 10 * i)
    return replace(results, correct=correct)


def test_the_section_has_every_average_and_every_pair(digits, tmp_path):
    digits.to_html(tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    parts = Parts(text)
    assert parts.tags.count("svg") == 4
    assert len(set(parts.identities)) == len(parts.identities)
    section = section_of(text)
    for variant, row in zip(digits.results.variants, digits.results.comparison(), strict=True):
        gain = "" if variant.is_papers else f" {row['gain']:+.2f}"
        words = f", {variant.rule}, {variant.selection} {row['average']:.2f} ±{row['interval']:.2f}{gain}"
        assert words in section
        assert all(f"{mean:.2f}" in section for mean in digits.results.mean(variant.name))
    for text_of in (RULES["log"], RULES["joint"], SELECTIONS["joint"], SELECTIONS["top"]):
        assert text_of in section
    assert RULES["scaled"] not in section
    assert "2 pairs of classes, 2 seeds, 100 random nodes, the best 3 for each class" in parts.text
    assert "36 networks" in parts.text


def test_the_papers_figures_stand_beside_them(digits):
    results = made_up_beyond(rules=["sum", "scaled", "log", "joint"], selections=["top", "joint"])
    text = page(results, digits._example, (8, 8))
    section = section_of(text)
    for criterion, values in results.published.mean.items():
        names = [variant.name for variant in results.variants if variant.criterion == criterion]
        for i, (a, b) in enumerate(ALL_PAIRS):
            means = " ".join(f"{results.mean(name)[i]:.2f}" for name in names)
            assert f"{a} and {b} {values[a, b]:.2f} {means}" in section
    assert section.count("the paper's figure") == 1


def test_the_papers_experiment_has_no_such_section(digits):
    text = Parts(page(made_up(), digits._example, (8, 8))).text
    assert TITLE not in text
    assert "180 networks" in text


def test_one_seed_has_no_interval(digits):
    results = made_up_beyond(n_seeds=1, rules=["sum", "joint"])
    text = Parts(page(results, digits._example, (8, 8))).text
    assert "nan" not in text.lower()
    assert "±" not in text


def test_every_rule_and_selection_is_described_and_drawn():
    assert set(RULES) == set(RULE_MARKERS) == set(COMBINATIONS)
    assert set(SELECTIONS) == set(SELECTION_COLOURS) == set(settings.SELECTIONS)
    assert len(set(RULE_MARKERS.values())) == len(RULE_MARKERS)


def test_the_figure_shows_every_pair(digits):
    results = made_up_beyond(rules=["sum", "joint"])
    figure = (
        page(results, digits._example, (8, 8)).partition("Accuracy of every pair by rule")[2].partition("</svg>")[0]
    )
    for a, b in ALL_PAIRS:
        assert f"{a} and {b}" in figure
