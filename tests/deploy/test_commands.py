"""Commands of containers and READMEs, read by the programs that they call; and what READMEs name."""

import re

import click
import pytest
from deploy.deployment import (
    DEPLOY,
    DOCKERFILE,
    IMAGE,
    READMES,
    ROOT,
    bash_refusal,
    commands,
    documented_commands,
    script,
    shell_blocks,
)
from distributed.cli import dask_scheduler, dask_worker

from fxdask.cli.main import cli


def parsed(words):
    """Let the program's own parser read its words, without running it."""
    program, *rest = words
    command = {
        "fxdask": cli,
        "scheduler": dask_scheduler.main,
        "worker": dask_worker.main,
        "cluster.py": script("ssh/cluster.py").main,
    }[rest.pop(0) if program == "dask" else program]
    if isinstance(command, click.Group):
        name, group = rest.pop(0), command
        command = group.get_command(click.Context(group), name)
        assert command is not None, name
    context = command.make_context("words", rest)
    # Dask's commands take what they do not know for an address, or for words of a preloaded module.
    unknown = [context.params.get("scheduler") or "", *context.params.get("preload_argv", ())]
    if program == "dask" and any(word.startswith("-") for word in unknown):
        raise click.NoSuchOption(str(unknown), ctx=context)
    return context


@pytest.mark.parametrize("way", ["compose", "kubernetes"])
def test_commands_of_containers_are_read_by_their_programs(way):
    found = commands(way)
    assert [words[:2] for words in found.values()] == [["dask", "scheduler"], ["dask", "worker"], ["fxdask", "fit"]]
    for words in found.values():
        parsed(words)
        with pytest.raises(click.UsageError, match="No such option"):
            parsed([*words, "--no-such-option"])


@pytest.mark.parametrize("program", ["fxdask", "dask", "cluster.py"])
def test_commands_of_the_readmes_are_read_by_their_programs(program, tmp_path, monkeypatch):
    (tmp_path / "deploy").symlink_to(DEPLOY)
    monkeypatch.chdir(tmp_path)
    found = list(documented_commands(program))
    assert len({readme for readme, _ in found}) >= {"fxdask": 5, "dask": 1, "cluster.py": 1}[program]
    for _, words in found:
        # The files of certificates need not be there for a look at the words.
        here = [word if not word.endswith(".pem") else str(DOCKERFILE) for word in words]
        parsed([program, *here])
        with pytest.raises(click.UsageError, match="No such option"):
            parsed([program, *here, "--no-such-option"])


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_shell_blocks_are_shell(readme):
    blocks = shell_blocks(readme)
    assert blocks
    for block in blocks:
        assert bash_refusal(block) == ""
        assert "syntax error" in bash_refusal(block + "done")


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.parent.name)
def test_readmes_name_what_exists_tell_of_security_and_how_to_stop(readme):
    text = readme.read_text()
    for target in re.findall(r"\]\(([^)#]+)", text):
        assert (readme.parent / target).exists(), target
    for path in re.findall(r"(?<![\w/])(?:deploy|scripts|tests)/[\w./-]*\w", text):
        assert (ROOT / path).exists(), path
    assert "runs any code that it is sent" in text
    if readme.parent != DEPLOY:
        assert re.search(r"\b[Ss]top\b", text)
        assert str(readme.relative_to(DEPLOY)) in (DEPLOY / "README.md").read_text()


def test_images_in_the_readmes_are_of_this_version():
    tags = {tag for readme in READMES for tag in re.findall(r"fxdask:[\w.]+\w", readme.read_text())}
    assert tags | set(re.findall(r"--tag (\S+)", DOCKERFILE.read_text())) == {IMAGE}
