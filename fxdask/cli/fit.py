"""``fxdask fit``."""

from __future__ import annotations

from typing import Any

import click

from fxdask import CRITERIA, ClusterShape, FisherNetworkClassifier
from fxdask.cli.options import (
    Bandwidth,
    Bytes,
    RunOptions,
    check_selected,
    chosen_data,
    columns_option,
    label_column_option,
    memory_limit_option,
    run_options,
    statistics_options,
    without_option,
)
from fxdask.cli.output import print_result
from fxdask.estimators.summary import summary_of
from fxdask.kernels.combination.table import COMBINATIONS
from fxdask.kernels.density.bandwidth import BANDWIDTHS
from fxdask.kernels.preprocessing import NORMALIZATIONS
from fxdask.kernels.projections import PROJECTIONS
from fxdask.kernels.scorer import DENSITIES
from fxdask.kernels.statistics import SPREADS
from fxdask.workflows.settings import AUTOMATIC, PRIORS, PROJECTIONS_KEPT, SELECTIONS

__all__ = ["fit"]

NO_NORMALIZATION = "none"
DEFAULT = FisherNetworkClassifier().get_params()


@click.command()
@click.argument("samples", type=click.Path())
@click.argument("labels", type=click.Path(), required=False, metavar="[LABELS]")
@click.argument("store", type=click.Path(), required=False, metavar="STORE")
@click.option("--labels", "labels_option", type=click.Path(), help="One label per sample: another way to pass LABELS.")
@columns_option
@without_option
@label_column_option
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
@click.option(
    "--projection",
    type=click.Choice(list(PROJECTIONS)),
    default=DEFAULT["projection"],
    help="Multiply with Gaussian weights, or transform by Hadamard matrices and random signs, which is faster.",
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
@statistics_options(DEFAULT)
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
@memory_limit_option
@click.option("--dry-run", is_flag=True, help="Print the plan and write nothing.")
@click.option("--workers", type=click.IntRange(1), help="With --dry-run: plan for so many workers, not connected.")
@click.option("--worker-threads", type=click.IntRange(1), help="Threads of each of these workers; 1 if not given.")
@click.option("--worker-memory", type=Bytes(), help="Memory of each of these workers, such as 16GiB.")
@click.option("--calibrate", is_flag=True, help="With --dry-run: run a few blocks, and predict the time of the fit.")
@click.option("--overwrite", is_flag=True, help="Replace another model that the store holds.")
@run_options
def fit(  # noqa: PLR0913 - every option is a parameter
    samples: str,
    labels: str | None,
    store: str | None,
    *,
    labels_option: str | None,
    columns: list[str] | None,
    without: list[str] | None,
    label_column: str | None,
    run: RunOptions,
    dry_run: bool,
    calibrate: bool,
    workers: int | None,
    worker_threads: int | None,
    worker_memory: int | None,
    **parameters: Any,
) -> None:
    """Fit SAMPLES with LABELS (Zarr arrays, .npy files or Parquet) into the model STORE.

    Without LABELS, --label-column names the column of SAMPLES that holds them.
    """
    labels, store = _labels_and_store((labels, store), labels_option, label_column)
    check_selected(**parameters)
    cluster = _cluster(workers, worker_threads, worker_memory)
    if not dry_run and (cluster or calibrate):
        raise click.UsageError(f"{'--workers' if cluster else '--calibrate'} belongs to a plan; add --dry-run")
    if parameters["normalize"] == NO_NORMALIZATION:
        parameters["normalize"] = None
    for name in ("pool_size", "nodes_per_block"):
        parameters[name] = parameters[name] or AUTOMATIC
    classifier = FisherNetworkClassifier(store=store, verbose=not run.quiet, **parameters)
    with run.cluster:
        data = chosen_data(samples, columns, labels, label_column, without)
        if dry_run:
            plan = classifier.plan(*data, cluster=cluster, calibrate=calibrate)
            print_result({"plan": plan.facts()}, run.as_json)
            return
        classifier.fit(*data)
    info = classifier.fit_info_
    print_result(summary_of(classifier) | {"already_done": not info, "fit": info}, run.as_json)


def _cluster(workers: int | None, threads: int | None, memory: int | None) -> ClusterShape | None:
    """The cluster to plan for, if its options are given."""
    if workers is None:
        if threads or memory:
            raise click.UsageError(
                f"{'--worker-threads' if threads else '--worker-memory'} describes one of --workers; add their number"
            )
        return None
    if memory is None:
        raise click.UsageError("--workers needs the memory of each worker; add --worker-memory, such as 16GiB")
    return ClusterShape(workers=workers, threads=threads or 1, memory=memory)


def _labels_and_store(
    words: tuple[str | None, str | None], labels: str | None, label_column: str | None
) -> tuple[str | None, str]:
    """The words after SAMPLES, --labels and --label-column -> LABELS and STORE.

    If an option gives the labels, the only word after SAMPLES is the store.
    """
    first, second = words
    if labels is not None and label_column is not None:
        raise click.UsageError(f"--labels ({labels}) and --label-column both give the labels; pass one of them")
    option = "--label-column" if labels is None else "--labels"
    if labels is None and label_column is None:
        if first is None or second is None:
            raise click.UsageError(
                f"Missing argument '{'STORE' if first else 'LABELS'}'; pass SAMPLES LABELS STORE, "
                "or SAMPLES STORE with --labels or --label-column"
            )
        return first, second
    if first is None:
        raise click.UsageError(f"Missing argument 'STORE'; pass SAMPLES STORE with {option}")
    if second is not None:
        raise click.UsageError(f"LABELS ({first}) and {option} both give the labels; pass one of them")
    return labels, first
