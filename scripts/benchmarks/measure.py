"""Time several functions in alternation, and report the results as a table and as JSON."""

import json
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np


@dataclass(frozen=True)
class Ratio:
    """The time of ``name`` divided by the time of ``base``, and its upper or lower limit."""

    name: str
    base: str
    limit: float | None = None
    at_least: float | None = None

    def verdict(self, figure: float) -> str:
        """Text of the limit, and whether the figure meets it."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}  {'ok' if figure >= self.at_least else 'MISSED'}"
        if self.limit is not None:
            return f"at most {self.limit:g}  {'ok' if figure <= self.limit else 'MISSED'}"
        return ""


def in_turn(work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each function; they alternate, so that other load on the machine affects all of them.

    A first round is not counted, because it loads libraries and fills caches. The order changes from round to round,
    so that none of them always has to get back from the system what the same other one has just freed.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(repeats + 1):
        for name in _order(list(work), round_):
            run = work[name]
            started = time.perf_counter()
            run()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def _order(names: list[str], round_: int) -> list[str]:
    """The names forwards and backwards in turn, each time from another one on, so that their neighbours change."""
    first = round_ // 2 % len(names)
    order = names[first:] + names[:first]
    return order[::-1] if round_ % 2 else order


def report(title: str, seconds: Mapping[str, list[float]], ratios: Sequence[Ratio]) -> dict[str, Any]:
    """Print medians and ratios, each ratio within one round, and return them for the JSON."""
    click.echo(f"{title}\nPython {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")
    click.echo(f"{'':40}{'median s':>10}")
    for name, times in seconds.items():
        click.echo(f"{name:40}{statistics.median(times):10.3f}")
    click.echo(f"\n{'':64}{'ratio':>10}{'lowest':>10}{'highest':>10}   limit")
    rows = []
    for ratio in ratios:
        each = [time_ / base for time_, base in zip(seconds[ratio.name], seconds[ratio.base], strict=True)]
        middle = statistics.median(each)
        figures = "".join(f"{figure:10.3g}" for figure in (middle, min(each), max(each)))
        click.echo(f"{f'{ratio.name} / {ratio.base}':64}{figures}   {ratio.verdict(middle)}")
        rows.append(asdict(ratio) | {"median": middle, "each": each})
    return {"title": title, "seconds": dict(seconds), "ratios": rows}


def save(figures: Any, file: Path | None) -> None:
    """Write figures as JSON, if a file is given."""
    if file:
        file.write_text(json.dumps(figures, indent=1, default=str) + "\n")
        click.echo(f"\nwrote {file}")
