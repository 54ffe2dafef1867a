"""The main benchmarks in a few minutes: the machine's limits first, then every figure as a ratio to its limit."""

import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
from dask.system import CPU_COUNT

from benchmarks import fit, predict, rank, score
from benchmarks.limits import COPIED, limits, measured, summary
from benchmarks.measure import Ratio, in_turn, report, save

PACKAGES = ("fxdask", "numpy", "scipy", "numba", "zarr", "dask", "distributed", "scikit-learn")


def fits(repeats: int, samples: int = 12_000, inputs: int = 784, nodes: int = 10_000) -> dict[str, Any]:
    """The limit of a fit is the product of all weights and samples; that of processes is what threads take."""
    local = (fit.GIVEN, fit.FIT, fit.STORED, fit.STRUCTURED)
    seconds = fit.fit_seconds((samples, inputs, nodes), repeats, (*local, *fit.ON_CLUSTER), {})
    ratios = [*(Ratio(name, fit.GIVEN) for name in local[1:]), Ratio(fit.PROCESSES, fit.THREADS)]
    return report(f"fit: {samples:,} samples x {inputs} features, {nodes:,} nodes", seconds, ratios)


def scores(repeats: int, samples: int = 200_000, inputs: int = 784) -> dict[str, Any]:
    """The limit of scoring is one copy of the samples in memory; reading by Dask is between them."""
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-") as path:
        score.make_data(Path(path), samples, inputs)
        seconds, _ = score.in_new_process(path, repeats, False, True)
    ratios = [Ratio(name, COPIED) for name in (score.READ, score.SCORED, score.TAILS)]
    ratios.append(Ratio(score.SCORED, score.READ))
    return report(f"score: {samples:,} samples x {inputs} features in Zarr", seconds, ratios)


def rankings(repeats: int, samples: int = 100_000, features: int = 500) -> dict[str, Any]:
    """The limit of moments is one copy of the samples, that of criteria that sort is one sort of every column."""
    work, sorting = rank.rank_work(samples, features), (rank.MEDIANS, "extended_fisher", "kolmogorov_smirnov")
    seconds = in_turn(_chosen(work, COPIED, rank.SORT, rank.MOMENTS, *sorting), repeats)
    ratios = [Ratio(rank.MOMENTS, COPIED), *(Ratio(name, rank.SORT) for name in sorting)]
    return report(f"rank: {samples:,} samples x {features} features in memory", seconds, ratios)


def predictions(repeats: int, samples: int = 1_000_000, inputs: int = 50) -> dict[str, Any]:
    """The limit of labelling is one copy of the samples; that of workers is what threads take."""
    shape = {"training": 20_000, "classes": 3, "selected": 10, "combine": "joint"}
    with predict.predict_work(100_000, samples=samples, inputs=inputs, **shape) as work:
        seconds = in_turn(_chosen(work, COPIED, predict.THREADS, predict.WORKERS), repeats)
    ratios = [Ratio(predict.THREADS, COPIED), Ratio(predict.WORKERS, predict.THREADS)]
    return report(f"predict: {samples:,} samples x {inputs} features, 3 classes", seconds, ratios)


SECTIONS: dict[str, Callable[[int], dict[str, Any]]] = {
    "fit": fits,
    "score": scores,
    "rank": rankings,
    "predict": predictions,
}


@click.command("all")
@click.option("--repeats", default=5)
@click.option("--only", type=click.Choice(list(SECTIONS)), multiple=True, help="Run only this part.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures, which compare reads.")
def everything(repeats: int, only: tuple[str, ...], file: Path | None) -> None:
    """Measure the machine's limits, then the main benchmarks as ratios to them."""
    found = {"machine": this_machine(), "limits": measured(limits(), repeats), "figures": {}, "seconds": {}}
    for name in only or SECTIONS:
        click.echo()
        section = SECTIONS[name](repeats)
        found["figures"] |= figures_of(name, section["ratios"])
        found["seconds"][name] = section["seconds"]
    save(found, file)


def this_machine() -> dict[str, Any]:
    """What a reader of the figures must know: cores, processor, versions."""
    versions = {name: version(name) for name in PACKAGES}
    return {
        "cpus": CPU_COUNT,
        "cpus of the machine": os.cpu_count(),
        "processor": platform.machine(),
        "python": platform.python_version(),
    } | versions


def figures_of(section: str, ratios: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """The ratios of a report -> median, lowest and highest by name."""
    return {f"{section}: {ratio['name']} / {ratio['base']}": summary(ratio["each"]) for ratio in ratios}


def _chosen(work: Mapping[str, Callable[[], object]], *names: str) -> dict[str, Callable[[], object]]:
    return {name: work[name] for name in names}
