"""A progress bar on standard error."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(title: str, *, shown: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A function of (done, in all) that draws a bar while a terminal is watching; None where none is wanted."""
    if not shown:
        yield None
        return
    bar: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            bar = click.progressbar(length=total, label=title, file=sys.stderr, show_pos=True)
            bar.__enter__()
        bar.update(done - bar.pos)

    try:
        yield update
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)
