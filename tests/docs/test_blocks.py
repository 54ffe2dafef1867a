"""Every block of Python in the documents runs, and prints what the document shows; so do commands marked as run."""

import contextlib
import io
import shlex

import pytest
from command_line import run_here
from docs.documents import DOCUMENTS, KINDS, OUTPUT, PYTHON, ROOT, SHELL_RUN, Block, blocks, name_of

README = ROOT / "README.md"
FORMAT = ROOT / "fxdask/store/FORMAT.md"  # tests/store/test_format.py runs its program, with the files that it reads
RUN = [
    path
    for path in DOCUMENTS
    if path not in (FORMAT, README) and any(block.kind in (PYTHON, SHELL_RUN) for block in blocks(path.read_text()))
]


def run_document(found, folder, name="document"):
    """Run all blocks in one folder, with the variables of the blocks before them -> what the Python blocks printed."""
    variables, printed = {"__name__": "__main__"}, None
    for block in found:
        if block.kind == PYTHON:
            # So that an error names the line of the document.
            code = compile("\n" * (block.line - 1) + block.text, name, "exec")
            stream = io.StringIO()
            with contextlib.chdir(folder), contextlib.redirect_stdout(stream):
                exec(code, variables)
            printed = stream.getvalue()
        elif block.kind == OUTPUT:
            assert printed == block.text, f"{name}, line {block.line}"
        elif block.kind == SHELL_RUN:
            run_commands(block, folder, name)


def run_commands(block, folder, name):
    for line in block.text.splitlines():
        program, *words = shlex.split(line)
        assert program == "fxdask", f"{name}, line {block.line}: only fxdask can be run here"
        done = run_here(folder, *words)
        assert done.returncode == 0, f"{name}: {line}\n{done.stderr}"


@pytest.mark.parametrize("path", RUN, ids=name_of)
def test_the_blocks_of_a_document_run(path, tmp_path):
    run_document(blocks(path.read_text()), tmp_path, name_of(path))


@pytest.mark.parametrize("times", [1, pytest.param(2, marks=pytest.mark.full)])
def test_the_readme_runs_again_in_the_same_folder(tmp_path, times):
    """People run it again, and then find the stores of the first time."""
    for _ in range(times):
        run_document(blocks(README.read_text()), tmp_path, "README.md")
    assert (tmp_path / "ranking.html").exists()


@pytest.mark.parametrize("path", DOCUMENTS, ids=name_of)
def test_every_block_is_of_a_known_kind(path):
    """So that no block escapes the tests by another name of its language."""
    for block in blocks(path.read_text()):
        assert block.kind in KINDS, f"line {block.line}: {block.kind}"


def test_other_output_than_shown_is_found(tmp_path):
    text = "```python\nprint(1)\n```\n\n```output\n2\n```\n"
    with pytest.raises(AssertionError, match="document, line 6"):
        run_document(blocks(text), tmp_path)


def test_a_command_that_fails_is_found(tmp_path):
    with pytest.raises(AssertionError, match="missing"):
        run_document([Block(SHELL_RUN, 1, "fxdask info missing.zarr\n")], tmp_path)
