"""Options that several commands share: types, the cluster, logging."""

from __future__ import annotations

import logging
import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click

from fxdask.errors import InvalidInputError
from fxdask.execution.connection import connected
from fxdask.execution.resources import checked_limit
from fxdask.execution.waiting import checked_seconds
from fxdask.kernels.density.bandwidth import BANDWIDTHS
from fxdask.kernels.statistics import LOCATIONS, SPREADS
from fxdask.store.parquet import is_parquet
from fxdask.store.paths import is_local
from fxdask.workflows.tables import table

__all__ = [
    "Bandwidth",
    "Bytes",
    "ColumnNames",
    "RunOptions",
    "check_selected",
    "chosen_data",
    "columns_option",
    "json_option",
    "label_column_option",
    "memory_limit_option",
    "run_options",
    "statistics_options",
    "without_option",
]

Command = Callable[..., None]
CONNECTION = ("scheduler_file", "tls_ca_file", "tls_cert", "tls_key", "wait_for_workers", "timeout")


class Bandwidth(click.ParamType):
    """Option type: the name of a bandwidth rule, or a number."""

    name = "rule or number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        """Return the name, or the number as float."""
        if value in BANDWIDTHS or isinstance(value, float):
            return value
        try:
            if float(value) > 0:
                return float(value)
            self.fail(f"{value} is not above 0; pass a positive number", param, ctx)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor one of {', '.join(BANDWIDTHS)}", param, ctx)


class Bytes(click.ParamType):
    """Option type: a number of bytes, or a size with its unit."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        """Return the number of bytes."""
        try:
            return checked_limit(value)
        except InvalidInputError:
            self.fail(f"{value!r} is neither a number of bytes nor a size such as 2GiB", param, ctx)


class Duration(click.ParamType):
    """Option type: a number of seconds, or a time with its unit."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number of seconds."""
        try:
            return checked_seconds(value)
        except InvalidInputError:
            self.fail(f"{value!r} is neither a number of seconds nor a time such as 5m", param, ctx)


class ColumnNames(click.ParamType):
    """Option type: names of columns, separated by commas."""

    name = "names"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        """Return the list of names."""
        if isinstance(value, list):
            return value
        names = [name.strip() for name in value.split(",")]
        if not all(names):
            self.fail(f"{value!r} has an empty name; separate the names by single commas", param, ctx)
        return names


@dataclass(frozen=True)
class RunOptions:
    """How a long command runs and what it prints."""

    cluster: AbstractContextManager[Any]
    """Connects to the cluster of the options, or does nothing."""
    as_json: bool
    quiet: bool
    verbose: bool


columns_option = click.option(
    "--columns", type=ColumnNames(), metavar="A,B,C", help="The columns of Parquet that are the features."
)
without_option = click.option(
    "--without", type=ColumnNames(), metavar="A,B,C", help="Columns of Parquet that are no features, such as ids."
)
label_column_option = click.option(
    "--label-column", metavar="NAME", help="The column of SAMPLES (Parquet) that holds the labels."
)
memory_limit_option = click.option(
    "--memory-limit", type=Bytes(), help="Memory that local threads may use, such as 2GiB."
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")


def statistics_options(defaults: Mapping[str, Any]) -> Callable[[Command], Command]:
    """Add the options of the location and the spread of a class, and of the random seed, with these defaults."""

    def with_statistics(command: Command) -> Command:
        for option in (
            click.option("--seed", "random_state", type=click.IntRange(0), default=defaults["random_state"]),
            click.option("--spread", type=click.Choice(list(SPREADS)), default=defaults["spread"]),
            click.option("--location", type=click.Choice(list(LOCATIONS)), default=defaults["location"]),
        ):
            command = option(command)
        return command

    return with_statistics


def run_options(command: Command) -> Command:
    """Add the options of every long command; the command gets them as ``run``."""

    @wraps(command)
    def with_run_options(as_json: bool, quiet: bool, verbose: bool, **rest: Any) -> None:
        start_logging(verbose)
        cluster = connected(rest.pop("scheduler"), **{name: rest.pop(name) for name in CONNECTION})
        command(run=RunOptions(cluster, as_json, quiet, verbose), **rest)

    for option in (
        click.option("--scheduler", metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786."),
        click.option(
            "--scheduler-file", type=click.Path(), help="The file that 'dask scheduler --scheduler-file' wrote."
        ),
        click.option("--tls-ca-file", type=click.Path(), help="Certificate authority of a TLS cluster."),
        click.option("--tls-cert", type=click.Path(), help="Client certificate of a TLS cluster."),
        click.option("--tls-key", type=click.Path(), help="Client key of a TLS cluster."),
        click.option(
            "--wait-for-workers",
            type=click.IntRange(1),
            default=1,
            metavar="N",
            help="Start when the cluster has so many workers.",
        ),
        click.option("--timeout", type=Duration(), default="5m", help="How long to wait for them, such as 90s or 5m."),
        json_option,
        click.option("--quiet", is_flag=True, help="Show no progress bar."),
        click.option("-v", "--verbose", is_flag=True, help="Log each step to standard error."),
    ):
        with_run_options = option(with_run_options)
    return with_run_options


def chosen_data(
    samples: str,
    columns: list[str] | None,
    labels: str | None,
    label_column: str | None,
    without: list[str] | None = None,
) -> tuple[Any, Any]:
    """SAMPLES and labels as the estimator takes them: paths, or tables if their columns are chosen."""
    options = {"--columns": columns, "--without": without, "--label-column": label_column}
    given = [option for option, value in options.items() if value is not None]
    if not given:
        return samples, labels
    if columns is not None and without is not None:
        raise click.UsageError("--columns and --without both choose the features; pass one of them")
    if not is_parquet(samples):
        if is_local(samples) and not Path(samples).expanduser().exists():
            raise click.UsageError(f"there is no file or folder {samples}; check the path")
        raise click.UsageError(
            f"{given[0]} chooses columns of Parquet, but {samples} is no Parquet file and no folder of such files"
        )
    if label_column is not None and label_column in (columns or ()):
        raise click.UsageError(f"--columns has the column {label_column} of the labels; remove it there")
    whole = table(samples)  # a file that cannot be read is no usage error
    try:
        y = labels if label_column is None else whole.choose([label_column])
        if columns is not None:
            return whole.choose(columns), y
        left_out = list(whole.choose(without).names) if without else []  # refuses names that there are not
        left_out += [] if label_column is None else [label_column]
        return (whole.without(left_out) if left_out else whole), y
    except InvalidInputError as error:
        raise click.UsageError(str(error)) from None


def check_selected(
    n_selected: int, n_nodes: int, selection: str = "top", pool_size: int | None = None, **_: Any
) -> None:
    """Refuse more selected nodes than nodes or candidates, as a usage error."""
    if n_selected > n_nodes:
        raise click.UsageError(f"--selected {n_selected} is more than --nodes {n_nodes}; select fewer nodes")
    if selection == "joint" and pool_size is not None and n_selected > pool_size:
        raise click.UsageError(f"--selected {n_selected} is more than --pool-size {pool_size}; allow more candidates")


def start_logging(verbose: bool) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    logging.getLogger("fxdask").setLevel(logging.INFO if verbose else logging.WARNING)
    # Dask logs tracebacks of lost connections, which fxdask reports as one line already.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.WARNING if verbose else logging.CRITICAL)
    warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)
