"""Prints a digest of what the checks of deploy/ depend on.

These are the files of deploy/ and tests/deploy/, the project's version, and the packages of the extra deploy-checks
with their pinned versions. tests/deploy/checked.sha256 has the digest for which these checks last passed.
"""

import hashlib
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
STAMP = "tests/deploy/checked.sha256"


def name_of(requirement: str) -> str:
    """The package that a requirement names, spelt as package indexes do."""
    found = re.match(r"[\w.-]+", requirement)
    return re.sub(r"[-_.]+", "-", found[0]).lower() if found else ""


def checkers() -> list[str]:
    """The requirements of the extra deploy-checks."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return sorted(project["optional-dependencies"]["deploy-checks"])


def settings() -> list[str]:
    """The project's version, the requirements of the extra, and the pins of its packages."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    names = {name_of(requirement) for requirement in checkers()}
    pins = (ROOT / "scripts" / "constraints.txt").read_text().splitlines()
    return [version, *checkers(), *sorted(pin for pin in pins if name_of(pin) in names)]


def checked_files() -> list[str]:
    """Names of the files that count, sorted; caches, hidden files and the stamp do not."""
    paths = [path.relative_to(ROOT) for folder in ("deploy", "tests/deploy") for path in (ROOT / folder).rglob("*")]
    names = [path.as_posix() for path in paths if (ROOT / path).is_file()]
    return sorted(name for name in names if name != STAMP and not re.search(r"(^|/)(\.|__pycache__/)", name))


def digest() -> str:
    """The digest of all of it, as hexadecimal digits."""
    total = hashlib.sha256(repr(settings()).encode())
    for name in checked_files():
        total.update(name.encode() + b"\0" + hashlib.sha256((ROOT / name).read_bytes()).digest())
    return total.hexdigest()


if __name__ == "__main__":
    print(digest())
