"""Two files of ``scripts/bench all --json`` side by side."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

PARTS = {"limits": "limit of the machine", "figures": "ratio to the limit"}


@click.command()
@click.argument("first", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.argument("second", type=click.Path(path_type=Path, exists=True, dir_okay=False))
def compare(first: Path, second: Path) -> None:
    """Show how each ratio changed; a change is marked if the ranges of both runs do not overlap."""
    runs = [loaded(file) for file in (first, second)]
    for name in dict.fromkeys([*runs[0]["machine"], *runs[1]["machine"]]):
        values = [run["machine"].get(name, "-") for run in runs]
        if values[0] != values[1]:
            click.echo(f"{name}: {values[0]} -> {values[1]}")
    for part, title in PARTS.items():
        click.echo(f"\n{title:64}{first.stem:>26}{second.stem:>26}{'change':>9}")
        for line in changes(runs[0][part], runs[1][part]):
            click.echo(line)
    click.echo("\n* the ranges (lowest to highest) do not overlap")


def loaded(file: Path) -> dict[str, Any]:
    """The content of the file, if it is one of ``scripts/bench all --json``."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise click.ClickException(f"{file} is no JSON ({error}); make it by scripts/bench all --json") from error
    lacking = [part for part in ("machine", *PARTS) if not isinstance(found, dict) or part not in found]
    if lacking:
        raise click.ClickException(f"{file} lacks {', '.join(lacking)}; make it by scripts/bench all --json")
    return found


def changes(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[str]:
    """One line for each figure of either run."""
    lines = []
    for name in dict.fromkeys([*first, *second]):
        before, after = first.get(name), second.get(name)
        line = f"{name:64}{_range(before):>26}{_range(after):>26}"
        if before and after:
            mark = "" if overlap(before, after) else " *"
            line += f"{after['median'] / before['median'] - 1:>+9.1%}{mark}"
        lines.append(line)
    return lines


def overlap(before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    """Whether the ranges from lowest to highest have a point in common."""
    return before["lowest"] <= after["highest"] and after["lowest"] <= before["highest"]


def _range(figure: Mapping[str, float] | None) -> str:
    if figure is None:
        return "-"
    return f"{figure['median']:.3g} ({figure['lowest']:.3g} - {figure['highest']:.3g})"
