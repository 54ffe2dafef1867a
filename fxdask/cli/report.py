"""``fxdask report``."""

from __future__ import annotations

from math import isnan
from typing import Any

import click

import fxdask
from fxdask.cli.options import RunOptions, chosen_data, columns_option, memory_limit_option, run_options
from fxdask.cli.output import print_result

__all__ = ["report"]


@click.command()
@click.argument("model", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--data", type=click.Path(), help="Test samples: a Zarr array, a .npy file or Parquet.")
@click.option("--labels", type=click.Path(), help="True labels of the test samples.")
@click.option("--label-column", metavar="NAME", help="The column of --data (Parquet) that holds the true labels.")
@columns_option
@memory_limit_option
@run_options
def report(model: str, out: str, *, run: RunOptions, memory_limit: int | None, **test: Any) -> None:
    """Write the page OUT about MODEL, with its results on test data if --data and its labels are given."""
    _check_complete(**test)
    with run.cluster:
        X, y = None, None
        if test["data"] is not None:
            X, y = chosen_data(test["data"], test["columns"], test["labels"], test["label_column"])
        found = fxdask.report(model, out, X, y, memory_limit=memory_limit, verbose=not run.quiet)
    facts: dict[str, Any] = {"report": out}
    if found is not None:
        facts |= {
            "samples": found.n_samples,
            "accuracy": found.accuracy,
            # JSON has no NaN, which the log loss is if no label is a class of the model.
            "log_loss": None if isnan(found.log_loss) else found.log_loss,
            "calibration_error": found.calibration_error,
        }
    print_result(facts, run.as_json)


def _check_complete(data: str | None, labels: str | None, label_column: str | None, columns: list[str] | None) -> None:
    """Refuse test samples without labels, and the other way round."""
    if labels is not None and label_column is not None:
        raise click.UsageError("--labels and --label-column both give the true labels; pass one of them")
    if data is not None and labels is None and label_column is None:
        raise click.UsageError("--data was given without --labels or --label-column; test data needs labels")
    given = {"--labels": labels, "--label-column": label_column, "--columns": columns}
    for option, value in given.items():
        if value is not None and data is None:
            raise click.UsageError(f"{option} was given without --data; test data needs both")
