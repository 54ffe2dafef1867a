"""Print results as text or as JSON."""

from __future__ import annotations

import json
from itertools import zip_longest
from typing import Any

import click
import numpy as np

from fxdask import FisherNetworkClassifier
from fxdask.sizes import format_bytes

__all__ = ["model_facts", "print_result"]


def model_facts(classifier: FisherNetworkClassifier) -> dict[str, Any]:
    """Summary of a fitted model."""
    hidden = {"store", "overwrite", "verbose", "random_state", "nodes_per_block", "memory_limit"}
    best_nodes = np.broadcast_to(classifier.selected_nodes_[:, 0], len(classifier.classes_))
    rows = zip(
        classifier.classes_.tolist(),
        classifier.sample_counts_.tolist(),
        classifier.priors_.tolist(),
        best_nodes.tolist(),
        strict=True,
    )
    return {
        "store": classifier.store_,
        "inputs": classifier.n_features_in_,
        "seed": classifier.seed_,
        "parameters": {name: value for name, value in classifier.get_params().items() if name not in hidden},
        "spreads_from": classifier.spread_sources_,
        "classes": [
            {"label": label, "samples": samples, "prior": prior, "best_node": node}
            for label, samples, prior, node in rows
        ],
    }


def print_result(facts: dict[str, Any], as_json: bool) -> None:
    """Print facts by name, as lines and tables or as one JSON object."""
    if as_json:
        click.echo(json.dumps(facts, default=str))
        return
    for name, value in facts.items():
        _print_fact(name, value, indent=0)


def _print_fact(name: str, value: Any, indent: int, *, in_bytes: bool = False) -> None:
    label = f"{'  ' * indent}{name.replace('_', ' ')}"
    in_bytes = in_bytes or "bytes" in name
    if isinstance(value, dict):
        click.echo(label)
        for key, inner in value.items():
            _print_fact(str(key), inner, indent + 1, in_bytes=in_bytes)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        click.echo(label)
        _print_table(value)
    else:
        click.echo(f"{label:<30}{format_bytes(value) if in_bytes and isinstance(value, int) else _shown(value)}")


def _print_table(rows: list[dict[str, Any]]) -> None:
    # A name of several lines makes a narrow column; its last line is next to the values.
    names = [name.replace("_", " ").split("\n")[::-1] for name in rows[0]]
    heads = [list(line) for line in zip_longest(*names, fillvalue="")][::-1]
    table = [*heads, *([_shown(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
