"""The joint rule and selection: a fit compared with the paper's, scoring compared with reading and with QDA."""

import multiprocessing
import shutil
import tempfile
from pathlib import Path

import click
import dask.array as da
import numpy as np
import zarr
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis

from benchmarks.measure import Ratio, in_turn, report, save
from fxdask import FisherNetworkClassifier, batch_score, load
from fxdask.sizes import format_bytes
from fxdask.tasks.telemetry import peak_bytes

N_CLASSES = 10
N_FEATURES = 784
ROWS_PER_CHUNK = 8_192
ROWS_PER_PREDICT = 100_000


def samples_of_classes(n_samples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Samples of ten classes with other means and other variances in some directions, as float32, and their labels."""
    shape, rng = np.random.default_rng(0), np.random.default_rng(seed)
    means = 0.15 * shape.standard_normal((N_CLASSES, N_FEATURES), dtype=np.float32)
    scales = np.exp(0.3 * shape.standard_normal((N_CLASSES, N_FEATURES), dtype=np.float32))
    y = rng.integers(0, N_CLASSES, n_samples)
    X = rng.standard_normal((n_samples, N_FEATURES), dtype=np.float32)
    X *= scales[y]
    X += means[y]
    return X, y


@click.command()
@click.option("--trained", default=60_000, help="Training samples.")
@click.option("--nodes", default=10_000)
@click.option("--samples", default=1_000_000, help="Samples to score.")
@click.option("--repeats", default=3)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder for data and stores.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for the figures of every round.")
def joint(trained: int, nodes: int, samples: int, repeats: int, folder: Path | None, file: Path | None) -> None:
    """Fit ten classes by the paper's rule and by the joint ones, and score a large test set by the joint model."""
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-", dir=folder) as path:
        context = multiprocessing.get_context("spawn")
        # New processes, so that peak memory does not include making the data.
        with context.Pool(1) as pool:
            fits = pool.apply(measure_fits, (path, trained, nodes, repeats))
        with context.Pool(1) as pool:
            pool.apply(write_samples, (path, samples))
        with context.Pool(1) as pool:
            scores, evidence = pool.apply(measure_scores, (path, repeats))
        with context.Pool(1) as pool:
            scores |= pool.apply(measure_qda, (path, samples, repeats))
    figures = [
        report(
            f"fit of {trained:,} x {N_FEATURES}, {N_CLASSES} classes, {nodes:,} nodes",
            fits,
            [
                Ratio("joint rule and selection", "paper's rule", 1.5),
                Ratio("joint rule", "paper's rule"),
            ],
        ),
        report(
            f"scoring of {samples:,} x {N_FEATURES} float32 by a joint model of {N_CLASSES} classes",
            scores,
            [Ratio("scored", "QDA on projections", 2.0), Ratio("scored", "read and summed")],
        ),
    ]
    for name, facts in evidence.items():
        click.echo(f"{name}: {facts}")
    save({"figures": figures, "evidence": evidence}, file)


def measure_fits(path: str, n_samples: int, n_nodes: int, repeats: int) -> dict[str, list[float]]:
    """Seconds of each fit; the last one is stored."""
    X, y = samples_of_classes(n_samples, 1)

    def fit(**parameters: str) -> None:
        FisherNetworkClassifier(n_nodes, normalize=None, **parameters).fit(X, y)

    seconds = in_turn(
        {
            "paper's rule": lambda: fit(combine="sum", selection="top"),
            "joint rule": lambda: fit(combine="joint", selection="top"),
            "joint rule and selection": lambda: fit(combine="joint", selection="joint"),
        },
        repeats,
    )
    FisherNetworkClassifier(
        n_nodes, normalize=None, combine="joint", selection="joint", store=Path(path) / "model.zarr"
    ).fit(X, y)
    return seconds


def write_samples(path: str, n_samples: int) -> None:
    """Write the test set."""
    array = zarr.create_array(
        Path(path) / "X.zarr",
        shape=(n_samples, N_FEATURES),
        chunks=(ROWS_PER_CHUNK, N_FEATURES),
        dtype="f4",
        compressors=None,
    )
    for start in range(0, n_samples, ROWS_PER_CHUNK):
        rows, _ = samples_of_classes(min(ROWS_PER_CHUNK, n_samples - start), 2 + start)
        array[start : start + len(rows)] = rows


def measure_scores(path: str, repeats: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of reading and of scoring, and what the scoring process tells of itself."""
    folder, evidence = Path(path), {}
    clf = load(folder / "model.zarr")

    def scored() -> None:
        shutil.rmtree(folder / "scored.zarr", ignore_errors=True)
        result = batch_score(clf, folder / "X.zarr", folder / "scored.zarr")
        evidence["decided by exact sums"] = f"{result.exact_share:.2e}"
        evidence["densities summed"] = f"{result.summed_share:.2e}"
        evidence["read"] = str({name: format_bytes(count) for name, count in result.bytes_read_by_process.items()})

    seconds = in_turn(
        {"read and summed": lambda: da.from_zarr(folder / "X.zarr").sum().compute(), "scored": scored}, repeats
    )
    evidence["shared nodes"] = str(len(clf.network_.nodes))
    evidence["VmHWM of the scoring process"] = f"{format_bytes(peak_bytes())}, limit 1.0 GiB"
    return seconds, evidence


def measure_qda(path: str, n_samples: int, repeats: int) -> dict[str, list[float]]:
    """Seconds that scikit-learn's QDA takes to label as many projections, in parts that fit into memory."""
    network = load(Path(path) / "model.zarr").network_
    trained, labels = samples_of_classes(20_000, 1)
    qda = QuadraticDiscriminantAnalysis(reg_param=1e-3).fit(trained @ network.weights.T, labels)
    projected = (samples_of_classes(min(n_samples, ROWS_PER_PREDICT), 3)[0] @ network.weights.T).astype(np.float64)

    def label() -> None:
        for _ in range(max(1, n_samples // len(projected))):
            qda.predict(projected)

    return in_turn({"QDA on projections": label}, repeats)
