"""Print results as text or as JSON."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

import click

from fxdask.sizes import format_bytes

__all__ = ["print_result"]


def print_result(facts: dict[str, Any], as_json: bool) -> None:
    """Print facts by name, as lines and tables or as one JSON object."""
    if as_json:
        _echo(json.dumps(facts, default=str))
        return
    for name, value in facts.items():
        _print_fact(name, value, indent=0)


def _print_fact(name: str, value: Any, indent: int, *, in_bytes: bool = False) -> None:
    label = f"{'  ' * indent}{name.replace('_', ' ')}"
    in_bytes = in_bytes or "bytes" in name
    if isinstance(value, dict):
        _echo(label)
        for key, inner in value.items():
            _print_fact(str(key), inner, indent + 1, in_bytes=in_bytes)
    elif _is_table(value):
        _echo(label)
        _print_table(value)
    else:
        _echo(f"{label:<30}{format_bytes(value) if in_bytes and isinstance(value, int) else _shown(value)}")


def _is_table(value: Any) -> bool:
    """Whether this is a list of rows with the same columns."""
    rows = value if isinstance(value, list) else []
    return bool(rows) and all(isinstance(row, dict) and row and row.keys() == rows[0].keys() for row in rows)


def _echo(text: str) -> None:
    """Print a line; names in a store need not be valid Unicode, which a terminal cannot show."""
    click.echo(text.encode("utf-8", "backslashreplace").decode())


def _print_table(rows: list[dict[str, Any]]) -> None:
    # A name of several lines makes a narrow column; its last line is next to the values.
    names = [name.replace("_", " ").split("\n")[::-1] for name in rows[0]]
    heads = [list(line) for line in zip_longest(*names, fillvalue="")][::-1]
    table = [*heads, *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        _echo("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
