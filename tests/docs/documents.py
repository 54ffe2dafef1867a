"""The documents for users, and their blocks of code."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
CHAPTERS = sorted((ROOT / "scripts" / "docs").glob("*.md"))
DOCUMENTS = [ROOT / "README.md", *CHAPTERS, *sorted((ROOT / "deploy").rglob("*.md")), ROOT / "fxdask/store/FORMAT.md"]

# The words after the fence of every kind of block. Blocks without a language are commands, formulas or printed text.
PYTHON, SHELL, SHELL_RUN, OUTPUT, PLAIN = "python", "bash", "bash run", "output", ""
KINDS = (PYTHON, SHELL, SHELL_RUN, OUTPUT, PLAIN, "json")


@dataclass(frozen=True)
class Block:
    """A fenced block: the words after its fence, its first line's number, its text."""

    kind: str
    line: int
    text: str


def blocks(markdown: str) -> list[Block]:
    """All fenced blocks of a document, in their order."""
    found = re.finditer(r"^```(.*)\n((?:.*\n)*?)^```$", markdown, re.MULTILINE)
    return [Block(match[1].strip(), markdown[: match.start()].count("\n") + 2, match[2]) for match in found]


def name_of(path: Path) -> str:
    """A document's name in reports of tests."""
    return path.relative_to(ROOT).as_posix()
