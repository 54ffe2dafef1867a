"""``fxdask reproduce``."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

import fxdask
from fxdask.cli.options import RunOptions, check_selected, memory_limit_option, run_options
from fxdask.cli.output import print_result
from fxdask.errors import InvalidInputError
from fxdask.experiment.datasets import DATASETS
from fxdask.experiment.results import CRITERIA_COMPARED, Results
from fxdask.experiment.runner import checked_pairs, checked_seeds
from fxdask.experiment.variants import Variant, checked_rules, checked_selections
from fxdask.kernels.projections import PROJECTIONS

__all__ = ["reproduce"]


class _Seeds(click.ParamType):
    """Option type: a number of seeds, or a list of seeds."""

    name = "number or list"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        try:
            seeds = [int(word) for word in str(value).removesuffix(",").split(",")]
        except ValueError:
            self.fail(f"{value!r} is neither a number nor a list such as 3,5", param, ctx)
        try:
            return checked_seeds(seeds if "," in str(value) else seeds[0])
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


class _Pairs(click.ParamType):
    """Option type: pairs of classes, such as 0-1,3-8."""

    name = "pairs"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[tuple[int, int]]:
        try:
            pairs = [(int(a), int(b)) for a, b in (word.split("-") for word in str(value).split(","))]
        except ValueError:
            self.fail(f"{value!r} is not a list of pairs such as 0-1,3-8", param, ctx)
        try:
            return checked_pairs(pairs)
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


class _Names(click.ParamType):
    """Option type: one name or several, such as sum,joint."""

    name = "names"

    def __init__(self, checked: Callable[[list[str]], tuple[str, ...]]) -> None:
        self._checked = checked

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        try:
            return self._checked([word.strip() for word in str(value).split(",")])
        except InvalidInputError as error:
            self.fail(str(error), param, ctx)


@click.command()
@click.argument("dataset", type=click.Choice(list(DATASETS)))
@click.option("--data", type=click.Path(), help="Folder of the IDX files; if not given, OpenML's copy is used.")
@click.option("--out", type=click.Path(), help="Folder for results and report.  [default: reproduce-DATASET]")
@click.option(
    "--seeds", type=_Seeds(), default="10", help="Number of seeds, starting at 0; or a list such as 3,5 or 3,."
)
@click.option("--pairs", type=_Pairs(), help="Such as 0-1,3-8; all 45 if not given.")
@click.option("--nodes", "n_nodes", type=click.IntRange(1), default=10_000, help="Random projections to choose from.")
@click.option("--selected", "n_selected", type=click.IntRange(1), default=10, help="Nodes kept for each class.")
@click.option(
    "--mean-shift/--no-mean-shift",
    default=True,
    help="Shift the classes of a pair to nearly equal means, as in the paper.",
)
@click.option(
    "--projection",
    type=click.Choice(list(PROJECTIONS)),
    default="gaussian",
    help="How samples are projected; gaussian is the paper's.",
)
@click.option(
    "--rules",
    type=_Names(checked_rules),
    default="sum",
    help="Rules that combine densities, such as sum,log,joint; sum, the paper's, is always among them.",
)
@click.option(
    "--selection",
    "selections",
    type=_Names(checked_selections),
    default="top",
    help="How nodes are selected, such as top,joint; top, the paper's, is always among them.",
)
@click.option("--nodes-per-block", type=click.IntRange(1), help="Nodes per task and chunk; planned if not given.")
@memory_limit_option
@click.option("--overwrite", is_flag=True, help="Replace results of other data or parameters.")
@run_options
def reproduce(dataset: str, out: str | None, *, run: RunOptions, **parameters: Any) -> None:
    """Run the paper's experiment on DATASET and compare the results with the paper's."""
    check_selected(**parameters)
    parameters["nodes_per_block"] = parameters["nodes_per_block"] or "auto"
    folder = Path(out or f"reproduce-{dataset}")
    with run.cluster:
        result = fxdask.reproduce(dataset, out=folder, verbose=not run.quiet, **parameters)
    result.to_html(folder / "report.html")
    results = result.results
    files = {
        name: str(folder / file)
        for name, file in (("results", "results.json"), ("table", "results.csv"), ("report", "report.html"))
    }
    facts = {"images": results.facts["split"], "seconds": round(results.facts["seconds"], 1)}
    print_result(_tables(results, as_json=run.as_json) | facts | files, run.as_json)


def _tables(results: Results, *, as_json: bool) -> dict[str, Any]:
    """The tables of pairs and of averages, as numbers or short enough for a terminal."""
    pairs, compared = results.table(), results.comparison()
    tables: dict[str, Any] = {"pairs": pairs, "summary": results.summary()}
    if not as_json:
        tables["pairs"] = _many_variants(results, pairs) if results.is_beyond_the_paper else list(map(_short, pairs))
        compared = [_short_variant(*both) for both in zip(results.variants, compared, strict=True)]
    return tables | ({"rules_and_selections": compared} if results.is_beyond_the_paper else {})


def _many_variants(results: Results, rows: list[dict[str, Any]]) -> list[dict[str, str]]:
    """One row per pair with the mean of each variant, and the paper's figures before its own variants."""
    shown: list[dict[str, str]] = [{"pair": row["pair"]} for row in rows]
    for variant in results.variants:
        above = variant.selection if variant.criterion == "extended_fisher" else variant.criterion
        for row, into in zip(rows, shown, strict=True):
            if f"{variant.name}_paper" in row:
                into[f"{above}\npaper"] = f"{row[f'{variant.name}_paper']:.2f}"
            into[f"{above}\n{variant.rule}"] = f"{row[variant.name]:.2f}"
    return shown


def _short_variant(variant: Variant, row: dict[str, Any]) -> dict[str, str]:
    """One variant's averages, short enough for a terminal."""
    words = {name: row[name].replace("_", " ") for name in ("criterion", "rule", "selection")}
    interval = "" if row["interval"] is None else f"±{row['interval']:.2f}"
    gain = "" if variant.is_papers else f"{row['gain']:+.2f}"
    return words | {"average_%": f"{row['average']:.2f}", "95%_interval": interval, "gain_over_the_paper's": gain}


def _short(row: dict[str, Any]) -> dict[str, str]:
    """One pair's row of the results, short enough for a terminal."""
    shown = {"pair": row["pair"]}
    for criterion in CRITERIA_COMPARED:
        interval = row[f"{criterion}_interval"]
        shown[f"{criterion}_%"] = f"{row[criterion]:.2f}" + ("" if interval is None else f" ±{interval:.2f}".ljust(7))
        if f"{criterion}_paper" in row:
            name = criterion.removesuffix("_fisher")
            shown[f"{name}_in_the_paper"] = f"{row[f'{criterion}_paper']:.2f}"
            shown[f"{name}_difference"] = f"{row[criterion] - row[f'{criterion}_paper']:+.2f}"
    return shown | {"gain": f"{row['gain']:+.2f}"}
