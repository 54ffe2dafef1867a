"""The scripts: the environment with its errors, interruptions and extras, and the tour of scripts/run."""

import importlib
import json
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import oracles
import pytest
import zarr
from scipy.special import softmax

from fxdask import FisherNetworkClassifier

ROOT = Path(__file__).parent.parent
STAMP = "tests/deploy/checked.sha256"


@pytest.fixture
def checkout(tmp_path):
    """A copy of the files that the environment depends on, in a folder with a space in its name."""
    copy = tmp_path / "a copy"
    (copy / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in ("environment", "constraints.txt", "deploy_digest.py", "deploy-checked"):
        shutil.copy(ROOT / "scripts" / name, copy / "scripts")
    for name in ("deploy", "tests/deploy"):
        (copy / name).mkdir(parents=True)
        (copy / name / "file.txt").write_text("checked")
    digest = [sys.executable, copy / "scripts" / "deploy_digest.py"]
    (copy / STAMP).write_bytes(subprocess.run(digest, capture_output=True, check=True).stdout)
    return copy


def fake_python(folder, condition, action):
    """A command that runs this Python, except for calls whose arguments match a shell pattern."""
    command = folder / "bin" / "python3"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\ncase "$*" in {condition}) {action};; esac\nexec "{sys.executable}" "$@"\n')
    command.chmod(0o755)
    # The script asks Python for its real path, which would bypass the fake command.
    script = folder / "scripts" / "environment"
    script.write_text(script.read_text().replace("print(sys.executable)", f"print({json.dumps(str(command))})"))
    return command


def quick_python(checkout):
    """A Python that creates environments at once; their Python only logs its arguments."""
    log = checkout / "calls.txt"
    inner = f"""#!/bin/sh
echo "$*" >>"{log}"
case "$*" in
*"${{SLEEP_AT:-nothing}}"*) exec sleep 60;;
*deploy_digest*) exec "{sys.executable}" "$@";;
*"-m pytest"*) exit "${{PYTEST_STATUS:-0}}";;
esac
"""
    (checkout / "inner").write_text(inner)
    (checkout / "inner").chmod(0o755)
    make = f'for folder; do :; done; mkdir "$folder/bin"; cp "{checkout}/inner" "$folder/bin/python"; exit'
    return fake_python(checkout, "*'-m venv'*", make)


def installed(checkout, *options, script="environment", **variables):
    """Run a script -> the extras of each environment that it created."""
    log = checkout / "calls.txt"
    log.write_text("")
    done = environment(checkout, *options, script=script, PYTHON=str(checkout / "bin" / "python3"), **variables)
    assert done.returncode == 0, done.stderr
    return re.findall(r"-e \.\[(.*)\]", log.read_text())


def environment(checkout, *options, script="environment", **variables):
    return subprocess.run(
        [checkout / "scripts" / script, *options],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_missing_python_is_explained_in_one_sentence(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(shutil.which(name))
    done = environment(checkout, PATH=str(tools), PYTHON="")
    assert done.returncode == 1
    assert done.stderr == "No Python 3.11 or newer was found; install one, or set PYTHON to its path.\n"


def test_a_python_that_does_not_run_is_refused(checkout):
    done = environment(checkout, PYTHON="/bin/false")
    assert done.returncode == 1
    assert done.stderr == "PYTHON is set to /bin/false, which does not run as Python 3.11 or newer.\n"


def test_a_missing_venv_module_is_explained_in_one_sentence(checkout):
    command = fake_python(checkout, "*ensurepip*", "exit 1")
    done = environment(checkout, PYTHON=str(command))
    assert done.returncode == 1
    assert (
        "lacks its venv or ensurepip module; install it (on Debian and Ubuntu: apt install python3-venv)" in done.stderr
    )
    assert len(done.stderr.splitlines()) == 1


def interrupt(checkout, command, started, **variables):
    """Start the script, and terminate it with all its processes once ``started()`` is true."""
    process = subprocess.Popen(
        [checkout / "scripts" / "environment"],
        env={**os.environ, "PYTHON": str(command), **variables},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(200):
        if started():
            break
        time.sleep(0.05)
    assert started(), "the build has not started"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=30) != 0


def test_an_interrupted_build_leaves_no_files(checkout):
    command = fake_python(checkout, "*'-m venv'*", "sleep 60")
    interrupt(checkout, command, lambda: list(checkout.glob(".venv-build.*")))
    assert not list(checkout.glob(".venv-build.*"))
    assert not (checkout / ".venv").exists()


@pytest.mark.parametrize("step", ["pip install", "-e .[dev]", "compileall"])
def test_a_build_interrupted_at_a_later_step_leaves_no_files(checkout, step):
    command, log = quick_python(checkout), checkout / "calls.txt"
    interrupt(checkout, command, lambda: log.exists() and step in log.read_text(), SLEEP_AT=step)
    assert not list(checkout.glob(".venv-build.*"))
    assert not (checkout / ".venv").exists()
    assert installed(checkout) == ["dev"], "the next call creates it"


def test_an_environment_not_made_by_the_script_is_kept(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine.txt").write_text("keep")
    done = environment(checkout, PYTHON=sys.executable)
    assert done.returncode == 1
    assert "was not made by this script, so it is left alone" in done.stderr
    assert (checkout / ".venv" / "mine.txt").read_text() == "keep"


def test_the_extra_deploy_checks_is_installed_only_when_needed(checkout):
    quick_python(checkout)
    assert installed(checkout) == ["dev"]
    assert installed(checkout) == [], "nothing changed"
    (checkout / "deploy" / "file.txt").write_text("changed")
    assert installed(checkout) == ["dev,deploy-checks"]
    assert installed(checkout) == [], "it has what the change needs"
    (checkout / "deploy" / "file.txt").write_text("checked")
    assert installed(checkout) == [], "it has more than is needed"
    assert installed(checkout, "--deploy-checks") == []


def test_the_extra_deploy_checks_is_installed_without_a_stamp_and_on_demand(checkout):
    quick_python(checkout)
    assert installed(checkout, "--deploy-checks") == ["dev,deploy-checks"]
    shutil.rmtree(checkout / os.readlink(checkout / ".venv"))
    (checkout / STAMP).unlink()
    assert installed(checkout) == ["dev,deploy-checks"]


def test_unknown_options_of_the_environment_are_refused(checkout):
    done = environment(checkout, "--all")
    assert done.returncode == 1
    assert done.stderr == "scripts/environment has no option --all; the only one is --deploy-checks.\n"


def test_a_digest_that_cannot_be_made_stops_the_environment(checkout):
    (checkout / "scripts" / "deploy_digest.py").unlink()
    done = environment(checkout, PYTHON=sys.executable)
    assert done.returncode == 1
    assert done.stderr.endswith("scripts/deploy_digest.py failed; see its output above.\n")
    assert not list(checkout.glob(".venv*"))


def test_deploy_checked_writes_the_stamp_only_if_the_tests_pass(checkout):
    command = quick_python(checkout)
    before = (checkout / STAMP).read_text()
    (checkout / "deploy" / "file.txt").write_text("changed")
    done = environment(checkout, script="deploy-checked", PYTHON=str(command), PYTEST_STATUS="1")
    assert done.returncode == 1
    assert (checkout / STAMP).read_text() == before
    assert installed(checkout, script="deploy-checked") == [], "the environment exists"
    assert "-m pytest tests/deploy\n" in (checkout / "calls.txt").read_text()
    assert (checkout / STAMP).read_text() != before
    shutil.rmtree(checkout / os.readlink(checkout / ".venv"))
    assert installed(checkout) == ["dev"], "the change is checked"


@pytest.mark.parametrize("script", ["run", "test", "bench", "environment", "deploy-checked", "versions", "docs/build"])
def test_scripts_are_executable(script):
    assert os.access(ROOT / "scripts" / script, os.X_OK)


@pytest.mark.parametrize(
    ("arguments", "passed_on"),
    [
        ([], "-n logical --maxprocesses 2 --dist loadfile --no-loadscope-reorder"),
        (["tests/kernels", "-k", "density", "-s"], "tests/kernels -k density -s"),
    ],
)
def test_the_test_script_passes_its_arguments_to_pytest(checkout, arguments, passed_on):
    shutil.copy(ROOT / "scripts" / "test", checkout / "scripts")
    (checkout / "scripts" / "environment").write_text("#!/bin/sh\necho echo\n")
    done = subprocess.run([checkout / "scripts" / "test", *arguments], capture_output=True, text=True, check=True)
    assert done.stdout == f"-m pytest {passed_on}\n"


def test_the_lowest_versions_are_those_of_pyproject():
    bounds = runpy.run_path(str(ROOT / "scripts" / "version_bounds.py"))
    assert bounds["lowest"]("dask[array,complete]>=2025.1,<2027") == "dask==2025.1"
    with pytest.raises(ValueError, match="click<9 has no lowest version; write one after >= in pyproject.toml"):
        bounds["lowest"]("click<9")
    pins = [bounds["lowest"](requirement) for requirement in bounds["requirements"]()]
    assert {"numpy", "zarr", "bokeh", "pyarrow", "s3fs"} < {pin.partition("==")[0] for pin in pins}


@pytest.mark.parametrize("words", [[], ["oldest"]])
def test_versions_other_than_lowest_and_newest_are_refused(words):
    done = subprocess.run([ROOT / "scripts" / "versions", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert done.stderr == f'scripts/versions needs one of the words lowest and newest, not "{"".join(words)}".\n'


def run_tour(folder):
    """Run the tour in its own process -> its output."""
    command = [sys.executable, ROOT / "scripts" / "tour.py", folder]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


def assert_the_tour_shows_what_the_network_is_for(output):
    shown = {}
    for line in output.splitlines():
        if "%" in line:
            text, accuracy, log_loss, seconds = re.fullmatch(r"  (.*?) +([\d.]+)% +([\d.]+) +([\d.]+)", line).groups()
            shown.setdefault(text, []).append(float(accuracy))
            assert float(log_loss) > 0
            assert float(seconds) >= 0
    assert len(shown) == 10
    (paper,), (log,), (joint,) = (
        shown[f"fxdask, {rule}"]
        for rule in ("the paper's rule: sum of densities", "sum of log densities", "joint densities")
    )
    assert 80 < paper < log < joint
    assert joint > 97
    (fisher,), (extended,) = (shown[f"fxdask, nodes by {name} criterion"] for name in ("Fisher's", "the extended"))
    (at_best,) = shown["fxdask, the same, joint densities, n_selected=25"]
    assert fisher < 56
    assert 60 < extended < 90 < at_best
    assert shown["LDA"][0] > 90
    assert 45 < shown["LDA"][1] < 55


def test_the_tour_shows_what_the_network_is_for(tmp_path):
    output = run_tour(tmp_path)
    assert_the_tour_shows_what_the_network_is_for(output)
    stores = [Path(line.strip()) for line in output.splitlines() if line.endswith(".zarr")]
    assert [store.name for store in stores] == ["digits-joint.zarr", "digits-samples.zarr", "digits-joint-scores.zarr"]
    assert all(store.is_dir() for store in stores)
    scored = zarr.open_group(stores[2], mode="r")
    assert scored["labels"].shape == zarr.open_array(stores[1], mode="r").shape[:1]
    # A second run loads the models of the first.
    tour, model = runpy.run_path(str(ROOT / "scripts" / "tour.py")), tmp_path / "variances-extended.zarr"
    written = (model / "zarr.json").stat().st_mtime_ns
    network = FisherNetworkClassifier.paper(n_nodes=tour["N_NODES"], normalize=None)
    again = tour["ours"](network, tour["variances"](), tmp_path, "extended")
    assert f"nodes by the extended criterion              {again.accuracy:.1%}" in output
    assert (model / "zarr.json").stat().st_mtime_ns == written


def test_the_benchmark_of_probabilities_measures_as_the_oracle(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    measured = importlib.import_module("benchmarks.probabilities").quality
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 400)
    scores = 6 * rng.standard_normal((400, 3)) + 3 * np.eye(3)[truth]
    found = measured(softmax(scores, axis=1), truth)
    expected = oracles.evaluation(scores.tolist(), truth.tolist(), range(3))
    for name in ("accuracy", "log_loss", "calibration_error"):
        assert getattr(found, name) == pytest.approx(expected[name]), name
    wrong = [confidence for members in expected["bins"] for confidence, right in members if not right]
    assert found.n_errors == len(wrong)
    assert found.sure_errors == pytest.approx(sum(confidence > 0.99 for confidence in wrong) / len(wrong))
    assert 0 < found.sure_errors < 1
