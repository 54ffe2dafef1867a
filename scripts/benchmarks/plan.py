"""What a calibrated plan predicts for two workers, compared with the time that two workers then take."""

import statistics
import tempfile
import time
from pathlib import Path

import click

from benchmarks.measure import save
from benchmarks.scale import write_samples
from benchmarks.workers import workers
from fxdask import ClusterShape, FisherNetworkClassifier

LARGEST_ERROR = 0.2


@click.command()
@click.option("--samples", default=20_000)
@click.option("--inputs", default=256)
@click.option("--nodes", default=20_000)
@click.option("--repeats", default=5)
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def plan(samples: int, inputs: int, nodes: int, repeats: int, file: Path | None) -> None:
    """Predict a fit on two workers before they are started, then fit on them."""
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-") as folder:
        data = Path(folder) / "X.npy"
        y = write_samples(data, samples, inputs)
        clf = FisherNetworkClassifier(nodes, store=Path(folder) / "model.zarr", overwrite=True)
        planned = clf.plan(data, y, cluster=ClusterShape(workers=2, memory="1GiB"), calibrate=True)
        assert planned.prediction is not None
        seconds = []
        with workers("1GiB"):
            for _ in range(repeats):
                started = time.perf_counter()
                clf.fit(data, y)
                seconds.append(time.perf_counter() - started)
    click.echo(f"{samples} samples x {inputs} features, {nodes} nodes, two workers\n\n{planned}\n")
    middle, predicted = statistics.median(seconds), planned.prediction.seconds
    error = predicted / middle - 1
    verdict = "ok" if abs(error) <= LARGEST_ERROR else "MISSED"
    click.echo(
        f"predicted {predicted:.2f} s, taken {middle:.2f} s ({min(seconds):.2f} to {max(seconds):.2f}): "
        f"{error:+.0%}, at most {LARGEST_ERROR:.0%}  {verdict}"
    )
    save({"seconds": seconds, "plan": planned.facts(), "error": error}, file)
