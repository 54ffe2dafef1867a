"""The command line in this process: the same arguments and results, without starting a new process."""

import contextlib
import io
import logging
import signal
import sys
import warnings
from types import SimpleNamespace
from unittest.mock import patch

from fxdask.cli.main import main

LOGGERS = ("fxdask", "distributed", "distributed.client")


@contextlib.contextmanager
def process_settings_restored():
    """Restore what the command line sets for its whole process: logging, warnings and the handler of SIGTERM."""
    root = logging.getLogger()
    handlers, levels = root.handlers[:], {name: logging.getLogger(name).level for name in LOGGERS}
    shown, handler = warnings.showwarning, signal.getsignal(signal.SIGTERM)
    root.handlers[:] = []
    try:
        yield
    finally:
        root.handlers[:] = handlers
        for name, level in levels.items():
            logging.getLogger(name).setLevel(level)
        warnings.showwarning = shown
        signal.signal(signal.SIGTERM, handler)


def run_here(folder, *arguments):
    """Run ``fxdask ARGUMENTS`` in a folder -> exit status, standard output and standard error."""
    # Encoded as in a terminal, where text that is not valid Unicode cannot be printed to standard output.
    out, err = io.TextIOWrapper(io.BytesIO(), "utf-8"), io.TextIOWrapper(io.BytesIO(), "utf-8", "backslashreplace")
    status = 0
    with (
        process_settings_restored(),
        contextlib.chdir(folder),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        patch.object(sys, "argv", ["fxdask", *map(str, arguments)]),
    ):
        try:
            main()
        except SystemExit as exited:
            status = exited.code
    return SimpleNamespace(returncode=status, stdout=written(out), stderr=written(err))


def written(stream):
    """All text that was written to an encoded stream."""
    stream.flush()
    return stream.buffer.getvalue().decode()
