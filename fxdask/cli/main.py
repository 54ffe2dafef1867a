"""Entry point of the command line: commands, exit status and one-line errors."""

from __future__ import annotations

import logging
import signal
import sys

import click

from fxdask import __version__
from fxdask.cli.fit import fit
from fxdask.cli.info import info
from fxdask.cli.report import report
from fxdask.cli.reproduce import reproduce
from fxdask.cli.score import score
from fxdask.cli.verify import verify
from fxdask.errors import FxdaskError

__all__ = ["cli", "main"]


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__)
def cli() -> None:
    """Fit, score and inspect random-projection, kernel-density classifiers in Zarr stores."""


for command in (fit, score, info, verify, report, reproduce):
    cli.add_command(command)


def main() -> None:
    """Run the command line; the exit status is 0, 1 if the work failed, or 2 if the arguments are wrong."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # containers and batch systems stop jobs by SIGTERM
    try:
        cli(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; run the same command again to resume", err=True)
        sys.exit(1)
    except Exception as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(1)


def _one_line(error: Exception) -> str:
    """The error as one line, with options of the command line instead of Python parameters."""
    text = " ".join(str(error).split()).replace("overwrite=True", "--overwrite")
    ours = isinstance(error, (ValueError, OSError, FxdaskError))
    return text if ours and text else f"{type(error).__name__}: {text}"
