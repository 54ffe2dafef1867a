"""Run the examples of docstrings, and compare lists of the documentation with the code."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

from fxdask import FisherNetworkClassifier

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    "module",
    [
        "fxdask.estimators.classifier",
        "fxdask.estimators.loading",
        "fxdask.estimators.ranking",
        "fxdask.estimators.reporting",
        "fxdask.estimators.scoring",
        "fxdask.estimators.selector",
        "fxdask.execution.connection",
        "fxdask.experiment.reproduce",
        "fxdask.planning.fit_plan",
        "fxdask.planning.fit_search",
        "fxdask.planning.rank_plan",
        "fxdask.planning.score_plan",
        "fxdask.store.retry",
        "fxdask.workflows.evaluate",
        "fxdask.workflows.score",
        "fxdask.workflows.tables",
    ],
)
def test_examples_in_docstrings_run(module):
    result = doctest.testmod(importlib.import_module(module))
    assert result.attempted > 0
    assert result.failed == 0


def test_the_guide_lists_every_parameter_with_its_default():
    text = (ROOT / "scripts" / "docs" / "rules-and-criteria.md").read_text().partition("\n## Parameters\n")[2]
    table = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", text, re.MULTILINE))
    defaults = FisherNetworkClassifier().get_params()
    assert table == {
        name: str(value) if not isinstance(value, str) else f'"{value}"' for name, value in defaults.items()
    }


def test_contributing_lists_every_file():
    listed = re.findall(r"^ {2,6}(\w+\.py)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    modules = [path.name for path in (ROOT / "fxdask").rglob("*.py") if not path.name.startswith("__")]
    assert sorted(listed) == sorted(modules)


def test_contributing_names_only_what_exists():
    """Every "`folder/file.py`: `name`" in CONTRIBUTING.md is a name of that module."""
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`([\w/]+)\.py`: `(\w+)`", text)
    assert len(named) > 40
    for path, name in named:
        module = importlib.import_module("fxdask." + path.replace("/", "."))
        assert hasattr(module, name), f"{path}.py has no {name}"
