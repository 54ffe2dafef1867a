"""One call at a time holds the lease of a store; expired leases can be acquired, others cannot."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import StoreExistsError, StoreWriteError
from fxdask.execution import score as score_graphs
from fxdask.store import lease as lease_module
from fxdask.store.lease import Holder, Lease, LeaseFile, exclusive_lease

HOLD = """
import sys, time
from fxdask.store.lease import exclusive_lease
with exclusive_lease(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


def hold(url, *before):
    """Start another process that holds the lease."""
    process = subprocess.Popen(
        [*before, sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True, start_new_session=True
    )
    assert process.stdout.readline() == "held\n"
    return process


def kill(process):
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    process.stdout.close()


def lease_file(url):
    folder, _, name = url.rpartition("/")
    return Path(folder, f".{name}.lease")


@pytest.fixture
def url(tmp_path):
    return str(tmp_path / "model.zarr")


@pytest.fixture
def elsewhere(tmp_path):
    """The command that runs a process as if on another host: other name, other process ids, the same disk."""
    unshare = ["unshare", "--uts", "--pid", "--fork", "--kill-child"]
    command = [*unshare, "sh", "-c", 'hostname elsewhere && exec "$@"', "sh"]
    exists = shutil.which("unshare") is not None
    if not exists or subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("needs root and unshare, for a process with another host name")
    return command


def test_the_error_names_a_live_holder(url):
    process = hold(url)
    try:
        with (
            pytest.raises(
                StoreExistsError,
                match=rf"another call is working on {url} \(process {process.pid} on .*, last renewed 0 s ago",
            ),
            exclusive_lease(url),
        ):
            pass
    finally:
        kill(process)
    with exclusive_lease(url):  # the lease of a dead process of this machine expires at once
        pass
    assert os.listdir(os.path.dirname(url)) == []


def test_a_lease_of_another_host_expires_after_a_minute(url, elsewhere):
    process = hold(url, *elsewhere)
    kill(process)
    file, now = lease_file(url), time.time()
    assert json.loads(file.read_text())["host"] == "elsewhere"
    os.utime(file, (now, now - 50))
    with pytest.raises(StoreExistsError, match=r"on elsewhere, last renewed 5\d s ago\).*expires 60 s after"):
        Lease(url).acquire()
    os.utime(file, (now, now - 61))
    with exclusive_lease(url) as lease:
        lease.check_held()


def test_a_lease_is_renewed_while_it_is_held(url, monkeypatch):
    monkeypatch.setattr(lease_module, "SECONDS_BETWEEN_RENEWALS", 0.05)
    with exclusive_lease(url):
        os.utime(lease_file(url), (0, 0))
        deadline = time.monotonic() + 10
        while LeaseFile(str(lease_file(url))).read().age > 10:
            assert time.monotonic() < deadline
            time.sleep(0.02)


def test_another_process_with_the_same_id_is_not_the_holder(url):
    """The operating system uses the ids of ended processes again."""
    holder = Holder.this_call()
    stale = json.loads(holder.to_json()) | {"process_started": holder.process_started - 100}
    lease_file(url).write_text(json.dumps(stale))
    with exclusive_lease(url) as lease:
        assert lease.is_held()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"token": "a"}'])
def test_an_unreadable_lease_expires_by_its_age(url, content):
    lease_file(url).write_text(content)
    with pytest.raises(StoreExistsError, match="another call is working on .*zarr; wait"):
        Lease(url).acquire()
    os.utime(lease_file(url), (0, 0))
    with exclusive_lease(url):
        pass


@pytest.mark.parametrize("dead", [False, True])
def test_one_of_many_concurrent_calls_acquires_the_lease(tmp_path, dead):
    for attempt in range(20):
        url = str(tmp_path / f"{attempt}.zarr")
        if dead:
            lease_file(url).write_text("cut short")
            os.utime(lease_file(url), (0, 0))
        start, winners = threading.Barrier(8), []

        def compete(url=url, start=start, winners=winners):
            lease = Lease(url)
            start.wait()
            try:
                lease.acquire()
            except StoreExistsError:
                return
            winners.append(lease)

        threads = [threading.Thread(target=compete) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1
        winners[0].check_held()
        winners[0].release()


def test_a_call_that_lost_its_lease_stops_and_keeps_the_new_lease(url):
    with exclusive_lease(url) as first:
        first.check_held()
        os.utime(lease_file(url), (0, 0))
        second = Lease(url)
        second.acquire()
        with pytest.raises(StoreExistsError, match="another call is working on"):
            first.check_held()
    second.check_held()
    second.release()


def test_only_old_partial_files_are_removed(url, tmp_path):
    store = tmp_path / "model.zarr" / "statistics" / "c"
    store.mkdir(parents=True)
    names = {"old": f"0.{'a' * 32}.partial", "new": f"1.{'b' * 32}.partial", "foreign": "notes.partial"}
    for name in ("old", "foreign"):
        (store / names[name]).touch()
        os.utime(store / names[name], (0, 0))
    with exclusive_lease(url) as lease:
        (store / names["new"]).touch()
        lease.remove_partial_files(url)
    assert sorted(os.listdir(store)) == sorted([names["new"], names["foreign"]])


def test_a_resumed_fit_removes_partial_files(url, tmp_path):
    X, y = np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 2
    FisherNetworkClassifier(20, 2, store=url).fit(X, y)
    store = tmp_path / "model.zarr"
    (store / "manifest" / "files" / "c" / "0").unlink()
    partial = [store / f"zarr.{'a' * 32}.partial", store / "statistics" / f"zarr.{'b' * 32}.partial"]
    for file in partial:
        file.touch()
    FisherNetworkClassifier(20, 2, store=url).fit(X, y)
    assert not any(file.exists() for file in partial)


def test_a_full_disk_leaves_no_empty_lease(small_disk):
    url = str(small_disk / "model.zarr")
    with suppress(OSError), (small_disk / "filler").open("wb", buffering=0) as filler:
        while filler.write(bytes(4096)):
            pass
    with pytest.raises(StoreWriteError, match="No space left on device; free some disk space"), exclusive_lease(url):
        pass
    (small_disk / "filler").unlink()
    with exclusive_lease(url):
        pass
    assert os.listdir(small_disk) == []


def test_an_error_of_the_work_is_raised_even_if_the_release_fails(url, monkeypatch, caplog):
    monkeypatch.setattr(LeaseFile, "remove", lambda _: 1 / 0)
    with pytest.raises(KeyError, match="reason"), exclusive_lease(url):
        raise KeyError("reason")
    assert "could not release the lease" in caplog.text


def test_a_refused_fit_leaves_no_folders(tmp_path):
    store = tmp_path / "a" / "b" / "model.zarr"
    X = np.zeros((10, 3))
    with pytest.raises(ValueError, match="constant"):
        FisherNetworkClassifier(20, 2, store=store).fit(X, np.arange(10) % 2)
    assert os.listdir(tmp_path) == []


def test_a_call_that_lost_its_lease_removes_nothing(url, tmp_path, monkeypatch):
    """Unfinished scores of an array in memory are removed, but not if they may belong to another call."""
    clf = FisherNetworkClassifier(20, 2).fit(np.random.default_rng(0).standard_normal((40, 3)), np.arange(40) % 2)
    other = Lease(url)

    def lose_lease(*_):
        os.utime(lease_file(url), (0, 0))
        other.acquire()
        raise KeyError("anything")

    monkeypatch.setattr(score_graphs, "score", lose_lease)
    with pytest.raises(KeyError, match="anything"):
        fxdask.batch_score(clf, np.zeros((5, 3)), url)
    assert [path for path in tmp_path.iterdir() if ".next-" in path.name]
    other.release()
