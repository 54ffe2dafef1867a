"""``fxdask rank``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from fxdask import CRITERIA, Ranking, rank_features
from fxdask.cli.options import (
    ColumnNames,
    RunOptions,
    chosen_data,
    columns_option,
    label_column_option,
    memory_limit_option,
    run_options,
    statistics_options,
    without_option,
)
from fxdask.cli.output import print_result
from fxdask.estimators.ranking import check_table_path
from fxdask.reporting.page import check_report_path
from fxdask.reporting.ranking_page import GENERATOR
from fxdask.store.arrow import arrow
from fxdask.store.parquet import is_parquet_name
from fxdask.workflows.rank_settings import MISSING
from fxdask.workflows.settings import PRIORS

__all__ = ["rank"]

MOST_SHOWN = 10
DEFAULTS: dict[str, Any] = rank_features.__kwdefaults__ or {}


@click.command()
@click.argument("samples", type=click.Path())
@click.option("--labels", type=click.Path(), help="One label per sample: a Zarr array, a .npy file or Parquet.")
@label_column_option
@columns_option
@without_option
@click.option("--numeric-only", is_flag=True, help="Leave out columns that do not hold numbers.")
@click.option(
    "--criteria",
    type=ColumnNames(),
    metavar="A,B",
    default="extended_fisher,fisher,pearson,kolmogorov_smirnov",
    help=f"Some of {', '.join(CRITERIA)}.",
)
@click.option("--out", type=click.Path(), help="Write the ranking as a table: .parquet or .csv.")
@click.option("--html", type=click.Path(), help="Write a page with the best features.")
@click.option("--store", type=click.Path(), help="The Zarr store of the results, from which a run is resumed.")
@click.option("--missing", type=click.Choice(MISSING), default=DEFAULTS["missing"], help="Refuse NaN, or omit them.")
@statistics_options(DEFAULTS)
@click.option(
    "--priors",
    type=click.Choice(PRIORS),
    default=DEFAULTS["priors"],
    help="Weights of the classes for fisher, extended_fisher and relief; equal if their sizes differ much.",
)
@click.option(
    "--anchors",
    "n_anchors",
    type=click.IntRange(1),
    default=DEFAULTS["n_anchors"],
    help="Samples whose neighbours relief looks for.",
)
@click.option(
    "--neighbors",
    "n_neighbors",
    type=click.IntRange(1),
    default=DEFAULTS["n_neighbors"],
    help="Neighbours of each class that relief compares a sample with.",
)
@memory_limit_option
@click.option("--overwrite", is_flag=True, help="Replace another ranking that the store holds.")
@run_options
def rank(  # noqa: PLR0913 - every option is a parameter
    samples: str,
    *,
    labels: str | None,
    label_column: str | None,
    columns: list[str] | None,
    without: list[str] | None,
    criteria: list[str],
    out: str | None,
    html: str | None,
    run: RunOptions,
    **options: Any,
) -> None:
    """Rank the features of SAMPLES (a Zarr array, a .npy file or Parquet) by several criteria."""
    if (labels is None) == (label_column is None):
        raise click.UsageError("Pass the labels by one of --labels and --label-column")
    unknown = [name for name in criteria if name not in CRITERIA]
    if unknown:
        raise click.UsageError(f"--criteria has {unknown[0]!r}, which is not one of {', '.join(CRITERIA)}")
    write = None if out is None else _writer(out)
    if html is not None:
        check_report_path(Path(html), GENERATOR)
    with run.cluster:
        data = chosen_data(samples, columns, labels, label_column, without)
        ranking = rank_features(*data, criteria, verbose=not run.quiet, **options)
    if write is not None:
        write(ranking, out)
    if html is not None:
        ranking.to_html(html)
    print_result(_facts(ranking, out, html), run.as_json)


def _writer(out: str) -> Any:
    """The method that writes a table of this name; checked before any work."""
    if is_parquet_name(out):
        arrow()
        check_table_path(out)
        return Ranking.to_parquet
    if Path(out).suffix.lower() == ".csv":
        check_table_path(out)
        return Ranking.to_csv
    raise click.UsageError(f"--out {out} is neither .parquet nor .csv; choose a name with one of these endings")


def _facts(ranking: Ranking, out: str | None, html: str | None) -> dict[str, Any]:
    """Summary of a ranking: the best features by each criterion."""
    facts: dict[str, Any] = {
        "samples": ranking.n_samples,
        "features": len(ranking.names),
        "missing_values": int(ranking.missing.sum()),
        "seconds": round(ranking.info["seconds"], 3),
        "blocks": ranking.info["n_blocks"],
        "columns": ranking.info["plan"]["columns"],
        "blocks_resumed": ranking.info["n_blocks_resumed"],
        "already_done": ranking.info["n_blocks_resumed"] == ranking.info["n_blocks"],
    }
    if ranking.n_anchors is not None:
        facts["anchors_of_relief"] = ranking.n_anchors
    facts |= {name: path for name, path in (("store", ranking.store), ("out", out), ("html", html)) if path}
    for name in ranking.criteria:
        facts[name] = [_row(ranking, name, feature) for feature in ranking.order(name)[:MOST_SHOWN].tolist()]
    return facts


def _row(ranking: Ranking, criterion: str, feature: int) -> dict[str, Any]:
    row = {"feature": str(ranking.names[feature]), "score": float(ranking.score(criterion)[feature])}
    if criterion in ranking.p_values:
        row["p_value"] = float(ranking.p_value(criterion)[feature])
    return row
