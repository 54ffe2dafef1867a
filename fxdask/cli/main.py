"""Entry point of the command line: commands, exit status and one-line errors."""

from __future__ import annotations

import json
import logging
import re
import signal
import sys
from importlib import import_module

import click

from fxdask.errors import FxdaskError

__all__ = ["cli", "main"]

OPTIONS = {
    "n_nodes": "--nodes",
    "n_selected": "--selected",
    "n_anchors": "--anchors",
    "n_neighbors": "--neighbors",
    "random_state": "--seed",
} | {
    name: f"--{name.replace('_', '-')}"
    for name in (
        *("bandwidth_spread", "id_columns", "keep_projections", "keep_weights", "label_column", "memory_limit"),
        *("missing", "nodes_per_block", "numeric_only", "overwrite", "pool_size", "shrink_spread"),
    )
}
"""The options of Python's parameters that messages name."""
# Names of files, columns and other quoted words stay as they are.
PARAMETERS = re.compile(rf"""(?<![\w/.'"-])({"|".join(OPTIONS)})(?:=("[^"]*"|'[^']*'|\w+))?(?![\w/'"-]|\.\w)""")
STOPPED = "stopped; run the same command again to resume"
COMMANDS = ("fit", "score", "rank", "responses", "info", "verify", "report", "reproduce", "doctor")


class _Commands(click.Group):
    """A group that imports the module of a command when it is used, because some take seconds to import."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names of all commands, in the order of the help."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command of this name, which is also the name of its module."""
        return getattr(import_module(f"fxdask.cli.{cmd_name}"), cmd_name) if cmd_name in COMMANDS else None


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(package_name="fxdask")
def cli() -> None:
    """Fit, score and inspect random-projection, kernel-density classifiers in Zarr stores."""


def main() -> None:
    """Run the command line; the exit status is 0, 1 if the work failed, or 2 if the arguments are wrong."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # containers and batch systems stop jobs by SIGTERM
    try:
        status = cli(standalone_mode=False)
        if status:
            sys.exit(status)
    except click.UsageError as error:
        if len(sys.argv) == 1:  # click then raises the help, whose lines must stay
            error.show()
            sys.exit(2)
        message = " ".join(error.format_message().split())  # click lists the choices of an argument on several lines
        click.UsageError(message, error.ctx).show()
        _print_error(message, error, 2)
    except (click.Abort, KeyboardInterrupt) as error:
        click.echo(STOPPED, err=True)
        _print_error(STOPPED, error, 1)
    except Exception as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        click.echo(f"error: {_one_line(error)}", err=True)
        _print_error(_one_line(error), error, 1)


def _print_error(message: str, error: BaseException, status: int) -> None:
    """With --json, print the error as the only JSON object; then exit."""
    # Options are not parsed if the arguments are wrong.
    if "--json" in sys.argv:
        click.echo(json.dumps({"error": " ".join(message.split()), "type": type(error).__name__}))
    sys.exit(status)


def _one_line(error: Exception) -> str:
    """The error as one line, with options of the command line instead of Python parameters."""
    text = PARAMETERS.sub(_as_option, " ".join(str(error).split()))
    ours = isinstance(error, (ValueError, OSError, FxdaskError))
    return text if ours and text else f"{type(error).__name__}: {text}"


def _as_option(found: re.Match[str]) -> str:
    """A parameter with or without its value, such as missing="omit" -> the option, such as --missing omit."""
    parameter, value = found.groups()
    if value in ("None", "False") or (value is None and "_" not in parameter):
        return found[0]  # no option has such a value, and a word such as missing is English
    option, value = OPTIONS[parameter], (value or "").strip("\"'")
    return option if value in ("", "True") else f"{option} {value}"
