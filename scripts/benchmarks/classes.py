"""Time of a fit with many classes compared with two: the same samples, in memory and streamed."""

from collections.abc import Callable
from pathlib import Path

import click
import dask
import numpy as np
from dask.system import CPU_COUNT

from benchmarks.measure import Ratio, in_turn, report, save
from fxdask import FisherNetworkClassifier
from fxdask.sizes import MIB
from fxdask.tasks.telemetry import resident_bytes

LIMIT = 5.0
NODES = 768


@click.command()
@click.option("--samples", default=200_000)
@click.option("--inputs", default=20)
@click.option("--classes", "n_classes", default=100)
@click.option("--task-memory", default=120, help="MiB for each task of a streamed fit.")
@click.option("--repeats", default=3)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def classes(samples: int, inputs: int, n_classes: int, task_memory: int, repeats: int, file: Path | None) -> None:
    """Fit the same samples with two and with many classes, on local threads; a ratio is one of times per value."""
    X = np.random.default_rng(0).standard_normal((samples, inputs), dtype=np.float32)
    plans: dict[str, dict] = {}
    divergences: dict[str, bytes] = {}

    def fitted(count: int, *, streamed: bool) -> tuple[str, Callable[[], None]]:
        name = f"{count} classes, {'streamed' if streamed else 'in memory'}"
        y = np.arange(samples) % count

        def run() -> None:
            # The limit is set anew each time, as the memory in use grows with the first fits.
            limit = int((resident_bytes() + CPU_COUNT * task_memory * MIB) / 0.6) if streamed else None
            # The rule with the smallest model: a joint one of 100 classes would not fit into the limit.
            clf = FisherNetworkClassifier(NODES, 1, combine="sum", memory_limit=limit)
            if clf.plan(X, y).is_streamed != streamed:
                raise click.ClickException(f"{name}: choose another --task-memory, or more or fewer samples")
            clf.fit(X, y)
            plans[name], divergences[name] = clf.fit_info_["plan"], clf.divergences_.tobytes()

        return name, run

    work = dict(fitted(count, streamed=streamed) for streamed in (False, True) for count in (2, n_classes))
    with dask.config.set(num_workers=CPU_COUNT):
        seconds = in_turn(work, repeats)
    few_in_memory, in_memory, few_streamed, streamed = work
    figures = report(
        f"{samples} samples x {inputs} features, {NODES} nodes, {CPU_COUNT} threads, NumPy input, no store",
        seconds,
        [
            Ratio(in_memory, few_in_memory, LIMIT),
            Ratio(streamed, few_streamed, LIMIT),
            Ratio(few_streamed, few_in_memory),
            Ratio(streamed, in_memory),
        ],
    )
    click.echo()
    for name in (few_streamed, streamed):
        plan = plans[name]
        click.echo(f"{name}: {plan['nodes_per_pass']} nodes per pass, {plan['samples_per_chunk']} samples per chunk")
    same = divergences[few_in_memory] == divergences[few_streamed] and divergences[in_memory] == divergences[streamed]
    click.echo(f"divergences {'the same to the last bit' if same else 'DIFFER'}, streamed or not")
    save(figures | {"plans": plans, "same_divergences": same}, file)
