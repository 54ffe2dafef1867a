"""The command line: words to calls, results to a terminal or to JSON."""

from __future__ import annotations

import json
import logging
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Any

import click

import fxdask
from fxdask import FisherNetworkClassifier, __version__, batch_score, load
from fxdask.cluster import connected
from fxdask.datasets import DATASETS
from fxdask.errors import FxdaskError, InvalidInputError, StoreFormatError
from fxdask.experiment import checked_pairs, checked_seeds
from fxdask.kernels.criteria import CRITERIA
from fxdask.kernels.decision import COMBINATIONS, DENSITIES
from fxdask.kernels.density import BANDWIDTHS
from fxdask.kernels.statistics import LOCATIONS, SPREADS
from fxdask.plan import format_bytes
from fxdask.resources import checked_limit
from fxdask.store.group import peek_header
from fxdask.store.model import ModelStore
from fxdask.store.place import store_url
from fxdask.store.verify import verify_store

__all__ = ["main"]

Cluster = AbstractContextManager[Any]
"""A client of the cluster that the options name, while it is needed."""


class _Bandwidth(click.ParamType):
    """A rule's name or a number."""

    name = "rule or number"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str | float:
        if value in BANDWIDTHS or isinstance(value, float):
            return value
        try:
            if float(value) > 0:
                return float(value)
            self.fail(f"{value} is not above 0", param, ctx)
        except ValueError:
            self.fail(f"{value!r} is neither a number nor one of {', '.join(BANDWIDTHS)}", param, ctx)


class _Bytes(click.ParamType):
    """A number of bytes, or a text with its unit."""

    name = "bytes"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | None:
        try:
            return checked_limit(value)
        except InvalidInputError:
            self.fail(f"{value!r} is neither a number of bytes nor a text such as 2GiB", param, ctx)


class _Seeds(click.ParamType):
    """A number of seeds, or the seeds themselves."""

    name = "number or list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            seeds = [int(word) for word in str(value).removesuffix(",").split(",")]
        except ValueError:
            self.fail(f"{value!r} is neither a number nor numbers with commas", param, ctx)
        try:
            return checked_seeds(seeds if "," in str(value) else seeds[0])
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


class _Pairs(click.ParamType):
    """Pairs of classes, such as 0-1,3-8."""

    name = "pairs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[tuple[int, int]]:
        try:
            pairs = [(int(a), int(b)) for a, b in (word.split("-") for word in str(value).split(","))]
        except ValueError:
            self.fail(f"{value!r} is no list of pairs such as 0-1,3-8", param, ctx)
        try:
            return checked_pairs(pairs)
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


def _common(command: Callable[..., None]) -> Callable[..., None]:
    """The options that every long job has."""

    @wraps(command)
    def on_cluster(
        scheduler: str | None,
        scheduler_file: str | None,
        tls_ca_file: str | None,
        tls_cert: str | None,
        tls_key: str | None,
        **rest: Any,
    ) -> None:
        cluster = connected(
            scheduler, scheduler_file=scheduler_file, tls_ca_file=tls_ca_file, tls_cert=tls_cert, tls_key=tls_key
        )
        command(cluster=cluster, **rest)

    for option in (
        click.option("--scheduler", metavar="ADDRESS", help="Run on this Dask cluster, such as tcp://host:8786."),
        click.option("--scheduler-file", type=click.Path(), help="The file that the scheduler wrote of itself."),
        click.option("--tls-ca-file", type=click.Path(), help="Certificate authority of a cluster with TLS."),
        click.option("--tls-cert", type=click.Path(), help="One's own certificate."),
        click.option("--tls-key", type=click.Path(), help="One's own key."),
        click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object."),
        click.option("--quiet", is_flag=True, help="No progress bar."),
        click.option("-v", "--verbose", is_flag=True, help="Log what is going on."),
    ):
        on_cluster = option(on_cluster)
    return on_cluster


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
@click.option("--density", type=click.Choice(DENSITIES), default="table", help="Looked up, or every kernel summed.")
@click.option("--normalize", type=click.Choice(["none", "sample", "feature"]), default="none")
@click.option("--keep-projections", type=click.Choice(["selected", "all"]), default="selected")
@click.option("--keep-weights", is_flag=True, help="Keep every node's weights in the store.")
@click.option("--nodes-per-block", type=click.IntRange(1), help="Nodes per task and chunk; chosen if not given.")
@click.option("--memory-limit", type=_Bytes(), help="What local threads may use, such as 2GiB.")
@click.option("--dry-run", is_flag=True, help="Show the plan and stop: nothing is written.")
@click.option("--seed", "random_state", type=click.IntRange(0), default=0)
@click.option("--overwrite", is_flag=True, help="Replace a model that the store holds already.")
@_common
def fit(
    samples: str,
    labels: str,
    store: str,
    normalize: str,
    nodes_per_block: int | None,
    dry_run: bool,
    cluster: Cluster,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **parameters: Any,
) -> None:
    """Fit SAMPLES with LABELS (Zarr arrays or .npy files) into the model STORE."""
    _start_logging(verbose)
    _check_selected(**parameters)
    classifier = FisherNetworkClassifier(
        store=store,
        normalize=None if normalize == "none" else normalize,
        nodes_per_block=nodes_per_block or "auto",
        verbose=not quiet,
        **parameters,
    )
    with cluster:
        if dry_run:
            _report({"plan": classifier.plan(samples, labels).facts()}, as_json)
            return
        classifier.fit(samples, labels)
    _report(_facts(classifier) | {"fit": classifier.fit_info_}, as_json)


@cli.command()
@click.argument("model", type=click.Path())
@click.argument("samples", type=click.Path())
@click.argument("out", type=click.Path())
@click.option("--labels", type=click.Path(), help="True labels: prints the accuracy and the confusion matrix.")
@click.option(
    "--density", type=click.Choice(DENSITIES), help="As the model was fitted unless given.", show_default=False
)
@click.option("--memory-limit", type=_Bytes(), help="What local threads may use, such as 2GiB.")
@click.option("--overwrite", is_flag=True, help="Replace scores that OUT holds already.")
@_common
def score(
    model: str,
    samples: str,
    out: str,
    labels: str | None,
    density: str | None,
    memory_limit: int | None,
    overwrite: bool,
    cluster: Cluster,
    as_json: bool,
    quiet: bool,
    verbose: bool,
) -> None:
    """Score SAMPLES (a Zarr array or .npy file) with MODEL into the store OUT."""
    _start_logging(verbose)
    with cluster:
        result = batch_score(
            model,
            samples,
            out,
            labels,
            density=density,
            memory_limit=memory_limit,
            overwrite=overwrite,
            verbose=not quiet,
        )
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
    _report(facts, as_json)


@cli.command()
@click.argument("dataset", type=click.Choice(list(DATASETS)))
@click.option("--data", type=click.Path(), help="Folder of the IDX files; without it, scikit-learn's copy from OpenML.")
@click.option("--out", type=click.Path(), help="Folder of results and report.  [default: reproduce-DATASET]")
@click.option("--seeds", type=_Seeds(), default="10", help="How many, from 0 on; or which, as in 3,5 or 3,.")
@click.option("--pairs", type=_Pairs(), help="Such as 0-1,3-8; all 45 if not given.")
@click.option("--nodes", "n_nodes", type=click.IntRange(1), default=10_000, help="Random projections to choose from.")
@click.option("--selected", "n_selected", type=click.IntRange(1), default=10, help="Nodes kept for each class.")
@click.option("--mean-shift/--no-mean-shift", default=True, help="Move the means of each pair together, as the paper.")
@click.option("--nodes-per-block", type=click.IntRange(1), help="Nodes per task and chunk; chosen if not given.")
@click.option("--memory-limit", type=_Bytes(), help="What local threads may use, such as 2GiB.")
@click.option("--overwrite", is_flag=True, help="Replace results of other data or parameters.")
@_common
def reproduce(
    dataset: str,
    out: str | None,
    nodes_per_block: int | None,
    cluster: Cluster,
    as_json: bool,
    quiet: bool,
    verbose: bool,
    **parameters: Any,
) -> None:
    """Run the paper's experiment on DATASET and put the result beside the paper's."""
    _start_logging(verbose)
    _check_selected(**parameters)
    folder = Path(out or f"reproduce-{dataset}")
    with cluster:
        result = fxdask.reproduce(
            dataset, out=folder, nodes_per_block=nodes_per_block or "auto", verbose=not quiet, **parameters
        )
    result.to_html(folder / "report.html")
    results = result.results
    files = {
        name: str(folder / file)
        for name, file in (("results", "results.json"), ("table", "results.csv"), ("report", "report.html"))
    }
    pairs = results.table() if as_json else [_short(row) for row in results.table()]
    facts = {"images": results.facts["split"], "seconds": round(results.facts["seconds"], 1)}
    _report({"pairs": pairs, "summary": results.summary()} | facts | files, as_json)


def _check_selected(n_selected: int, n_nodes: int, **_: Any) -> None:
    if n_selected > n_nodes:
        raise click.UsageError(f"--selected {n_selected} is more than --nodes {n_nodes}")


def _short(row: dict[str, Any]) -> dict[str, str]:
    """One pair's row of the experiment, as a terminal has room for it."""
    shown = {"pair": row["pair"]}
    for criterion in ("extended_fisher", "fisher"):
        interval = row[f"{criterion}_interval"]
        shown[f"{criterion}_%"] = f"{row[criterion]:.2f}" + ("" if interval is None else f" ±{interval:.2f}".ljust(7))
        if f"{criterion}_paper" in row:
            name = criterion.removesuffix("_fisher")
            shown[f"{name}_in_the_paper"] = f"{row[f'{criterion}_paper']:.2f}"
            shown[f"{name}_difference"] = f"{row[criterion] - row[f'{criterion}_paper']:+.2f}"
    return shown | {"gain": f"{row['gain']:+.2f}"}


@cli.command()
@click.argument("store", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def info(store: str, as_json: bool) -> None:
    """Tell what STORE holds: a model or scores, finished or not."""
    url = store_url(store)
    header = peek_header(url)
    if header is None:
        raise StoreFormatError(f"there is no fxdask store at {url}")
    if header["kind"] == "scores":
        facts = {name: header.get(name) for name in ("model", "accuracy", "classes")} | {"samples": header["n_samples"]}
    elif header["finished"]:
        facts = _facts(load(url))
    else:
        done = ModelStore.open(url, finished=False).blocks_done()
        facts = {"blocks": {"done": int(done.sum()), "of": len(done)}, "parameters": header["identity"]}
    status = {"kind": header["kind"], "finished": header["finished"], "bytes": _size_of(url)}
    _report({"store": url} | status | facts, as_json)


@cli.command()
@click.argument("store", type=click.Path())
@click.option("--json", "as_json", is_flag=True, help="Print the result as one JSON object.")
def verify(store: str, as_json: bool) -> None:
    """Read every file of the finished STORE, and hold it against the store's manifest."""
    found = verify_store(store)
    _report(
        {"store": found.store, "files": found.n_files, "damaged": found.damages, "not_in_the_manifest": found.unknown},
        as_json,
    )
    if found.damages:
        raise StoreFormatError(f"{found.store} is damaged: {len(found.damages)} of {found.n_files} files")


def _facts(classifier: FisherNetworkClassifier) -> dict[str, Any]:
    """What a person wants to know of a fitted model."""
    hidden = {"store", "overwrite", "verbose", "random_state", "nodes_per_block", "memory_limit"}
    rows = zip(
        classifier.classes_.tolist(),
        classifier.sample_counts_.tolist(),
        classifier.priors_.tolist(),
        classifier.selected_nodes_[:, 0].tolist(),
        strict=True,
    )
    return {
        "store": classifier.store_,
        "inputs": classifier.n_features_in_,
        "seed": classifier.seed_,
        "parameters": {name: value for name, value in classifier.get_params().items() if name not in hidden},
        "spreads_from": classifier.spread_sources_,
        "classes": [
            {"label": label, "samples": samples, "prior": prior, "best_node": node}
            for label, samples, prior, node in rows
        ],
    }


def _report(facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(facts, default=str))
        return
    for name, value in facts.items():
        _print_fact(name, value, indent=0)


def _print_fact(name: str, value: Any, indent: int, *, in_bytes: bool = False) -> None:
    label = f"{'  ' * indent}{name.replace('_', ' ')}"
    in_bytes = in_bytes or "bytes" in name
    if isinstance(value, dict):
        click.echo(label)
        for key, inner in value.items():
            _print_fact(str(key), inner, indent + 1, in_bytes=in_bytes)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        click.echo(label)
        _print_table(value)
    else:
        click.echo(f"{label:<30}{format_bytes(value) if in_bytes and isinstance(value, int) else _shown(value)}")


def _print_table(rows: list[dict[str, Any]]) -> None:
    table = [
        [name.replace("_", " ") for name in rows[0]],
        *([_shown(value) for value in row.values()] for row in rows),
    ]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        click.echo("  " + "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _size_of(store: str) -> int | None:
    """Bytes of a store on a local disk."""
    folder = Path(store)
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()) if folder.is_dir() else None


def _start_logging(verbose: bool) -> None:
    logging.basicConfig(stream=sys.stderr, format="%(name)s: %(message)s")
    logging.getLogger("fxdask").setLevel(logging.INFO if verbose else logging.WARNING)
    # Dask logs the tracebacks of a connection that is lost, which comes back as an error of one line anyway.
    for name in ("distributed", "distributed.client"):
        logging.getLogger(name).setLevel(logging.WARNING if verbose else logging.CRITICAL)
    warnings.showwarning = lambda message, *_, **__: click.echo(f"warning: {message}", err=True)


def main() -> None:
    """Run the command line: exit status 0, 1 where the work failed, 2 where the words were wrong."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # whoever stops a container or a job says it like this
    try:
        cli(standalone_mode=False)
    except click.UsageError as error:
        error.show()
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("stopped; the same command takes it up again", err=True)
        sys.exit(1)
    except Exception as error:
        logging.getLogger(__name__).debug("failed", exc_info=True)
        click.echo(f"error: {_one_line(error)}", err=True)
        sys.exit(1)


def _one_line(error: Exception) -> str:
    """The error for a terminal: one line, with the command line's own words for a parameter."""
    text = " ".join(str(error).split()).replace("overwrite=True", "--overwrite")
    ours = isinstance(error, (ValueError, OSError, FxdaskError))
    return text if ours and text else f"{type(error).__name__}: {text}"
