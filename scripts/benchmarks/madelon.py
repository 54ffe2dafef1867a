"""How many of madelon's features that matter are found, by each criterion and without redundancy."""

from pathlib import Path
from typing import Any

import click
import numpy as np

import fxdask
from benchmarks.measure import save

# The 5 informative features and their 15 combinations: the only ones that correlate with any other feature.
USEFUL = (28, 48, 64, 105, 128, 153, 241, 281, 318, 336, 338, 378, 433, 442, 451, 453, 455, 472, 475, 493)


@click.command()
@click.argument("file", type=click.Path(path_type=Path, exists=True, dir_okay=False))
@click.option("--anchors", type=int, help="Rows that relief compares with all others; all by default.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="File for all figures.")
def madelon(file: Path, anchors: int | None, json_file: Path | None) -> None:
    """Rank madelon (FILE, an .npz with X and y), and count the useful features among the first 20."""
    with np.load(file) as arrays:
        X, y = arrays["X"].astype(np.float32), arrays["y"].ravel()
    rows: list[dict[str, Any]] = []

    def show(how: str, features: np.ndarray) -> None:
        found = sorted(set(USEFUL) & set(features[: len(USEFUL)].tolist()))
        rows.append({"how": how, "found": found, "features": features.tolist()})
        click.echo(f"{how:44}{len(found):3} of {min(len(features), len(USEFUL))} features")

    ranking = fxdask.rank_features(X, y, list(fxdask.CRITERIA), n_anchors=anchors)
    for criterion in ranking.criteria:
        show(criterion, ranking.order(criterion)[: len(USEFUL)])
    for redundancy in ("mrmr", "joint"):
        for criterion in ("extended_fisher", "mutual_information", "relief"):
            selector = fxdask.FilterSelector(
                criterion, k=len(USEFUL), redundancy=redundancy, pool_size=X.shape[1], n_anchors=anchors
            )
            show(f"{redundancy}, all features by {criterion}", selector.fit(X, y).selected_)
    save(rows, json_file)
