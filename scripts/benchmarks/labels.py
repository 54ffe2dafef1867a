"""Compare labels from tables with labels from exact sums, for every pair of MNIST's digits."""

import gzip
from itertools import combinations
from pathlib import Path

import click
import numpy as np

from benchmarks.measure import save
from fxdask import FisherNetworkClassifier
from fxdask.execution.score import log_scores
from fxdask.kernels.scorer import Scorer


def read_idx(folder: Path, name: str) -> np.ndarray:
    """One of MNIST's files, compressed or not."""
    (file,) = (path for path in folder.iterdir() if path.name.removesuffix(".gz").replace(".", "-") == name)
    content = (gzip.decompress if file.suffix == ".gz" else bytes)(file.read_bytes())
    n_axes = content[3]
    shape = np.frombuffer(content, ">i4", n_axes, offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * n_axes).reshape(shape)


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--nodes", default=10_000)
@click.option("--normalize", type=click.Choice(["none", "sample", "feature"]), default="none")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every pair.")
def labels(folder: Path, nodes: int, normalize: str, file: Path | None) -> None:
    """Fit all pairs of digits in FOLDER (IDX files), and label all test images by tables and by exact sums."""
    images, digits = read_idx(folder, "train-images-idx3-ubyte"), read_idx(folder, "train-labels-idx1-ubyte")
    tests = read_idx(folder, "t10k-images-idx3-ubyte")
    images, tests = images.reshape(len(images), -1), tests.reshape(len(tests), -1)
    rows = []
    for pair in combinations(range(10), 2):
        chosen = np.isin(digits, pair)
        clf = FisherNetworkClassifier(nodes, normalize=None if normalize == "none" else normalize)
        clf.fit(images[chosen], digits[chosen])
        looked_up, exact = (log_scores(Scorer(clf.network_, how), tests, len(tests)) for how in ("table", "exact"))
        rows.append(
            {
                "pair": pair,
                "differing": int((looked_up.scores.argmax(axis=1) != exact.scores.argmax(axis=1)).sum()),
                "largest_difference": float(np.abs(looked_up.scores - exact.scores).max()),
                "decided_by_exact_sums": looked_up.n_exact,
                "summed": looked_up.n_summed,
                "bound": float(np.nanmax(clf.density_error_)),
            }
        )
        click.echo(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    click.echo(
        f"{len(rows)} pairs x {len(tests):,} images: {sum(row['differing'] for row in rows)} labels differ; "
        f"ln y differs by {max(row['largest_difference'] for row in rows):.1e} at most; "
        f"{sum(row['decided_by_exact_sums'] for row in rows)} images decided by exact sums"
    )
    save(rows, file)
