"""``fxdask report``."""

from __future__ import annotations

from math import isnan
from typing import Any

import click

import fxdask
from fxdask.cli.options import Bytes, RunOptions, run_options
from fxdask.cli.output import print_result

__all__ = ["report"]


@click.command()
@click.argument("model", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--data", type=click.Path(), help="Test samples, a Zarr array or .npy file; needs --labels.")
@click.option("--labels", type=click.Path(), help="True labels of the test samples.")
@click.option("--memory-limit", type=Bytes(), help="Memory that local threads may use, such as 2GiB.")
@run_options
def report(
    model: str, out: str, data: str | None, labels: str | None, *, run: RunOptions, memory_limit: int | None
) -> None:
    """Write the page OUT about MODEL, with its results on test data if --data and --labels are given."""
    if (data is None) != (labels is None):
        given, missing = ("--data", "--labels") if labels is None else ("--labels", "--data")
        raise click.UsageError(f"{given} was given without {missing}; test data needs both")
    with run.cluster:
        found = fxdask.report(model, out, data, labels, memory_limit=memory_limit, verbose=not run.quiet)
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
