"""Commands in the README and the guide are shell, and their programs know every word of them."""

import re
import shlex

import click
import pytest
from deploy.deployment import bash_refusal
from deploy.test_commands import parsed
from docs.documents import CHAPTERS, PLAIN, ROOT, SHELL, SHELL_RUN, blocks, name_of

README = ROOT / "README.md"
GUIDE = [README, *CHAPTERS]


def commands(path):
    """The words of each call of fxdask or dask in a block of a document, or in the text between backquotes."""
    text = path.read_text()
    lines = [
        line for block in blocks(text) if block.kind in (SHELL, SHELL_RUN, PLAIN) for line in block.text.splitlines()
    ]
    lines += re.findall(r"`(fxdask [a-z]+ [^`]*--[^`]*)`", text)
    return [shlex.split(line, comments=True) for line in lines if re.match(r"(fxdask|dask) [a-z]", line)]


@pytest.mark.parametrize("path", [path for path in GUIDE if commands(path)], ids=name_of)
def test_programs_know_the_words_of_their_commands(path):
    for words in commands(path):
        assert parsed_or_incomplete(words), words
        if "--help" not in words:
            with pytest.raises(click.UsageError, match="No such option"):
                parsed([*words, "--no-such-option"])


def parsed_or_incomplete(words):
    """Whether a command is understood; one in a sentence may lack its arguments, or only ask for help."""
    try:
        return parsed(words)
    except (click.MissingParameter, click.exceptions.Exit):
        return True


def test_enough_commands_are_found():
    found = [words for path in GUIDE for words in commands(path)]
    assert {words[1] for words in found if words[0] == "fxdask"} >= {"fit", "score", "rank", "info", "verify", "doctor"}
    assert len(found) > 20


@pytest.mark.parametrize("path", [path for path in GUIDE if "```bash" in path.read_text()], ids=name_of)
def test_shell_blocks_are_shell(path):
    for block in blocks(path.read_text()):
        if block.kind in (SHELL, SHELL_RUN):
            assert bash_refusal(block.text) == "", f"line {block.line}"


def test_the_readme_is_a_front_page():
    """Short enough to be read at once, with the two commands that need no other knowledge."""
    text = README.read_text()
    assert len(text.splitlines()) <= 150
    assert max(len(line) for line in text.splitlines() if not line.startswith("|")) <= 120
    assert "\nscripts/run " in text
    assert "\nscripts/test " in text
    for chapter in CHAPTERS:
        assert f"(scripts/docs/{chapter.name})" in text, chapter.name


def test_benchmarks_that_documents_name_exist():
    named = {name for path in GUIDE for name in re.findall(r"scripts/bench ([a-z][\w-]*)", path.read_text())}
    files = {path.stem.replace("_", "-") for path in (ROOT / "scripts" / "benchmarks").glob("*.py")}
    assert named
    assert named <= files | {"all"}
