"""How long a fit takes, against the bare matrix product of the same sizes."""

import shutil
import tempfile
from pathlib import Path

import click
import numpy as np

from benchmarks.measure import in_turn, report
from fxdask import FisherNetworkClassifier


@click.command()
@click.option("--samples", default=12_000)
@click.option("--inputs", default=784)
@click.option("--nodes", default=10_000)
@click.option("--repeats", default=5)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write every round's figures here.")
def fit(samples: int, inputs: int, nodes: int, repeats: int, file: Path | None) -> None:
    """Fit on local threads, with and without a store, against W @ X.T with all of BLAS's threads."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((samples, inputs), dtype=np.float32)
    y = np.arange(samples) % 2
    W = rng.standard_normal((nodes, inputs), dtype=np.float32)
    folder = Path(tempfile.mkdtemp(prefix="fxdask-bench-"))

    def into_a_store() -> None:
        FisherNetworkClassifier(nodes, store=folder / "model.zarr", overwrite=True).fit(X, y)

    work = {
        "W @ X.T": lambda: W @ X.T,
        "fit": lambda: FisherNetworkClassifier(nodes).fit(X, y),
        "fit into a store": into_a_store,
    }
    try:
        seconds = in_turn(work, repeats)
    finally:
        shutil.rmtree(folder)
    title = f"{samples} samples x {inputs} inputs, {nodes} nodes, two classes, local disk"
    report(title, seconds, "W @ X.T", {"fit into a store": 2.0}, file)
