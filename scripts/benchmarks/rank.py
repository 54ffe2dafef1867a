"""Rankings of features against other libraries, and on data larger than the workers' memory."""

import json
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np
import zarr
from scipy.stats import ks_2samp
from sklearn.feature_selection import f_classif, mutual_info_classif

import fxdask
from benchmarks.limits import COPIED, copied, sorted_columns
from benchmarks.measure import Ratio, in_turn, report, save
from benchmarks.workers import process_ids, workers
from fxdask.sizes import format_bytes
from fxdask.tasks.telemetry import peak_bytes

FEW, FEWER = 20, 2
MOMENTS, MEDIANS = "fisher + pearson, plain moments", "extended_fisher, median and MAD"
SORT = "np.sort on all cores"
SCALE_CRITERIA = ["fisher", "extended_fisher", "pearson", "kolmogorov_smirnov"]
ROWS_PER_CHUNK = 20_000
GIB = 2**30
LABEL = "label"
SPARK_CORES, SPARK_MEMORY = 2, "2g"
SPARK_SELECTED = 50


@click.command()
@click.option("--samples", type=int, default=100_000)
@click.option("--features", type=int, default=1_000)
@click.option("--repeats", type=int, default=3)
@click.option("--scale", "also_scale", is_flag=True, help="Also rank Zarr and Parquet on two workers of 1 GiB.")
@click.option("--only-scale", is_flag=True, help="Run only that part.")
@click.option("--scale-samples", type=int, default=2_000_000)
@click.option("--scale-features", type=int, default=500)
@click.option(
    "--spark-python",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Python of an environment with pyspark: only compare with Spark's selector, on the Parquet of --scale.",
)
@click.option("--relief", "also_relief", is_flag=True, help="Also time relief with growing rows and anchors.")
@click.option("--relief-samples", type=int, default=1_000_000)
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder for data and stores.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def rank(  # noqa: PLR0913 - every option is a parameter
    *,
    samples: int,
    features: int,
    repeats: int,
    also_scale: bool,
    only_scale: bool,
    scale_samples: int,
    scale_features: int,
    spark_python: Path | None,
    also_relief: bool,
    relief_samples: int,
    folder: Path | None,
    file: Path | None,
) -> None:
    """Rank in memory against scikit-learn and SciPy, and from disk on two workers."""
    figures: dict[str, Any] = {}
    if not (only_scale or spark_python):
        figures["in_memory"] = in_memory(samples, features, repeats)
    if also_relief:
        figures["relief"] = grow_relief(relief_samples)
    if also_scale or only_scale or spark_python:
        with tempfile.TemporaryDirectory(prefix="fxdask-bench-", dir=folder) as path:
            with_zarr = also_scale or only_scale
            y = write_samples(Path(path), scale_samples, scale_features, with_zarr=with_zarr)
            if with_zarr:
                figures["scale"] = beyond_memory(Path(path), y)
            if spark_python:
                figures["spark"] = beside_spark(Path(path) / "x.parquet", spark_python)
    save(figures, file)


def rank_work(n_samples: int, n_features: int) -> dict[str, Callable[[], object]]:
    """Rankings of float32 in memory, two classes, and what they are compared with."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_samples, n_features), dtype=np.float32)
    y = rng.integers(0, 2, n_samples)
    X[y == 1, : n_features // 10] *= 1.2
    few = X[:, :FEW].copy()

    def ranked(*criteria: str, **settings: str) -> Callable[[], object]:
        return lambda: fxdask.rank_features(X, y, list(criteria), **settings)

    return {
        MOMENTS: ranked("fisher", "pearson", location="mean", spread="std"),
        "f_classif": lambda: f_classif(X, y),
        MEDIANS: ranked("extended_fisher", location="median", spread="mad"),
        "extended_fisher": ranked("extended_fisher"),
        SORT: sorted_columns(np.ascontiguousarray(X.T)),
        COPIED: copied(X.nbytes),
        "kolmogorov_smirnov": ranked("kolmogorov_smirnov"),
        "ks_2samp": lambda: [ks_2samp(column[y == 0], column[y == 1]) for column in few.T],
        "mutual_information": ranked("mutual_information"),
        "mutual_info_classif": lambda: mutual_info_classif(few[:, :FEWER], y, random_state=0),
        "all but relief": ranked(*(name for name in fxdask.CRITERIA if name != "relief")),
    }


def in_memory(n_samples: int, n_features: int, repeats: int) -> dict[str, Any]:
    """Everything of ``rank_work``; slow libraries rank fewer columns, and their time is scaled up."""
    work = rank_work(n_samples, n_features)
    slow = work.pop("mutual_info_classif")
    seconds = in_turn(work, repeats)
    seconds["mutual_info_classif"] = [_timed(slow) * n_features / FEWER] * repeats
    seconds["ks_2samp"] = [each * n_features / FEW for each in seconds["ks_2samp"]]
    return report(
        f"{n_samples:,} samples x {n_features:,} features; ks_2samp from {FEW} columns, mutual_info_classif from 2",
        seconds,
        [
            Ratio("f_classif", MOMENTS, at_least=10),
            Ratio(MOMENTS, COPIED),
            Ratio(MEDIANS, SORT, limit=1.5),
            Ratio("extended_fisher", SORT),
            Ratio("ks_2samp", "kolmogorov_smirnov", at_least=5),
            Ratio("mutual_info_classif", "mutual_information", at_least=30),
        ],
    )


def beyond_memory(folder: Path, y: np.ndarray) -> dict[str, Any]:
    """The same float32 samples in Zarr and in Parquet, each ranked by four criteria on two workers of 1 GiB."""
    n_samples, n_features = zarr.open_array(folder / "x.zarr", mode="r").shape
    figures: dict[str, Any] = {}
    for kind, labels, read, limit in (("zarr", y, _read_zarr, 10), ("parquet", LABEL, _read_parquet, 6)):
        path = folder / f"x.{kind}"
        click.echo(
            f"\n{n_samples:,} x {n_features} float32 in {kind}, {ROWS_PER_CHUNK:,} rows a chunk; two workers of 1 GiB"
        )
        with workers("1GiB") as client:
            reading = _timed(lambda read=read, path=path, client=client: read(client, path))
        # New workers, because Arrow keeps the memory that it read with.
        with workers("1GiB") as client:
            before = process_ids(client)
            started = time.perf_counter()
            found = fxdask.rank_features(path, labels, SCALE_CRITERIA, store=folder / f"{kind}-ranking.zarr")
            seconds = time.perf_counter() - started
            restarted = set(before.values()) - set(process_ids(client).values())
            peaks = client.run(peak_bytes)
        largest = max(peaks.values()) / GIB
        click.echo(
            f"  read once in {reading:.1f} s, ranked in {seconds:.1f} s: {seconds / reading:.1f} x (limit {limit})"
        )
        click.echo(f"  VmHWM {', '.join(map(format_bytes, peaks.values()))}, {largest:.0%} of the limit (limit 80%)")
        click.echo(f"  blocks {found.info['blocks_by_process']}, workers restarted: {len(restarted)}")
        click.echo(f"  plan {found.info['plan']}")
        figures[kind] = {"reading": reading, "seconds": seconds, "peaks": peaks, "info": dict(found.info)}
    return figures


def beside_spark(path: Path, python: Path) -> dict[str, Any]:
    """The F test of all features on two workers of 1 GiB, and by Spark's UnivariateFeatureSelector on two cores."""
    with workers("1GiB") as client:
        few = fxdask.rank_features(min(path.iterdir()), LABEL, ["pearson"])  # warms the workers up, as Spark is
        found: list[fxdask.Ranking] = []
        seconds = _timed(lambda: found.append(fxdask.rank_features(path, LABEL, ["pearson"])))
        peaks = client.run(peak_bytes)
    spark = _run_spark(path, python)
    p_values, f_values = (np.array(spark[name]) for name in ("p_values", "f_values"))
    # Pearson's score is eta, the root of the variance that the classes explain.
    explained = few.score("pearson") ** 2
    n_rows = few.info["plan"]["samples"]
    f_error = np.max(np.abs(explained * (n_rows - 2) / (1 - explained) / f_values - 1))
    p_error = np.max(np.abs(few.p_value("pearson") / p_values - 1))
    same = set(spark["selected"]) == set(found[0].order("pearson")[:SPARK_SELECTED].tolist())
    ratio = Ratio("Spark", "rank_features", at_least=5)
    click.echo(
        f"\nF test and p-values, the same Parquet: Spark {spark['version']} local[{SPARK_CORES}] with {SPARK_MEMORY} "
        f"heap {spark['seconds']:.1f} s, VmHWM {format_bytes(spark['peak_bytes'])}; rank_features on two workers of "
        f"1 GiB {seconds:.1f} s, VmHWM {', '.join(map(format_bytes, peaks.values()))}\n"
        f"  Spark / rank_features {spark['seconds'] / seconds:.1f}   {ratio.verdict(spark['seconds'] / seconds)}\n"
        f"  the best {SPARK_SELECTED} features of all samples: {'the same' if same else 'DIFFERENT'}; on the first "
        f"{n_rows:,} samples F differs by {f_error:.1e} at most, p by {p_error:.1e} (relative)"
    )
    return {"seconds": seconds, "peaks": peaks, "spark": spark, "same": same, "f_error": f_error, "p_error": p_error}


def _run_spark(path: Path, python: Path) -> dict[str, Any]:
    """Run the selector in the other Python; its folder is removed with Spark's scratch files."""
    program = Path(__file__).with_name("spark_selector.py")
    options = {"--cores": SPARK_CORES, "--memory": SPARK_MEMORY, "--selected": SPARK_SELECTED}
    with tempfile.TemporaryDirectory(prefix="spark-", dir=path.parent) as folder:
        done = subprocess.run(
            [python.absolute(), program, path.absolute(), *(str(part) for pair in options.items() for part in pair)],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode:
        raise click.ClickException(f"Spark failed; its last lines are:\n{done.stderr[-3_000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def write_samples(folder: Path, n_samples: int, n_features: int, *, with_zarr: bool) -> np.ndarray:
    """Write the samples as Parquet with their labels, one file a chunk, and as Zarr by rows; returns the labels."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, n_samples)
    shape, chunks = (n_samples, n_features), (ROWS_PER_CHUNK, n_features)
    array = zarr.create_array(folder / "x.zarr", shape=shape, chunks=chunks, dtype="f4") if with_zarr else None
    (folder / "x.parquet").mkdir()
    for start in range(0, n_samples, ROWS_PER_CHUNK):
        stop = min(start + ROWS_PER_CHUNK, n_samples)
        rows = rng.standard_normal((stop - start, n_features), dtype=np.float32)
        rows[y[start:stop] == 1, :20] *= 1.1
        if array is not None:
            array[start:stop] = rows
        columns = {f"f{i}": rows[:, i] for i in range(n_features)}
        table = pa.table(columns | {LABEL: y[start:stop]})
        pq.write_table(table, folder / "x.parquet" / f"{start:09}.parquet", use_dictionary=False)
    return y


def _timed(work: Any) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def _read_zarr(client: Any, path: Path) -> None:
    """Read every chunk once on the workers."""

    def read(start: int) -> int:
        return zarr.open_array(path, mode="r")[start : start + ROWS_PER_CHUNK].shape[0]

    n_rows = zarr.open_array(path, mode="r").shape[0]
    client.gather(client.map(read, range(0, n_rows, ROWS_PER_CHUNK), pure=False))


def _read_parquet(client: Any, path: Path) -> None:
    """Read every file once on the workers."""

    def read(file: str) -> int:
        import pyarrow.parquet as pq  # noqa: PLC0415

        return pq.read_table(file, use_threads=False).num_rows

    client.gather(client.map(read, [str(file) for file in sorted(path.iterdir())], pure=False))


def grow_relief(n_samples: int, n_features: int = 100) -> list[dict[str, Any]]:
    """Relief in memory with a quarter of the rows, of the anchors, and with all."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n_samples, n_features), dtype=np.float32)
    y = rng.integers(0, 2, n_samples)
    X[y == 1, 0] += 1
    rows = []
    for n_rows, n_anchors in ((n_samples // 4, 1_000), (n_samples, 250), (n_samples, 1_000)):
        seconds = _timed(lambda n=n_rows, a=n_anchors: fxdask.rank_features(X[:n], y[:n], ["relief"], n_anchors=a))
        click.echo(
            f"relief, {n_rows:,} x {n_features}, {n_anchors:,} anchors: {seconds:.1f} s, "
            f"VmHWM {format_bytes(peak_bytes())}"
        )
        rows.append({"samples": n_rows, "anchors": n_anchors, "seconds": seconds, "peak": peak_bytes()})
    return rows
