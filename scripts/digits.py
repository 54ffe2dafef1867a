"""Train the network on scikit-learn's 8x8 digits, and score a held-out test set from store to store.

scripts/run runs it. A folder as argument keeps the stores, and a second run then loads the models
instead of fitting them again. Without an argument, a new temporary folder is used.
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
    """Return the folder for the stores: the argument, or a new temporary one."""
    parser = argparse.ArgumentParser(prog="scripts/run", description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where to keep the stores")
    folder = parser.parse_args().folder or Path(tempfile.mkdtemp(prefix="fxdask-digits-"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def split_digits() -> list[np.ndarray]:
    """Return X_train, X_test, y_train and y_test, with equal shares of each digit in both parts."""
    X, y = load_digits(return_X_y=True)
    return train_test_split(X, y, stratify=y, random_state=0)


def train(criterion: str, X: np.ndarray, y: np.ndarray, store: Path) -> None:
    """Fit into a store; an earlier fit of the same data and parameters is loaded or resumed."""
    classifier = fxdask.FisherNetworkClassifier(
        n_nodes=N_NODES, n_selected=N_SELECTED, criterion=criterion, store=store
    )
    classifier.fit(X, y)


def print_table(rows: list[tuple[str, str, str, str]]) -> None:
    """Print rows as aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def main() -> None:
    """Train and score with each criterion, and print the accuracies and the paths of the stores."""
    folder = chosen_folder()
    X_train, X_test, y_train, y_test = split_digits()
    test_samples = folder / "test-samples.zarr"
    zarr.create_array(test_samples, data=X_test, overwrite=True)
    print(f"{len(X_train)} training and {len(X_test)} test samples, {N_NODES} nodes\n")

    rows = [("criterion", "accuracy", "model store", "scores store")]
    for criterion in ("extended_fisher", "fisher"):
        model, scores = folder / f"model-{criterion}.zarr", folder / f"scores-{criterion}.zarr"
        train(criterion, X_train, y_train, model)
        # The model is passed as a path, as another process would do; scores of an earlier run are replaced.
        result = fxdask.batch_score(model, test_samples, scores, y_test, overwrite=True)
        rows.append((criterion, f"{result.accuracy:.2%}", str(model), str(scores)))
    print_table(rows)


if __name__ == "__main__":
    main()
