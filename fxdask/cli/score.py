"""``fxdask score``."""

from __future__ import annotations

from typing import Any

import click

from fxdask import BatchScores, batch_score
from fxdask.cli.options import Bytes, RunOptions, run_options
from fxdask.cli.output import print_result
from fxdask.kernels.scorer import DENSITIES

__all__ = ["score"]


@click.command()
@click.argument("model", type=click.Path())
@click.argument("samples", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--labels", type=click.Path(), help="True labels: prints the accuracy and the confusion matrix.")
@click.option("--likelihood", is_flag=True, help="Also store how likely each sample is at all, for outliers.")
@click.option("--density", type=click.Choice(DENSITIES), help="Same as in the fit if not given.", show_default=False)
@click.option("--memory-limit", type=Bytes(), help="Memory that local threads may use, such as 2GiB.")
@click.option("--overwrite", is_flag=True, help="Replace earlier scores in OUT.")
@run_options
def score(model: str, samples: str, out: str, labels: str | None, *, run: RunOptions, **options: Any) -> None:
    """Score SAMPLES (a Zarr array or .npy file) with MODEL into the store OUT."""
    with run.cluster:
        result = batch_score(model, samples, out, labels, verbose=not run.quiet, **options)
    print_result(_facts(result), run.as_json)


def _facts(result: BatchScores) -> dict[str, Any]:
    """Summary of a scoring."""
    facts: dict[str, Any] = {
        "store": result.store,
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
