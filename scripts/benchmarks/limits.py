"""What the machine itself can do: the rates that no program on it exceeds."""

import hashlib
import statistics
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import click
import google_crc32c
import numpy as np
from dask.system import CPU_COUNT

from benchmarks.measure import in_turn

MIB = 2**20
COPIED = "copied"
BYTES_PER_COPY = 32 * MIB
COLUMNS_PER_SORT = 20


@dataclass(frozen=True)
class Limit:
    """Some work, and how much of its unit one call does."""

    name: str
    unit: str
    amount: float
    run: Callable[[], object]


def copied(n_bytes: int) -> Callable[[], None]:
    """Work that copies so many bytes in memory, on all cores, through buffers that no cache of a core holds."""
    parts = max(1, n_bytes // (CPU_COUNT * BYTES_PER_COPY))
    size = -(-n_bytes // (CPU_COUNT * parts))
    buffers = [(np.ones(size, np.uint8), np.empty(size, np.uint8)) for _ in range(CPU_COUNT)]

    def copy(pair: tuple[np.ndarray, np.ndarray]) -> None:
        for _ in range(parts):
            np.copyto(pair[1], pair[0])

    return lambda: _on_all_cores(copy, buffers)


def sorted_columns(by_column: np.ndarray) -> Callable[[], None]:
    """Work that sorts every row of the array, on all cores."""

    def sort(start: int) -> None:
        np.sort(by_column[start : start + COLUMNS_PER_SORT], axis=1)

    return lambda: _on_all_cores(sort, range(0, len(by_column), COLUMNS_PER_SORT))


def _on_all_cores(work: Callable[[Any], None], parts: Sequence[Any]) -> None:
    with ThreadPoolExecutor(CPU_COUNT) as pool:
        list(pool.map(work, parts))


def limits(n_bytes: int = 512 * MIB, n_rows: int = 4_000) -> list[Limit]:
    """The limits; the arguments are the bytes of each array, and the rows of the matrices that are multiplied."""
    rng, n_inputs = np.random.default_rng(0), 784
    left, right = (rng.standard_normal((n_rows, n_inputs), dtype=np.float32) for _ in range(2))
    product = np.empty((n_rows, n_rows), np.float32)
    columns = rng.standard_normal((max(1, n_bytes // (16 * MIB)) * COLUMNS_PER_SORT, 20_000), dtype=np.float32)
    content = rng.bytes(n_bytes // 4)
    return [
        Limit("sgemm", "Gflop/s", 2e-9 * n_rows * n_rows * n_inputs, lambda: np.matmul(left, right.T, out=product)),
        Limit("copy", "GB/s", 1e-9 * n_bytes, copied(n_bytes)),
        Limit("sort", "million values/s", 1e-6 * columns.size, sorted_columns(columns)),
        Limit("crc32c, one core", "GB/s", 1e-9 * len(content), lambda: google_crc32c.value(content)),
        Limit("sha256, one core", "GB/s", 1e-9 * len(content), lambda: hashlib.sha256(content).digest()),
    ]


def measured(some: Sequence[Limit], repeats: int) -> dict[str, dict[str, Any]]:
    """Print and return the rate of each limit: median, lowest and highest."""
    seconds = in_turn({limit.name: limit.run for limit in some}, repeats)
    click.echo(f"{'limits of this machine':40}{'median':>10}{'lowest':>10}{'highest':>10}")
    found = {}
    for limit in some:
        rates = [limit.amount / each for each in seconds[limit.name]]
        found[limit.name] = summary(rates) | {"unit": limit.unit}
        figures = "".join(f"{found[limit.name][key]:10.3g}" for key in ("median", "lowest", "highest"))
        click.echo(f"{limit.name:40}{figures}   {limit.unit}")
    return found


def summary(values: Sequence[float]) -> dict[str, float]:
    """The numbers by which two runs are compared."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}
