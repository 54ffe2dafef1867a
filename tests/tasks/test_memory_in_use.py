"""The memory of a process before a job begins: without what is only kept, and with the jobs that still hold some."""

import gc

import numpy as np
import pandas as pd

from fxdask.store import arrow
from fxdask.store.parquet import open_parquet
from fxdask.tasks.cache import job_cache, n_cached_jobs
from fxdask.tasks.memory import memory_in_use


class Job:
    """Any object may be a job."""


def test_footers_are_dropped_before_memory_is_measured(tmp_path):
    pd.DataFrame({"a": np.arange(3.0)}).to_parquet(tmp_path / "x.parquet")
    open_parquet(tmp_path / "x.parquet")
    assert len(arrow._footers._footers) > 0
    assert memory_in_use().n_bytes > 2**20
    assert len(arrow._footers._footers) == arrow._footers._n_bytes == 0


def test_a_job_that_holds_arrays_is_counted_until_it_is_gone():
    gc.collect()
    before, job = n_cached_jobs(), Job()
    job_cache(job).scratch("values", (10,))
    assert memory_in_use().n_jobs == before + 1
    del job
    gc.collect()
    assert memory_in_use().n_jobs == before
