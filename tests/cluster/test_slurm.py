"""Workers as jobs of a real SLURM, started by dask-jobqueue, and a fit during which a job is cancelled."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import numpy as np
import psutil
import pytest
import zarr
from dask_jobqueue import SLURMCluster
from deploy.deployment import edited_script
from distributed import Client

import fxdask
from fxdask import FisherNetworkClassifier

from .driver import done_files
from .slurm import command, finished_jobs, jobs, needs_slurm, slurm_site

pytestmark = needs_slurm()
signal.signal(signal.SIGINT, signal.default_int_handler)  # because dask-jobqueue replaces the handler

N_BLOCKS, PER_BLOCK = 60, 192
ARRAYS = ("statistics", "selection", "selected/projections")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with slurm_site(tmp_path_factory.mktemp("site")) as found, pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        yield found


@contextmanager
def workers_of(folder):
    """A client of two workers, each in its own SLURM job."""
    with (
        SLURMCluster(
            cores=1,
            job_cpu=4,  # a whole node, so that both are used
            processes=1,
            memory="1GiB",
            walltime="00:10:00",
            python=sys.executable,
            local_directory=str(folder),
            log_directory=str(folder),
            scheduler_options={"host": "127.0.0.1", "dashboard": False, "dashboard_address": ":0"},
            worker_extra_args=["--host", "127.0.0.1", "--no-dashboard"],
        ) as cluster,
        Client(cluster) as client,
    ):
        cluster.scale(jobs=2)
        client.wait_for_workers(2, timeout=60)
        yield client


def worker_facts(client):
    """(name of the process in the telemetry, SLURM job, whether it runs a task) of each worker."""

    def facts(dask_worker):
        import os
        import socket

        return f"{socket.gethostname()}:{os.getpid()}", os.environ["SLURM_JOB_ID"], bool(dask_worker.state.executing)

    return list(client.run(facts, on_error="ignore").values())


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    X = np.random.default_rng(0).standard_normal((20_000, 300), dtype=np.float32)
    X[::2] *= 1.2
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.arange(20_000) % 2)
    return folder / "X.npy", folder / "y.npy"


def network_at(store):
    return FisherNetworkClassifier(N_BLOCKS * PER_BLOCK, 5, nodes_per_block=PER_BLOCK, store=store)


@pytest.fixture(scope="module")
def undisturbed(data, tmp_path_factory):
    return network_at(tmp_path_factory.mktemp("undisturbed") / "model.zarr").fit(*data)


def check_values(got, want):
    for name in ARRAYS:
        mine, theirs = (zarr.open_group(model.store_, mode="r")[name][:] for model in (got, want))
        assert np.array_equal(mine, theirs), name


def print_evidence(info, found):
    for process, job, _ in found:
        done = {what: info[f"{what}_by_process"].get(process) for what in ("blocks", "bytes_read", "peak_bytes")}
        print(f"SLURM job {job} is {process}: {done}")


def test_a_fit_on_slurm_workers_gives_the_same_values(site, data, undisturbed, tmp_path):
    with workers_of(tmp_path) as client:
        found = worker_facts(client)
        listed = jobs(site)
        clf = network_at(tmp_path / "model.zarr").fit(*data)
    print("\n".join(listed))
    print_evidence(clf.fit_info_, found)
    assert {line.split()[0] for line in listed if " RUNNING " in line} == {job for _, job, _ in found}
    assert set(clf.fit_info_["blocks_by_process"]) == {process for process, _, _ in found}
    check_values(clf, undisturbed)


class Canceller(threading.Thread):
    """Cancels the SLURM job of a worker that runs a task, after ``count`` blocks are done."""

    def __init__(self, site, client, store, count):
        super().__init__(daemon=True)
        self.site, self.client, self.store, self.count = site, client, store, count
        self.cancelled = None

    def run(self):
        while len(done_files(self.store)) < self.count:
            time.sleep(0.02)
        while self.cancelled is None:
            busy = [job for _, job, is_busy in worker_facts(self.client) if is_busy]
            if busy:
                self.cancelled = busy[0]
                command(self.site, "scancel", self.cancelled)


def test_a_fit_finishes_after_a_slurm_job_was_cancelled(site, data, undisturbed, tmp_path):
    store = tmp_path / "model.zarr"
    with workers_of(tmp_path) as client:
        found = worker_facts(client)
        canceller = Canceller(site, client, store, N_BLOCKS // 4)
        canceller.start()
        clf = network_at(store).fit(*data)
        canceller.join(10)
        ended = [line for line in finished_jobs(site) if f"JobId={canceller.cancelled} " in line]
    print("\n".join(ended))
    print_evidence(clf.fit_info_, found)
    assert len(ended) == 1
    assert "JobState=CANCELLED" in ended[0]
    check_values(clf, undisturbed)


def test_the_slurm_script_of_deploy_fits_on_two_nodes(site, data, tmp_path):
    for file in data:
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        edited_script(tmp_path, tmp_path, queue="all"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path / 'model.zarr'} is complete" in done.stdout
    print(done.stdout)
    expected = FisherNetworkClassifier(10_000, 10).fit(*data)
    assert np.array_equal(fxdask.load(tmp_path / "model.zarr").divergences_, expected.divergences_)
    ended = [line for line in finished_jobs(site) if "Name=fxdask " in line]
    print("\n".join(ended))
    assert len(ended) == 2
    assert {line.split("NodeList=")[1].split()[0] for line in ended} == {"node0", "node1"}
    assert not jobs(site)


def test_no_process_remains_after_a_site_is_stopped(tmp_path):
    with slurm_site(tmp_path) as site:
        command(site, "sbatch", "--output", "/dev/null", "--wrap", f"echo $$ > {tmp_path}/pid; sleep 1000")
        deadline = time.monotonic() + 30
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)
    assert not [process.info for process in psutil.process_iter(["cmdline"]) if names(process, tmp_path)]


def names(process, folder):
    return any(str(folder) in word for word in process.info["cmdline"] or ())
