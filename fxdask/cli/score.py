"""``fxdask score``."""

from __future__ import annotations

from typing import Any

import click

from fxdask import BatchScores, batch_score
from fxdask.cli.options import (
    ColumnNames,
    RunOptions,
    chosen_data,
    columns_option,
    label_column_option,
    memory_limit_option,
    run_options,
)
from fxdask.cli.output import print_result
from fxdask.kernels.scorer import DENSITIES
from fxdask.store.parquet import is_parquet_name

__all__ = ["score"]


@click.command()
@click.argument("model", type=click.Path())
@click.argument("samples", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--labels", type=click.Path(), help="True labels: prints the accuracy and the confusion matrix.")
@label_column_option
@columns_option
@click.option(
    "--id-columns",
    type=ColumnNames(),
    metavar="A,B",
    help="Columns of SAMPLES to copy into OUT, which is then Parquet.",
)
@click.option("--likelihood", is_flag=True, help="Also store how likely each sample is at all, for outliers.")
@click.option("--density", type=click.Choice(DENSITIES), help="Same as in the fit if not given.", show_default=False)
@memory_limit_option
@click.option("--overwrite", is_flag=True, help="Replace earlier scores in OUT.")
@run_options
def score(  # noqa: PLR0913 - every option is a parameter
    model: str,
    samples: str,
    out: str,
    *,
    labels: str | None,
    label_column: str | None,
    columns: list[str] | None,
    id_columns: list[str] | None,
    run: RunOptions,
    **options: Any,
) -> None:
    """Score SAMPLES (a Zarr array, a .npy file or Parquet) with MODEL into the store OUT.

    OUT becomes a Zarr group, or a folder of Parquet files if its name ends in .parquet.
    """
    if labels is not None and label_column is not None:
        raise click.UsageError("--labels and --label-column both give the true labels; pass one of them")
    if id_columns and not is_parquet_name(out):
        raise click.UsageError(f"--id-columns needs a result of Parquet; choose a name with .parquet instead of {out}")
    with run.cluster:
        data, truth = chosen_data(samples, columns, labels, label_column)
        result = batch_score(model, data, out, truth, id_columns=id_columns, verbose=not run.quiet, **options)
    print_result(_facts(result), run.as_json)


def _facts(result: BatchScores) -> dict[str, Any]:
    """Summary of a scoring."""
    facts: dict[str, Any] = {
        "store": result.store,
        "already_done": not result.chunks_by_process,
        "samples": result.n_samples,
        "samples_resumed": result.n_resumed,
        "seconds": round(result.seconds, 3),
        "samples_per_second": round(result.samples_per_second),
        "share_decided_by_exact_sums": result.exact_share,
        "chunks_by_process": result.chunks_by_process,
        "bytes_read_by_process": result.bytes_read_by_process,
        "peak_bytes_by_process": result.peak_bytes_by_process,
    }
    if result.confusion is not None and result.labels is not None:
        names = [str(label) for label in result.labels.tolist()]
        facts["accuracy"] = result.accuracy
        facts["confusion"] = [
            {"true": name} | dict(zip(names, row, strict=True))
            for name, row in zip(names, result.confusion.tolist(), strict=True)
        ]
    return facts
