"""Timing of several pieces of work in turn, and the table and JSON that come of it."""

import json
import platform
import resource
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import click
import numpy as np


def in_turn(work: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, list[float]]:
    """Seconds of each piece, taken in turn so that a busy spell of the machine falls on all of them.

    One round before the first counts for nothing: it loads libraries and fills caches.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for round_ in range(repeats + 1):
        for name, run in work.items():
            started = time.perf_counter()
            run()
            if round_:
                seconds[name].append(time.perf_counter() - started)
    return seconds


def report(
    title: str, seconds: Mapping[str, list[float]], base: str, limits: Mapping[str, float], file: Path | None
) -> None:
    """Print medians and ratios to the base, each round's ratio taken within the round."""
    click.echo(f"{title}\nPython {platform.python_version()}, NumPy {np.__version__}, {platform.machine()}\n")
    click.echo(f"{'':32}{'median s':>10}{'ratio':>8}{'lowest':>8}{'highest':>8}  limit")
    rows = {}
    for name, times in seconds.items():
        ratios = [mine / its for mine, its in zip(times, seconds[base], strict=True)]
        rows[name] = {"seconds": times, "ratios": ratios, "ratio": statistics.median(ratios)}
        limit = f"{limits[name]:.2f}" if name in limits else ""
        spread = f"{min(ratios):8.2f}{max(ratios):8.2f}"
        click.echo(f"{name:32}{statistics.median(times):10.3f}{rows[name]['ratio']:8.2f}{spread}  {limit}")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    click.echo(f"\npeak resident memory of this process {peak:.0f} MiB")
    if file:
        file.write_text(json.dumps({"title": title, "base": base, "rows": rows, "peak_mib": peak}, indent=1) + "\n")
