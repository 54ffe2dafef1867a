"""Findings about this machine and the connected workers: versions, memory, threads, disks, access to paths."""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dask.system import CPU_COUNT
from distributed import Client
from distributed.system import MEMORY_LIMIT

from fxdask.execution.client import connected_workers
from fxdask.execution.workers import COMPARED, installed_versions
from fxdask.sizes import format_bytes
from fxdask.store.paths import NOT_THERE, is_local, store_url, why_unreachable
from fxdask.tasks.telemetry import available_bytes
from fxdask.tasks.threads import blas_of_numpy

__all__ = ["Finding", "findings_here", "findings_on_workers"]

WITHOUT_AVX512 = {"Haswell", "Zen"}


@dataclass(frozen=True)
class Finding:
    """One line of a diagnosis: what was looked at, what it is, and whether a job can run so."""

    what: str
    found: str
    is_good: bool = True


def findings_here(paths: Iterable[str], stores: Iterable[str] = ()) -> list[Finding]:
    """Versions, memory, threads and disk space of this process, and whether it can read paths and make stores."""
    versions = installed_versions()(COMPARED)
    found = [Finding("python", f"{platform.python_version()} on {platform.platform(terse=True)}")]
    found += [Finding(name, versions.get(name, "missing"), name in versions) for name in COMPARED]
    found.append(Finding("memory", f"{format_bytes(available_bytes())} of {format_bytes(MEMORY_LIMIT)} free"))
    found.append(Finding("threads", f"{CPU_COUNT}"))
    found.append(Finding("BLAS of NumPy", _blas()))
    found.append(_disk("disk of temporary files", os.environ.get("TMPDIR", "/tmp")))
    for path in paths:
        found.append(_reached(path, why_unreachable(store_url(path))))
        if is_local(store_url(path)):
            found.append(_disk(f"disk of {path}", store_url(path)))
    for store in stores:
        found.append(_writable(store))
        if is_local(store_url(store)):
            found.append(_disk(f"disk of {store}", store_url(store)))
    return found


def _writable(store: str) -> Finding:
    """Whether a store is there, or its folder is and can be written."""
    url = store_url(store)
    if not is_local(url):
        reason = why_unreachable(url)
        return Finding(store, reason or "is there", reason in ("", NOT_THERE))
    place = _nearest(url)
    is_there = place == Path(url)
    if os.access(place, os.W_OK | os.X_OK) and place.is_dir():
        return Finding(store, "is there and can be written" if is_there else "can be made")
    reason = "is read-only" if place.is_dir() else "is no folder"
    return Finding(store, f"cannot be {'written' if is_there else 'made'}: {place} {reason}", False)


def _nearest(path: str) -> Path:
    """The path itself if it exists, else the nearest folder above it that does; missing ones are made by a job."""
    place = Path(path)
    while not place.exists():
        place = place.parent
    return place


def _blas() -> str:
    """Which library multiplies matrices, and for which processor; OpenBLAS does not know every new one."""
    library = blas_of_numpy()
    if library is None:
        return "unknown"
    made_for = library.get("architecture", "any processor")
    text = f"{library['internal_api']} {library['version']} for {made_for}"
    if library["internal_api"] == "openblas" and made_for in WITHOUT_AVX512 and "avx512f" in _processor_flags():
        text += "; this processor has AVX-512: OPENBLAS_CORETYPE=SkylakeX may make products quicker"
    return text


def _processor_flags() -> set[str]:
    """Instructions that this processor has, as Linux names them; empty elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return set()
    return set(next((line for line in lines if line.startswith("flags")), "").split())


def _disk(what: str, path: str) -> Finding:
    folder = _nearest(str(Path(path).absolute()))
    usage, writable = shutil.disk_usage(folder), os.access(folder, os.W_OK)
    text = f"{format_bytes(usage.free)} of {format_bytes(usage.total)} free"
    return Finding(what, text if writable else f"{text}, read-only")


def _reached(path: str, reason: str) -> Finding:
    return Finding(path, f"cannot be reached ({reason})" if reason else "can be reached", not reason)


def findings_on_workers(client: Client, paths: Sequence[str], stores: Sequence[str] = ()) -> list[Finding]:
    """One line about the scheduler, then for each worker its size, its versions and the paths that it cannot reach."""
    workers = connected_workers(client)
    found = [Finding("scheduler", f"{client.scheduler.address} has {len(workers)} workers", bool(workers))]
    # Workers write into a store that is still to be made, so they must see the folder around it.
    folders = [str(_nearest(store_url(store))) for store in stores if is_local(store_url(store))]
    mine = installed_versions()(COMPARED)
    answers = client.run(installed_versions(), COMPARED, on_error="return")
    for address, theirs in sorted(answers.items()):
        worker = workers.get(address)
        if worker is None or isinstance(theirs, Exception):
            found.append(Finding(address, f"does not answer ({theirs})", False))
            continue
        size = f"{worker['nthreads']} threads, {format_bytes(worker['memory_limit'] or 0)}"
        other = [f"{name} {theirs.get(name, 'missing')} instead of {mine.get(name)}" for name in COMPARED]
        other = [text for name, text in zip(COMPARED, other, strict=True) if theirs.get(name) != mine.get(name)]
        found.append(Finding(address, f"{size}, {', '.join(other) or 'the same versions'}", not other))
        if "fxdask" in theirs:
            found += _unreached(client, address, [*paths, *folders])
    return found


def _unreached(client: Client, address: str, paths: Iterable[str]) -> list[Finding]:
    """The paths that a worker cannot reach."""
    reasons = [(path, client.run(why_unreachable, store_url(path), workers=[address])[address]) for path in paths]
    return [Finding(f"{address}: {path}", f"cannot be reached ({why})", False) for path, why in reasons if why]
