"""``fxdask responses``."""

from __future__ import annotations

from pathlib import Path

import click

import fxdask
from fxdask.cli.options import RunOptions, memory_limit_option, run_options
from fxdask.cli.output import print_result
from fxdask.errors import StoreExistsError

__all__ = ["responses"]


@click.command()
@click.argument("model", type=click.Path())
@click.argument("samples", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--train", type=click.Path(), help="The training samples; not needed after --keep-projections all.")
@memory_limit_option
@click.option("--overwrite", is_flag=True, help="Replace the file OUT.")
@run_options
def responses(  # noqa: PLR0913 - every option is a parameter
    model: str, samples: str, out: str, *, train: str | None, memory_limit: int | None, overwrite: bool, run: RunOptions
) -> None:
    """Write the activations of all nodes of MODEL at SAMPLES into the file OUT (.npy).

    OUT is an array of the shape (samples, classes, nodes). SAMPLES and --train are Zarr arrays, .npy files or Parquet.
    """
    if Path(out).suffix != ".npy":
        raise click.UsageError(f"the activations are written as .npy; choose a name with .npy instead of {out}")
    if Path(out).exists() and not overwrite:
        raise StoreExistsError(f"{out} already exists; choose another path, or pass overwrite=True to replace it")
    with run.cluster:
        classifier = fxdask.load(model).set_params(memory_limit=memory_limit, verbose=not run.quiet)
        shape = classifier.write_responses(samples, out, train)
    print_result({"out": out, "samples": shape[0], "classes": shape[1], "nodes": shape[2]}, run.as_json)
