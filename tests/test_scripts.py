"""The scripts that make the environment: what they refuse, and what an interruption leaves behind."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture
def checkout(tmp_path):
    """A copy of what the environment depends on, in a folder with a space in its name."""
    copy = tmp_path / "a copy"
    (copy / "scripts").mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", copy)
    for name in ("environment", "constraints.txt"):
        shutil.copy(ROOT / "scripts" / name, copy / "scripts")
    return copy


def fake_python(folder, condition, action):
    """A command that is this Python, but for calls whose words meet a condition."""
    command = folder / "bin" / "python3"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\ncase "$*" in {condition}) {action};; esac\nexec "{sys.executable}" "$@"\n')
    command.chmod(0o755)
    # The interpreter gives its real path to the script, which would pass the fake by.
    script = folder / "scripts" / "environment"
    script.write_text(script.read_text().replace("print(sys.executable)", f"print({json.dumps(str(command))})"))
    return command


def environment(checkout, **variables):
    return subprocess.run(
        [checkout / "scripts" / "environment"],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


def test_no_python(checkout, tmp_path):
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "dirname", "env"):
        (tools / name).symlink_to(shutil.which(name))
    done = environment(checkout, PATH=str(tools), PYTHON="")
    assert done.returncode == 1
    assert done.stderr == "No Python 3.11 or newer was found; install one, or set PYTHON to its path.\n"


def test_a_python_that_does_not_run(checkout):
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


def test_an_interrupted_build_leaves_nothing(checkout):
    command = fake_python(checkout, "*'-m venv'*", "sleep 60")
    process = subprocess.Popen(
        [checkout / "scripts" / "environment"],
        env={**os.environ, "PYTHON": str(command)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    for _ in range(200):
        if list(checkout.glob(".venv-build.*")):
            break
        time.sleep(0.05)
    assert list(checkout.glob(".venv-build.*")), "the build has begun"
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=30) != 0
    assert not list(checkout.glob(".venv-build.*"))
    assert not (checkout / ".venv").exists()


def test_somebody_elses_environment_is_left_alone(checkout):
    (checkout / ".venv").mkdir()
    (checkout / ".venv" / "mine.txt").write_text("keep")
    done = environment(checkout, PYTHON=sys.executable)
    assert done.returncode == 1
    assert "was not made by this script, so it is left alone" in done.stderr
    assert (checkout / ".venv" / "mine.txt").read_text() == "keep"


@pytest.mark.parametrize("script", ["run", "test", "bench", "environment"])
def test_scripts_can_be_run(script):
    assert os.access(ROOT / "scripts" / script, os.X_OK)


def test_the_example_on_digits(tmp_path):
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "digits.py", tmp_path], capture_output=True, text=True, check=True
        )
    lines = done.stdout.splitlines()
    rows = [line.split() for line in lines if "fisher" in line]
    assert [row[0] for row in rows] == ["extended_fisher", "fisher"]
    assert all(float(row[1].rstrip("%")) > 75 for row in rows)
    assert all(Path(row[2]).is_dir() and Path(row[3]).is_dir() for row in rows)
