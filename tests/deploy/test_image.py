"""The image's Dockerfile, and what .dockerignore lets through to it."""

import fnmatch
import re
import tomllib
from pathlib import Path

import pytest
from deploy.deployment import DOCKERFILE, ROOT, instructions


def faults_of_image(dockerfile):
    """What a linter does not ask for: exact tags, a user with a number, nothing but pinned packages, a health check."""
    found = instructions(dockerfile)
    stages = [words.split(" AS ") for name, words in found if name == "FROM"]
    earlier = [{stage[1] for stage in stages[:number] if len(stage) == 2} for number in range(len(stages))]
    bases = [stage[0] for stage, names in zip(stages, earlier, strict=True) if stage[0] not in names]
    users = [words for name, words in found if name == "USER"]
    installs = [words for name, words in found if name == "RUN" and re.search(r"\bpip\b[^&]* install ", words)]
    faults = {
        "base": [base for base in bases if not re.search(r":\d+\.\d+\.\d+-", base)],
        "user": [] if users and re.fullmatch(r"[1-9]\d*:[1-9]\d*", users[-1]) else users or ["none"],
        "pins": [words for words in installs if "--constraint scripts/constraints.txt" not in words],
        "health": [] if any(name == "HEALTHCHECK" for name, _ in found) else ["none"],
        "late": [] if found[-1][0] == "CMD" else [found[-1]],
    }
    return {name for name, faulty in faults.items() if faulty}


def test_the_image_has_no_faults():
    assert faults_of_image(DOCKERFILE.read_text()) == set()


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("python:3.11.13-slim-bookworm", "python:latest", "base"),
        ("python:3.11.13-slim-bookworm", "python", "base"),
        ("python:3.11.13-slim-bookworm", "python:3.11-slim", "base"),
        ("USER 10001:10001", "USER root", "user"),
        ("USER 10001:10001\n", "", "user"),
        ("--constraint scripts/constraints.txt ", "", "pins"),
        ("HEALTHCHECK", "LABEL healthcheck=none\n#", "health"),
    ],
)
def test_faults_of_an_image_are_seen(old, new, fault):
    text = DOCKERFILE.read_text()
    assert old in text
    assert faults_of_image(text.replace(old, new)) == {fault}


def let_through(path, ignored):
    """Whether .dockerignore lets a file to the engine; the last pattern that fits decides."""
    taken = True
    for line in ignored.splitlines():
        pattern = line.removeprefix("!").removeprefix("**/")
        if not line or line.startswith("#"):
            continue
        parents = [str(path), *(str(parent) for parent in path.parents if parent.name)]
        if line.startswith("**/"):
            parents += [part for parent in parents for part in Path(parent).parts]
        if any(fnmatch.fnmatchcase(parent, pattern) for parent in parents):
            taken = line.startswith("!")
    return taken


def copied_files():
    """The files of the checkout that the Dockerfile copies."""
    for name, words in instructions(DOCKERFILE.read_text()):
        if name == "COPY" and not words.startswith("--from"):
            for source in words.split()[:-1]:
                path = ROOT / source
                assert path.exists(), source
                yield from (file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def test_the_extras_of_the_image_exist():
    (default,) = [words for name, words in instructions(DOCKERFILE.read_text()) if name == "ARG"]
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(default.removeprefix("EXTRAS=").split(",")) <= set(known)


def test_dockerignore_lets_through_what_is_copied_and_nothing_else():
    ignored = (ROOT / ".dockerignore").read_text()
    copied = {path.relative_to(ROOT) for path in copied_files()}
    assert Path("fxdask/experiment/published/mnist.csv") in copied
    needed = {path for path in copied if "__pycache__" not in path.parts}
    assert [path for path in needed if not let_through(path, ignored)] == []
    others = {Path(name) for name in (".venv/bin/python", ".git/config", "model.zarr/zarr.json", "tests/conftest.py")}
    others |= {path for path in copied if "__pycache__" in path.parts} | {Path("fxdask/__pycache__/cli.pyc")}
    assert [path for path in others if let_through(path, ignored)] == []
    assert not let_through(Path("fxdask/cli.py"), ignored.replace("!fxdask\n", ""))
