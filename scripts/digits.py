"""Train the network on scikit-learn's 8x8 digits and score the held-out ones, store to store.

Run by scripts/run. With a folder as argument the stores are kept there, and a second run loads the
models instead of fitting them again; otherwise a new temporary folder is used.
"""

import argparse
import tempfile
from pathlib import Path

import numpy as np
import zarr
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import fxdask

N_NODES = 10_000
N_SELECTED = 10


def chosen_folder() -> Path:
    """Give the folder for the stores: the argument, or a new temporary one."""
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where to keep the stores")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="fxdask-digits-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def split_digits() -> list[np.ndarray]:
    """Give X_train, X_test, y_train and y_test, with each digit's share the same in both parts."""
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, stratify=y, random_state=0)


def train(criterion: str, X: np.ndarray, y: np.ndarray, store: Path) -> None:
    """Fit into a store, where an earlier fit of the same data and parameters is loaded or resumed."""
    classifier = fxdask.FisherNetworkClassifier(
        n_nodes=N_NODES, n_selected=N_SELECTED, criterion=criterion, store=store
    )
    classifier.fit(X, y)


def print_table(rows: list[tuple[str, str, str, str]]) -> None:
    """Print rows with each column as wide as its longest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    """Train and score under each criterion, and print the accuracies and where the stores are."""
    folder = chosen_folder()
    X_train, X_test, y_train, y_test = split_digits()
    test_samples = folder / "test-samples.zarr"
    zarr.create_array(test_samples, data=X_test, overwrite=True)
    print(f"{len(X_train)} training and {len(X_test)} test samples, {N_NODES} nodes\n")

    rows = [("criterion", "accuracy", "model store", "scores store")]
    for criterion in ("extended_fisher", "fisher"):
        model, scores = folder / f"model-{criterion}.zarr", folder / f"scores-{criterion}.zarr"
        train(criterion, X_train, y_train, model)
        # By the model's path, as a later process would do it. Scores of an earlier run are replaced.
        result = fxdask.batch_score(model, test_samples, scores, y_test, overwrite=True)
        rows.append((criterion, f"{result.accuracy:.2%}", str(model), str(scores)))
    print_table(rows)


if __name__ == "__main__":
    main()
