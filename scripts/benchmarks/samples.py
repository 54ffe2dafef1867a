"""Very many samples on two small workers: memory, reads and restarts, and the bits of a run with ample memory."""

import tempfile
import time
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.measure import save
from benchmarks.workers import evidence, process_ids, workers
from fxdask import FisherNetworkClassifier
from fxdask.planning.fit_search import plan_fit
from fxdask.planning.fit_size import FitSize, SampleFacts
from fxdask.planning.machine import Resources
from fxdask.planning.table_plan import plan_tables
from fxdask.sizes import format_bytes

MIB = 2**20
LIMIT = 512 * MIB
# Tables are made on the workers, so that the calling process does not gather the projections of all samples.
MODEL = {"combine": "log", "keep_projections": "table"}
FITS = ((4_000_000, 64, 64), (4_000_000, 64, 1_000), (20_000_000, 16, 256))


@click.command()
@click.option("--only", type=click.IntRange(1, len(FITS)), multiple=True, help="Run only this fit.")
@click.option("--ample/--no-ample", default=True, help="Fit with ample memory too, and compare all divergences.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Folder for data and stores.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File for all figures.")
def samples(only: tuple[int, ...], ample: bool, folder: Path | None, file: Path | None) -> None:
    """Fit 4 and 20 million samples on two single-threaded workers of 512 MiB."""
    figures: dict[str, Any] = {"planned": planned_memory(), "fits": []}
    with tempfile.TemporaryDirectory(prefix="fxdask-bench-", dir=folder) as path:
        for number, shape in enumerate(FITS, start=1):
            if not only or number in only:
                figures["fits"].append(fit_many(Path(path), *shape, ample=ample))
    save(figures, file)


def planned_memory() -> list[dict]:
    """The memory of a task by the plan, from 10^6 to 10^9 samples x 64 features, 1,000 nodes."""
    resources = Resources(limit=LIMIT, baseline=185 * MIB, threads=1, processes=2)
    on_disk, rows = SampleFacts(in_memory=False, probes_in_memory=False), []
    for n_samples in (10**6, 10**7, 10**8, 10**9):
        size = FitSize(
            n_nodes=1_000, n_features=64, class_counts=(n_samples // 2,) * 2, n_selected=10, keeps_tables=True
        )
        plan = plan_fit(size, samples=on_disk, resources=resources)
        facts = {**plan.facts(), "bytes_per_table_task": plan_tables(plan, 20).task_bytes}
        click.echo(
            f"{n_samples:>13,} samples: {format_bytes(plan.task_bytes)} per task, "
            f"{plan.nodes_per_pass} nodes per pass, {plan.passes} passes, "
            f"values in brackets {facts['values_in_brackets']}; {format_bytes(facts['bytes_per_table_task'])} per task "
            f"that tabulates, model {format_bytes(plan.model_bytes)}"
        )
        rows.append(facts)
    return rows


def write_classes(folder: Path, n_samples: int, n_features: int) -> tuple[Path, np.ndarray]:
    """Two classes of normal samples with other scales, written in parts, unless an earlier fit has written them."""
    file, rng = folder / f"X{n_samples}.npy", np.random.default_rng(0)
    y = rng.integers(0, 2, n_samples).astype(np.uint8)
    if file.exists():
        return file, y
    out = np.lib.format.open_memmap(file, "w+", np.float32, (n_samples, n_features))
    scale = np.linspace(0.7, 1.5, n_features, dtype=np.float32)
    for start in range(0, n_samples, 100_000):
        rows = out[start : start + 100_000]
        rows[...] = rng.standard_normal(rows.shape, dtype=np.float32)
        rows[y[start : start + 100_000] == 1] *= scale
    out.flush()
    return file, y


def fit_many(folder: Path, n_samples: int, n_features: int, n_nodes: int, *, ample: bool) -> dict:
    """Fit on two workers of 512 MiB, then on threads of this process without a limit."""
    click.echo(f"\n{n_samples:,} samples x {n_features} features, {n_nodes:,} nodes, two workers of 512 MiB")
    file, y = write_classes(folder, n_samples, n_features)
    clf = FisherNetworkClassifier(n_nodes, **MODEL, store=folder / "model.zarr", overwrite=True)
    with workers("512MiB") as client:
        before = process_ids(client)
        click.echo(clf.plan(file, y))
        started = time.perf_counter()
        clf.fit(file, y)
        seconds = time.perf_counter() - started
        found = evidence(client, clf.fit_info_, before)
    peak = max(found["worker_peaks"].values()) / LIMIT
    click.echo(f"  {seconds:.1f} s; VmHWM {peak:.1%} of the limit at most (limit 80%)")
    found |= {"samples": n_samples, "nodes": n_nodes, "seconds": seconds, "peak_share": peak}
    if not ample:
        return found
    started = time.perf_counter()
    free = FisherNetworkClassifier(n_nodes, **MODEL, store=folder / "ample.zarr", overwrite=True).fit(file, y)
    found["seconds_ample"] = time.perf_counter() - started
    found["same_bits"] = (
        clf.divergences_.tobytes() == free.divergences_.tobytes()
        and clf._fitted_model().scorer.digest() == free._fitted_model().scorer.digest()
    )
    click.echo(
        f"  with ample memory, values held {free.fit_info_['plan']['values_held']}: {found['seconds_ample']:.1f} s; "
        f"divergences and tables {'the same to the last bit' if found['same_bits'] else 'DIFFER'}"
    )
    return found
