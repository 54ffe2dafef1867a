"""Run the examples of the documentation, and compare its lists with the code."""

import doctest
import importlib
import re
from pathlib import Path

import pytest
import zarr

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


def readme_example(word):
    """The one Python example of the README with this word."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(examples) == 4, "a new example needs a test of its own"
    (example,) = (text for text in examples if word in text)
    return compile(example, "README.md", "exec")


def test_the_first_example_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(readme_example("zarr.create_array"), {})
    exec(readme_example("zarr.create_array"), {})  # people run it again
    assert 0.7 < float(capsys.readouterr().out.split()[0]) <= 1
    assert zarr.open_group("scored.zarr")["labels"].shape == (597,)


def test_the_example_of_ranking_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    """Features of equal means and unequal variances, which criteria of the means alone do not see."""
    monkeypatch.chdir(tmp_path)
    exec(readme_example("fxdask.rank_features"), {})
    printed = capsys.readouterr().out.splitlines()
    first = {line.split()[0]: set(re.findall(r"'(x\d+)'", line)) for line in printed}
    wide = {f"x{i}" for i in range(6)}
    for criterion in ("extended_fisher", "kolmogorov_smirnov", "mutual_information", "density_overlap"):
        assert first[criterion] == wide, criterion
    for criterion in ("fisher", "pearson"):
        assert len(first[criterion] & wide) < 6, criterion
    assert set(re.findall(r"x\d+", printed[-1])) >= wide
    assert (tmp_path / "ranking.html").exists()


def test_the_example_of_tables_in_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(readme_example("fxdask.table"), {})
    exec(readme_example("fxdask.table"), {})  # people run it again
    printed = capsys.readouterr().out
    assert all(name in printed for name in ("'id'", "'label'", "'score_narrow'", "'score_wide'", "'a'", "'b'"))


def test_the_calibration_example_of_the_readme_runs(capsys):
    exec(readme_example("CalibratedClassifierCV"), {})
    losses = [float(word) for word in capsys.readouterr().out.split()]
    assert len(losses) == 2
    assert all(0 < loss < 0.3 for loss in losses)


def test_the_readme_lists_every_parameter_with_its_default():
    table = dict(re.findall(r"^\| `(\w+)` \| `?(.*?)`? \|", (ROOT / "README.md").read_text(), re.MULTILINE))
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
