"""Rankings on worker processes: the same bits as on threads, also if a worker is killed meanwhile."""

import os

import dask.array as da
import numpy as np
import pandas as pd
import pytest
import zarr

import fxdask
from fxdask.execution.resources import _compiler_bytes, measured_resources
from fxdask.planning import rank_plan
from fxdask.planning.machine import COMPILER_BYTES
from fxdask.tasks.memory import MemoryInUse
from fxdask.workflows import rank_request as workflow

from .chaos import one_worker_killed

N = 6_000
RNG = np.random.default_rng(0)
X = RNG.standard_normal((N, 24)).astype(np.float32)
Y = np.arange(N) % 2
X[Y == 1, 5] *= 2
X[Y == 1, 9] += 1
CRITERIA = ["extended_fisher", "pearson", "kolmogorov_smirnov", "relief"]


def bits(ranking):
    return [ranking.scores[name].tobytes() for name in ranking.criteria] + [ranking.curves.tobytes()]


@pytest.fixture(scope="module")
def on_threads():
    return fxdask.rank_features(X, Y, CRITERIA, n_anchors=30)


@pytest.fixture(scope="module")
def chosen_on_threads():
    return {how: chosen(X, how) for how in ("mrmr", "joint")}


def chosen(samples, how):
    return fxdask.FilterSelector("kolmogorov_smirnov", k=4, redundancy=how).fit(samples, Y).selected_.tolist()


def test_workers_give_the_bits_of_threads(on_threads, client, tmp_path, monkeypatch):
    here = f":{os.getpid()}"
    pd.DataFrame(X, columns=[f"f{i}" for i in range(24)]).to_parquet(tmp_path / "x.parquet", row_group_size=1_700)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(900, 24))
    in_memory = fxdask.rank_features(X, Y, CRITERIA, n_anchors=30)
    monkeypatch.setattr(workflow, "SMALL", 0)
    monkeypatch.setattr(rank_plan, "FEWEST_FEATURES", 4)
    found = [
        in_memory,
        fxdask.rank_features(tmp_path / "x.zarr", Y, CRITERIA, n_anchors=30),
        fxdask.rank_features(tmp_path / "x.parquet", Y, CRITERIA, n_anchors=30, store=tmp_path / "p.zarr"),
        fxdask.rank_features(da.from_zarr(tmp_path / "x.zarr"), Y, CRITERIA, n_anchors=30),
        fxdask.rank_features(X, Y, CRITERIA, n_anchors=30, store=tmp_path / "m.zarr"),
    ]
    for ranking in found:
        assert sum(ranking.info["blocks_by_process"].values()) == ranking.info["n_blocks"]
        assert not any(process.endswith(here) for process in ranking.info["blocks_by_process"])
        assert bits(ranking) == bits(on_threads)


def test_workers_count_what_does_not_fit_into_them(on_threads, client, tmp_path, monkeypatch):
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(900, 24))
    monkeypatch.setattr(workflow, "SMALL", 0)
    monkeypatch.setattr(rank_plan, "CRITERION_BYTES", 2**40)
    found = fxdask.rank_features(tmp_path / "x.zarr", Y, CRITERIA[:3])
    assert found.info["plan"]["columns"] == "counted in several passes"
    assert bits(found)[:3] == bits(on_threads)[:3]


def test_workers_choose_the_features_of_threads(chosen_on_threads, client, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "SMALL", 0)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(900, 24))
    for how, expected in chosen_on_threads.items():
        assert chosen(tmp_path / "x.zarr", how) == expected


def load_numba():
    import numba

    return numba.__version__


def test_libraries_that_workers_have_loaded_are_not_counted_again(client):
    """A second ranking on small workers would else be refused."""
    client.run(load_numba)
    needed, other = (measured_resources(compiles=compiles).baseline for compiles in (True, False))
    assert abs(needed - other) < COMPILER_BYTES // 2
    unloaded = MemoryInUse(n_bytes=2**28, has_compiler=False, n_jobs=0)
    assert [_compiler_bytes(unloaded, compiles) for compiles in (True, False)] == [COMPILER_BYTES, 0]


def test_a_killed_worker_changes_nothing(on_threads, tmp_path, monkeypatch):
    monkeypatch.setattr(workflow, "SMALL", 0)
    monkeypatch.setattr(rank_plan, "FEWEST_FEATURES", 1)
    monkeypatch.setattr(rank_plan, "BYTES_PER_BLOCK", 4 * N)
    monkeypatch.setattr(rank_plan, "BYTES_PER_RANGE", 50_000)
    zarr.create_array(tmp_path / "x.zarr", data=X, chunks=(300, 24))
    store = tmp_path / "r.zarr"
    with one_worker_killed(tmp_path / "cluster", lambda: len(list(store.glob("blocks_done/c/*"))) >= 2):
        found = fxdask.rank_features(tmp_path / "x.zarr", Y, CRITERIA[:3], store=store)
    assert bits(found)[:3] == bits(on_threads)[:3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cluster", "r.zarr", "x.zarr"]
