"""``fxdask fit``."""

from __future__ import annotations

from typing import Any

import click

from fxdask import CRITERIA, FisherNetworkClassifier
from fxdask.cli.options import Bandwidth, Bytes, RunOptions, check_selected, run_options
from fxdask.cli.output import print_result
from fxdask.estimators.summary import summary_of
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.density.bandwidth import BANDWIDTHS
from fxdask.kernels.preprocessing import NORMALIZATIONS
from fxdask.kernels.scorer import DENSITIES
from fxdask.kernels.statistics import LOCATIONS, SPREADS
from fxdask.workflows.settings import AUTOMATIC, PRIORS, PROJECTIONS_KEPT, SELECTIONS

__all__ = ["fit"]

NO_NORMALIZATION = "none"
DEFAULT = FisherNetworkClassifier().get_params()


@click.command()
@click.argument("samples", type=click.Path())
@click.argument("labels", type=click.Path())
@click.argument("store", type=click.Path())
@click.option(
    "--nodes",
    "n_nodes",
    type=click.IntRange(1),
    default=DEFAULT["n_nodes"],
    help="Random projections to choose from.",
)
@click.option(
    "--selected", "n_selected", type=click.IntRange(1), default=DEFAULT["n_selected"], help="Nodes kept for each class."
)
@click.option("--criterion", type=click.Choice(list(CRITERIA)), default=DEFAULT["criterion"])
@click.option(
    "--selection",
    type=click.Choice(SELECTIONS),
    default=DEFAULT["selection"],
    help="The best nodes of each class, or one set for all classes, chosen together.",
)
@click.option(
    "--pool-size",
    type=click.IntRange(1),
    help="Candidates of each class for --selection joint; chosen by the number of classes if not given.",
)
@click.option("--location", type=click.Choice(list(LOCATIONS)), default=DEFAULT["location"])
@click.option("--spread", type=click.Choice(list(SPREADS)), default=DEFAULT["spread"])
@click.option(
    "--shrink-spread/--no-shrink-spread",
    default=DEFAULT["shrink_spread"],
    help="Move the spread of a class of few samples towards that of the others.",
)
@click.option(
    "--bandwidth", type=Bandwidth(), default=DEFAULT["bandwidth"], help=f"{', '.join(BANDWIDTHS)}, or a number."
)
@click.option("--bandwidth-spread", type=click.Choice(list(SPREADS)), help="Same as --spread if not given.")
@click.option("--priors", type=click.Choice(PRIORS), default=DEFAULT["priors"])
@click.option(
    "--combine",
    type=click.Choice(list(COMBINATIONS)),
    default=DEFAULT["combine"],
    help="How densities become the score of a class; sum is the paper's rule.",
)
@click.option(
    "--density",
    type=click.Choice(DENSITIES),
    default=DEFAULT["density"],
    help="Look densities up, or sum every kernel.",
)
@click.option(
    "--normalize",
    type=click.Choice([name or NO_NORMALIZATION for name in (*NORMALIZATIONS, AUTOMATIC)]),
    default=DEFAULT["normalize"] or NO_NORMALIZATION,
    help="auto chooses none or feature by the scales of the features.",
)
@click.option("--keep-projections", type=click.Choice(PROJECTIONS_KEPT), default=DEFAULT["keep_projections"])
@click.option("--keep-weights", is_flag=True, help="Keep every node's weights in the store.")
@click.option("--nodes-per-block", type=click.IntRange(1), help="Nodes per task and chunk; planned if not given.")
@click.option("--memory-limit", type=Bytes(), help="Memory that local threads may use, such as 2GiB.")
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--seed", "random_state", type=click.IntRange(0), default=DEFAULT["random_state"])
@click.option("--overwrite", is_flag=True, help="Replace another model that the store holds.")
@run_options
def fit(samples: str, labels: str, *, run: RunOptions, dry_run: bool, **parameters: Any) -> None:
    """Fit SAMPLES with LABELS (Zarr arrays or .npy files) into the model STORE."""
    check_selected(**parameters)
    if parameters["normalize"] == NO_NORMALIZATION:
        parameters["normalize"] = None
    for name in ("pool_size", "nodes_per_block"):
        parameters[name] = parameters[name] or AUTOMATIC
    classifier = FisherNetworkClassifier(verbose=not run.quiet, **parameters)
    with run.cluster:
        if dry_run:
            print_result({"plan": classifier.plan(samples, labels).facts()}, run.as_json)
            return
        classifier.fit(samples, labels)
    print_result(summary_of(classifier) | {"fit": classifier.fit_info_}, run.as_json)
