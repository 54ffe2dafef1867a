"""``fxdask fit``."""

from __future__ import annotations

from typing import Any

import click

from fxdask import CRITERIA, FisherNetworkClassifier
from fxdask.cli.options import Bandwidth, Bytes, RunOptions, check_selected, run_options
from fxdask.cli.output import model_facts, print_result
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.density.bandwidth import BANDWIDTHS
from fxdask.kernels.scorer import DENSITIES
from fxdask.kernels.statistics import LOCATIONS, SPREADS

__all__ = ["fit"]


@click.command()
@click.argument("samples", type=click.Path())
@click.argument("labels", type=click.Path())
@click.argument("store", type=click.Path())
@click.option("--nodes", "n_nodes", type=click.IntRange(1), default=10_000, help="Random projections to choose from.")
@click.option("--selected", "n_selected", type=click.IntRange(1), default=10, help="Nodes kept for each class.")
@click.option("--criterion", type=click.Choice(list(CRITERIA)), default="extended_fisher")
@click.option("--location", type=click.Choice(list(LOCATIONS)), default="interquartile_mean")
@click.option("--spread", type=click.Choice(list(SPREADS)), default="mad")
@click.option("--bandwidth", type=Bandwidth(), default="silverman", help=f"{', '.join(BANDWIDTHS)}, or a number.")
@click.option("--bandwidth-spread", type=click.Choice(list(SPREADS)), help="Same as --spread if not given.")
@click.option("--priors", type=click.Choice(["class_share", "equal"]), default="class_share")
@click.option("--combine", type=click.Choice(list(COMBINATIONS)), default="sum")
@click.option(
    "--density", type=click.Choice(DENSITIES), default="table", help="Look densities up, or sum every kernel."
)
@click.option("--normalize", type=click.Choice(["none", "sample", "feature"]), default="none")
@click.option("--keep-projections", type=click.Choice(["selected", "all"]), default="selected")
@click.option("--keep-weights", is_flag=True, help="Keep every node's weights in the store.")
@click.option("--nodes-per-block", type=click.IntRange(1), help="Nodes per task and chunk; planned if not given.")
@click.option("--memory-limit", type=Bytes(), help="Memory that local threads may use, such as 2GiB.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--seed", "random_state", type=click.IntRange(0), default=0)
@click.option("--overwrite", is_flag=True, help="Replace another model that the store holds.")
@run_options
def fit(samples: str, labels: str, *, run: RunOptions, dry_run: bool, **parameters: Any) -> None:
    """Fit SAMPLES with LABELS (Zarr arrays or .npy files) into the model STORE."""
    check_selected(**parameters)
    if parameters["normalize"] == "none":
        parameters["normalize"] = None
    parameters["nodes_per_block"] = parameters["nodes_per_block"] or "auto"
    classifier = FisherNetworkClassifier(verbose=not run.quiet, **parameters)
    with run.cluster:
        if dry_run:
            print_result({"plan": classifier.plan(samples, labels).facts()}, run.as_json)
            return
        classifier.fit(samples, labels)
    print_result(model_facts(classifier) | {"fit": classifier.fit_info_}, run.as_json)
