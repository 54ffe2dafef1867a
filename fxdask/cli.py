"""The command line: words to calls, results to a terminal or to JSON."""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from fxdask import FisherNetworkClassifier, __version__, batch_score, load
from fxdask.cluster import connected
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.decision import COMBINATIONS
from fxdask.kernels.density import BANDWIDTHS
from fxdask.kernels.statistics import LOCATIONS, SPREADS
from fxdask.plan import format_bytes

__all__ = ["main"]


class _Bandwidth(click.ParamType):
    """A rule's name or a number."""

    name = "rule or number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        if value in BANDWIDTHS or isinstance(value, float):
            return value
        try:
            return float(value)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor one of {', '.join(BANDWIDTHS)}", param, ctx)


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every long job has."""
    for option in (
        click.option("--scheduler", metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
        click.option("--quiet", is_flag=True, help="No progress bar."),
        click.option("-v", "--verbose", is_flag=True, help="Log what is going on."),
    ):
        command = option(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.version_option(__version__)
def cli() -> None:
    """Fit, score and inspect random-projection, kernel-density classifiers in Zarr stores."""


@cli.command()
@click.argument("samples", type=click.Path())
@click.argument("labels", type=click.Path())
@click.argument("store", type=click.Path())
@click.option("--nodes", "n_nodes", type=click.IntRange(1), default=10_000, help="Random projections to choose from.")
@click.option("--selected", "n_selected", type=click.IntRange(1), default=10, help="Nodes kept for each class.")
@click.option("--criterion", type=click.Choice(list(CRITERIA)), default="extended_fisher")
@click.option("--location", type=click.Choice(list(LOCATIONS)), default="interquartile_mean")
@click.option("--spread", type=click.Choice(list(SPREADS)), default="mad")
@click.option("--bandwidth", type=_Bandwidth(), default="silverman", help=f"{', '.join(BANDWIDTHS)}, or a number.")
@click.option("--bandwidth-spread", type=click.Choice(list(SPREADS)), help="As --spread unless given.")
@click.option("--priors", type=click.Choice(["class_share", "equal"]), default="class_share")
@click.option("--combine", type=click.Choice(COMBINATIONS), default="sum")
@click.option("--normalize", type=click.Choice(["none", "sample", "feature"]), default="none")
@click.option("--keep-projections", type=click.Choice(["selected", "all"]), default="selected")
@click.option("--nodes-per-block", type=click.IntRange(1), help="Nodes per task and chunk; chosen if not given.")
@click.option("--seed", "random_state", type=click.IntRange(0), default=0)
@click.option("--overwrite", is_flag=True, help="Replace a model that the store holds already.")
@_common
def fit(
    samples: str,
    labels: str,
    store: str,
    normalize: str,
    nodes_per_block: int | None,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **parameters: Any,
) -> None:
    """Fit SAMPLES with LABELS (Zarr arrays or .npy files) into the model STORE."""
    _start_logging(verbose)
    classifier = FisherNetworkClassifier(
        store=store,
        normalize=None if normalize == "none" else normalize,
        nodes_per_block=nodes_per_block or "auto",
        verbose=not quiet,
        **parameters,
    )
    with connected(scheduler):
        classifier.fit(samples, labels)
    _report(_facts(classifier) | {"fit": classifier.fit_info_}, as_json)


@cli.command()
@click.argument("model", type=click.Path())
@click.argument("samples", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--labels", type=click.Path(), help="True labels: prints the accuracy.")
@click.option("--overwrite", is_flag=True, help="Replace scores that OUT holds already.")
@_common
def score(
    model: str,
    samples: str,
    out: str,
    labels: str | None,
    overwrite: bool,
    scheduler: str | None,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Score SAMPLES (a Zarr array or .npy file) with MODEL into the store OUT."""
    _start_logging(verbose)
    with connected(scheduler):
        result = batch_score(model, samples, out, labels, overwrite=overwrite, verbose=not quiet)
    facts = {
        "store": result.store,
        "samples": result.n_samples,
        "seconds": round(result.seconds, 3),
        "samples_per_second": round(result.samples_per_second),
    }
    if result.accuracy is not None:
        facts["accuracy"] = result.accuracy
    _report(facts, as_json)


@cli.command()
@click.argument("model", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def info(model: str, as_json: bool) -> None:
    """Tell what the model store MODEL holds."""
    _report(_facts(load(model)) | {"bytes": _size_of(model)}, as_json)


def _facts(classifier: FisherNetworkClassifier) -> dict[str, Any]:
    """What a person wants to know of a fitted model."""
    hidden = {"store", "overwrite", "verbose", "random_state", "nodes_per_block"}
    parameters = {name: value for name, value in classifier.get_params().items() if name not in hidden}
    samples = classifier.sample_counts_
    return {
        "store": classifier.store_,
        "classes": {
            str(label): {"samples": int(count), "prior": float(prior), "best_node": int(nodes[0])}
            for label, count, prior, nodes in zip(
                classifier.classes_, samples, classifier.priors_, classifier.selected_nodes_, strict=True
            )
        },
        "inputs": classifier.n_features_in_,
        "seed": classifier.seed_,
        "parameters": parameters,
        "spreads_from": classifier.spread_sources_,
    }


def _report(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, default=str))
        return
    for name, value in facts.items():
        _print_fact(name, value, indent=0)


def _print_fact(name: str, value: Any, indent: int) -> None:
    label = f"{'  ' * indent}{name.replace('_', ' ')}"
    if isinstance(value, dict):
        click.echo(label)
        for key, inner in value.items():
            _print_fact(str(key), inner, indent + 1)
    else:
        shown = f"{value:.4g}" if isinstance(value, float) else format_bytes(value) if name == "bytes" else value
        click.echo(f"{label:<24}{shown}")


def _size_of(store: str) -> int | None:
    """Bytes of a store on a local disk."""
    folder = Path(store)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else None


def _start_logging(verbose: bool) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
    logging.getLogger("fxdask").setLevel(logging.INFO if verbose else logging.WARNING)
    warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)


def main() -> None:
    """Run the command line: exit status 0, 1 where the work failed, 2 where the words were wrong."""
    try:
        cli(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; the same command goes on where it stopped", err=True)
        sys.exit(1)
    except Exception as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(1)


def _one_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, (ValueError, OSError)) or type(error).__module__.startswith("fxdask") else f"{type(error).__name__}: {text}"
