"""Prints constraints for pip: the lowest versions that pyproject.toml allows, or none for the newest.

The lowest version of a package is the one after ">=" among the dependencies and the extras for users.
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOR_USERS = ("dashboard", "parquet", "s3")


def requirements() -> list[str]:
    """What an installation with all extras for users requires."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["dependencies"] + [line for extra in FOR_USERS for line in project["optional-dependencies"][extra]]


def lowest(requirement: str) -> str:
    """``name[extra]>=version,<other`` -> ``name==version``."""
    found = re.match(r"([\w.-]+)(?:\[[\w,-]+\])?>=([\w.]+)", requirement)
    if found is None:
        raise ValueError(f"{requirement} has no lowest version; write one after >= in pyproject.toml")
    return "==".join(found.groups())


if __name__ == "__main__":
    if sys.argv[1] == "lowest":
        print("\n".join(map(lowest, requirements())))
