"""Compare labels from tables with labels from exact sums, for every pair of MNIST's digits or for all of them."""

import gzip
from itertools import combinations
from pathlib import Path

import click
import numpy as np

from benchmarks.measure import save
from fxdask import FisherNetworkClassifier
from fxdask.execution.score import log_scores
from fxdask.kernels.scorer import Scorer

IMAGES_PER_STEP = 1_000


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
@click.option("--all-classes", is_flag=True, help="One model of all ten classes instead of all pairs.")
@click.option("--trained", type=int, help="Train with the first images only; exact sums take long with all.")
@click.option("--selection", type=click.Choice(["top", "joint"]), default="top")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every model.")
def labels(  # noqa: PLR0913 - every option is a parameter
    folder: Path,
    *,
    nodes: int,
    normalize: str,
    all_classes: bool,
    trained: int | None,
    selection: str,
    file: Path | None,
) -> None:
    """Fit the digits in FOLDER (IDX files), and label all test images by tables and by exact sums."""
    images, digits = (read_idx(folder, f"train-{name}-ubyte")[:trained] for name in ("images-idx3", "labels-idx1"))
    tests = read_idx(folder, "t10k-images-idx3-ubyte")
    images, tests = images.reshape(len(images), -1), tests.reshape(len(tests), -1)
    rows = []
    for group in [tuple(range(10))] if all_classes else combinations(range(10), 2):
        chosen = np.isin(digits, group)
        clf = FisherNetworkClassifier(nodes, normalize=None if normalize == "none" else normalize, selection=selection)
        rows.append({"classes": group, **compared(clf.fit(images[chosen], digits[chosen]), tests)})
        click.echo(" ".join(f"{name} {value}" for name, value in rows[-1].items()))
    click.echo(
        f"{len(rows)} models x {len(tests):,} images: {sum(row['differing'] for row in rows)} labels differ; "
        f"ln y differs by {max(row['largest_difference'] for row in rows):.1e} at most; "
        f"{sum(row['decided_by_exact_sums'] for row in rows)} images decided by exact sums"
    )
    save(rows, file)


def compared(clf: FisherNetworkClassifier, tests: np.ndarray) -> dict[str, float]:
    """Scores of all test images by tables, and by exact sums in steps, each of which prints how far it is."""
    differing, largest, n_exact, n_summed = 0, 0.0, 0, 0
    looking_up, summing = (Scorer(clf.network_, how) for how in ("table", "exact"))
    for start in range(0, len(tests), IMAGES_PER_STEP):
        some = tests[start : start + IMAGES_PER_STEP]
        looked_up, exact = (log_scores(scorer, some, len(some)) for scorer in (looking_up, summing))
        differing += int((looked_up.scores.argmax(axis=1) != exact.scores.argmax(axis=1)).sum())
        largest = max(largest, float(np.abs(looked_up.scores - exact.scores).max()))
        n_exact, n_summed = n_exact + looked_up.n_exact, n_summed + looked_up.n_summed
        click.echo(f"\r{start + len(some):,} of {len(tests):,} images", nl=False, err=True)
    click.echo("\r", nl=False, err=True)
    return {
        "differing": differing,
        "largest_difference": largest,
        "decided_by_exact_sums": n_exact,
        "summed": n_summed,
        "bound": float(np.nanmax(clf.density_error_)),
    }
