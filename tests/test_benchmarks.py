"""Figures of two runs of the benchmarks, stored as JSON and compared."""

import importlib
import json
from pathlib import Path

import pytest
from click.testing import CliRunner

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def scripts(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")


@pytest.fixture
def compared(tmp_path):
    """Compare two runs -> the exit code and the output."""

    def compare(*runs):
        files = []
        for name, run in zip("ab", runs, strict=True):
            files.append(tmp_path / f"{name}.json")
            files[-1].write_text(run if isinstance(run, str) else json.dumps(run))
        command = importlib.import_module("benchmarks.compare").compare
        done = CliRunner().invoke(command, [str(file) for file in files])
        return done.exit_code, done.output

    return compare


def figure(median, lowest, highest):
    return {"median": median, "lowest": lowest, "highest": highest}


def a_run(figures, cpus=2):
    return {"machine": {"cpus": cpus, "numpy": "2.4"}, "limits": {"sgemm": figure(90, 85, 95)}, "figures": figures}


def test_compare_marks_changes_beyond_both_ranges(compared):
    first = a_run({"slower": figure(2, 1.9, 2.1), "noisy": figure(2, 1.5, 2.5), "gone": figure(1, 1, 1)})
    second = a_run({"slower": figure(3, 2.9, 3.1), "noisy": figure(3, 2.5, 3.5), "new": figure(4, 4, 4)}, cpus=8)
    code, output = compared(first, second)
    lines = {line.split("  ")[0]: line for line in output.splitlines()}
    assert code == 0
    assert "cpus: 2 -> 8" in output
    assert "numpy: " not in output
    assert lines["slower"].split("  ")[-1].strip() == "+50.0% *"
    assert lines["noisy"].split("  ")[-1].strip() == "+50.0%", "the ranges share 2.5"
    assert "2 (1.9 - 2.1)" in lines["slower"]
    assert lines["gone"].split()[-1] == "-"
    assert lines["new"].split()[1] == "-"
    assert lines["sgemm"].endswith("+0.0%")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is no JSON"),
        ('{"title": "fit"}', "lacks machine, limits, figures; make it by scripts/bench all --json"),
        ("[]", "lacks machine, limits, figures"),
    ],
)
def test_compare_refuses_other_files(compared, content, message):
    code, output = compared(a_run({}), content)
    assert code == 1
    assert "b.json" in output
    assert message in output


@pytest.mark.full
def test_load_compares_the_results_of_all_callers():
    """Real callers on a real cluster, for a short time, in which shares and memory say nothing."""
    load = importlib.import_module("benchmarks.load")
    found = load.loaded(n_callers=3, n_workers=1, seconds=5)
    assert found["holds"]["right"]
    assert len(found["rounds"]) == 3
    assert min(found["rounds"].values()) > 0
    assert len(found["scheduler_memory"]) == load.LOOKS
    wrong = {number: caller | {"wrong": 1} for number, caller in found["callers"].items()}
    assert not load.summary(wrong, found["scheduler_memory"])["holds"]["right"]


def test_all_stores_what_compare_reads(tmp_path, monkeypatch, compared):
    """Real limits and one real benchmark, with little data."""
    everything = importlib.import_module("benchmarks.everything")
    small = everything.limits(n_bytes=2**20, n_rows=16)
    monkeypatch.setattr(everything, "limits", lambda: small)
    monkeypatch.setitem(everything.SECTIONS, "rank", lambda repeats: everything.rankings(repeats, 200, 8))
    file = tmp_path / "run.json"
    done = CliRunner().invoke(everything.everything, ["--only", "rank", "--repeats", "3", "--json", str(file)])
    assert done.exit_code == 0, done.output
    run = json.loads(file.read_text())
    assert list(run["limits"]) == ["sgemm", "copy", "sort", "crc32c, one core", "sha256, one core"]
    assert len(run["figures"]) == 4
    for found in [*run["limits"].values(), *run["figures"].values()]:
        assert 0 < found["lowest"] <= found["median"] <= found["highest"]
    assert {"cpus", "python", "numpy", "distributed"} <= set(run["machine"])
    code, output = compared(run, run)
    assert code == 0
    assert output.count("+0.0%\n") == 9
