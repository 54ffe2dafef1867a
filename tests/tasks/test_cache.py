"""The cache of a job: which tasks share its values, and when they are deleted."""

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import dask
import numpy as np
import pytest

from fxdask import FisherNetworkClassifier
from fxdask.kernels.preprocessing import origin_quartiles, preprocessing_from, summarize
from fxdask.kernels.weights import weight_block
from fxdask.planning.fit_plan import FitPlan
from fxdask.store.sources import NpyAddress
from fxdask.tasks.cache import job_cache, source_key
from fxdask.tasks.columns import ProjectedNodes
from fxdask.tasks.job import FitJob
from fxdask.tasks.reading import TileReader
from fxdask.tasks.telemetry import TaskCounters

CODES = np.arange(30) % 2
THREADS = 8


def samples_of(seed):
    return np.random.default_rng(seed).standard_normal((30, 4)).astype(np.float32)


def job_for(X):
    plan = FitPlan(n_nodes=6, n_features=4, class_counts=(15, 15), n_selected=1, nodes_per_block=3)
    assert plan.keeps_preprocessed
    return FitJob(
        plan=plan,
        seed=0,
        preprocessing=preprocessing_from(summarize(X, None), origin_quartiles(X, None), None, X.dtype),
        codes=CODES,
        priors=np.full(2, 0.5),
        class_norms=np.ones(2),
        criterion="fisher",
        location="mean",
        spread="std",
        shrink_spread=False,
    )


def projected_values(job, samples):
    """(class, node, sample) projections onto the job's first three nodes."""
    columns = ProjectedNodes(job, samples, job.plan.block(0), TaskCounters()).all_values()
    return np.stack([columns.gather(k) for k in range(2)])


def expected_values(job, X):
    weights = weight_block(job.seed, 0, 3, X.shape[1])
    return np.stack([weights @ (X - job.preprocessing.shift)[k == CODES].T for k in range(2)])


@pytest.fixture
def tile_reads(monkeypatch):
    """The samples of each call of TileReader.tiles."""
    read, tiles = [], TileReader.tiles

    def recorded(self, samples, *, lasting=False):
        read.append(samples)
        return tiles(self, samples, lasting=lasting)

    monkeypatch.setattr(TileReader, "tiles", recorded)
    return read


def test_all_blocks_of_a_job_share_its_preprocessed_tiles(tile_reads):
    X = samples_of(0)
    job = job_for(X)
    for index in (0, 1, 0):
        ProjectedNodes(job, X, job.plan.block(index), TaskCounters()).all_values()
    assert len(tile_reads) == 1


def test_equal_jobs_do_not_share_a_cache(tile_reads):
    X = samples_of(0)
    first = job_for(X)
    second = replace(first)
    assert job_cache(first) is job_cache(first)
    assert job_cache(first) is not job_cache(second)
    for job in (first, second):
        assert np.allclose(projected_values(job, X), expected_values(job, X), atol=1e-5)
    assert len(tile_reads) == 2


def test_two_arrays_of_one_job_do_not_share_tiles(tile_reads):
    first, second = samples_of(0), samples_of(1)
    job = job_for(first)
    for X in (first, second, first, second):
        assert np.allclose(projected_values(job, X), expected_values(job, X), atol=1e-5)
    assert len(tile_reads) == 2


def test_two_files_of_one_job_do_not_share_tiles(tile_reads, tmp_path):
    job = job_for(samples_of(0))
    for seed in (0, 1, 0, 1):
        np.save(tmp_path / f"{seed}.npy", samples_of(seed))
        values = projected_values(job, NpyAddress(str(tmp_path / f"{seed}.npy")))
        assert np.allclose(values, expected_values(job, samples_of(seed)), atol=1e-5)
    assert len(tile_reads) == 2


def test_arrays_are_identified_by_identity_and_files_by_address():
    X = samples_of(0)
    assert source_key(X) == source_key(X)
    assert source_key(X) != source_key(X.copy())
    assert source_key(NpyAddress("a.npy")) == source_key(NpyAddress("a.npy"))
    assert source_key(NpyAddress("a.npy")) != source_key(NpyAddress("b.npy"))


def test_a_new_array_never_gets_the_tiles_of_a_deleted_one():
    """A new array often has the same id as one deleted just before, and the id is the key."""
    job = job_for(samples_of(0))
    for seed in range(20):
        X = samples_of(seed)
        assert np.allclose(projected_values(job, X), expected_values(job, X), atol=1e-5)
        del X


def test_two_fits_in_one_process_with_arrays_of_the_same_shape_give_their_own_results():
    def fitted(seed):
        return FisherNetworkClassifier(40, 3, nodes_per_block=10).fit(samples_of(seed), CODES).divergences_

    with dask.config.set(scheduler="synchronous"):
        first, second, again = fitted(0), fitted(1), fitted(0)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, second)


def test_fits_at_the_same_time_give_the_results_of_fits_one_by_one():
    def fitted(seed):
        return FisherNetworkClassifier(40, 3, nodes_per_block=10).fit(samples_of(seed), CODES).divergences_

    one_by_one = [fitted(seed) for seed in range(4)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(fitted, range(4)))
    for mine, theirs in zip(together, one_by_one, strict=True):
        assert np.array_equal(mine, theirs)


def test_a_cache_is_deleted_with_its_job():
    X = samples_of(0)
    job = job_for(X)
    projected_values(job, X)
    cache, samples = weakref.ref(job_cache(job)), weakref.ref(X)
    del X
    gc.collect()
    assert cache() is not None
    assert samples() is not None, "the cache holds the samples of its tiles"
    del job
    gc.collect()
    assert cache() is None
    assert samples() is None


def test_a_value_is_made_once_when_many_threads_ask_for_it():
    cache, made, ready = job_cache(job_for(samples_of(0))), [], Barrier(THREADS)

    def make():
        made.append(threading.get_ident())
        time.sleep(0.05)
        return object()

    def ask(_):
        ready.wait()
        return cache.get("value", make)

    with ThreadPoolExecutor(THREADS) as pool:
        values = list(pool.map(ask, range(THREADS)))
    assert len(made) == 1
    assert len(values) == THREADS
    assert all(value is values[0] for value in values)


def test_all_threads_that_ask_for_a_job_get_the_same_cache():
    job, ready = job_for(samples_of(0)), Barrier(THREADS)

    def ask(_):
        ready.wait()
        return job_cache(job)

    with ThreadPoolExecutor(THREADS) as pool:
        assert len(set(pool.map(ask, range(THREADS)))) == 1


def test_a_value_that_could_not_be_made_is_made_at_the_next_request():
    cache = job_cache(job_for(samples_of(0)))

    def fail():
        raise InterruptedError

    with pytest.raises(InterruptedError):
        cache.get("value", fail)
    assert cache.get("value", lambda: 3) == 3


def test_each_thread_has_its_own_scratch():
    cache, ready = job_cache(job_for(samples_of(0))), Barrier(THREADS)

    def ask(_):
        ready.wait()
        assert cache.scratch is cache.scratch
        return cache.scratch

    with ThreadPoolExecutor(THREADS) as pool:
        assert len(set(pool.map(ask, range(THREADS)))) == THREADS
