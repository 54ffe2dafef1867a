"""A progress bar on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import click

__all__ = ["progress_bar"]


@contextmanager
def progress_bar(
    title: str, *, shown: bool, unit: str | None = None, n_units: int = 0
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a function of (done, total) that draws a progress bar; None if not ``shown``.

    With a ``unit``, of which there are ``n_units`` in total, the bar also shows the rate per second.
    """
    if not shown:
        yield None
        return
    bar: Any = None
    started = time.perf_counter()

    def rate(done: int | None) -> str:
        share = (done or 0) / max(1, bar.length) if bar else 0
        return f"{share * n_units / (time.perf_counter() - started):,.0f} {unit}/s"

    def update(done: int, total: int) -> None:
        nonlocal bar
        if bar is None:
            show = rate if unit else None
            bar = click.progressbar(length=total, label=title, file=sys.stderr, show_pos=True, item_show_func=show)
            bar.__enter__()
        bar.update(done - bar.pos, done)

    try:
        yield update
    finally:
        if bar is not None:
            bar.__exit__(None, None, None)
