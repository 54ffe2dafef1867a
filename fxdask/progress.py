"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["progress_bar"]

SECONDS_OF_SILENCE = 5.0
"""An interactive session shows the bar of a stage that takes longer, even if it is not asked for."""
SECONDS_BETWEEN_LINES = 0.5


@contextmanager
def progress_bar(
    title: str, *, shown: bool, unit: str | None = None, n_units: int = 0
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of (done, total) that draws a progress bar; None if not ``shown``.

    With a ``unit``, of which there are ``n_units`` in total, the bar also shows the rate per second. In
    a notebook or another interactive session the bar appears after some seconds if it is not ``shown``.
    """
    if not shown and not _is_interactive():
        yield None
        return
    started = time.perf_counter()
    bar: Any = None

    def rate(done: int | None) -> str:
        share = (done or 0) / max(1, bar.length) if bar else 0
        return f"{share * n_units / (time.perf_counter() - started):,.0f} {unit}/s"

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None and not shown and time.perf_counter() - started < SECONDS_OF_SILENCE:
            return
        if bar is None:
            show = rate if unit else None
            bar = _Line(title, total, show) if _is_notebook() else _bar(title, total, show)
            bar.__enter__()
        bar.update(done - bar.pos, done)

    try:
        yield update
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)


def _bar(title: str, total: int, show: Callable[[int | None], str] | None) -> Any:
    return click.progressbar(length=total, label=title, file=sys.stderr, show_pos=True, item_show_func=show)


def _is_interactive() -> bool:
    """Whether a person sits in front of this process: Python sets this name only then, and Jupyter too."""
    return hasattr(sys, "ps1")


def _is_notebook() -> bool:
    """Whether standard error is shown to a person but is no terminal, on which click draws its bar."""
    return _is_interactive() and not sys.stderr.isatty()


class _Line:
    """A line of text that is written again and again, with the methods of click's bar that are used here."""

    def __init__(self, title: str, length: int, show: Callable[[int | None], str] | None) -> None:
        self.pos, self.length = 0, length
        self._title, self._show, self._written = title, show, float("-inf")

    def __enter__(self) -> _Line:
        return self

    def update(self, n_steps: int, current_item: int | None = None) -> None:
        """Go on by so many steps, and write the line unless that was done just now."""
        self.pos += n_steps
        now = time.perf_counter()
        if self.pos == self.length or now - self._written >= SECONDS_BETWEEN_LINES:
            rate = f"  {self._show(current_item)}" if self._show else ""
            percent = 100 * self.pos // max(1, self.length)
            # The spaces cover what is left of a longer line.
            click.echo(f"\r{self._title}  {percent}%  {self.pos}/{self.length}{rate}    ", file=sys.stderr, nl=False)
            self._written = now

    def __exit__(self, *_: object) -> None:
        click.echo(file=sys.stderr)
