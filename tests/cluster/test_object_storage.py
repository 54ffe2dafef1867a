"""Stores and samples at s3://, on threads and on workers."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import zarr
from command_line import run_here
from distributed import Client

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import ClusterError, StoreExistsError, StoreFormatError, StoreReadError, StoreWriteError
from fxdask.planning import score_plan
from fxdask.store.lease import Holder, exclusive_lease
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import ZarrAddress, source_of_zarr
from fxdask.store.verify import verify_store

from .conftest import dask_processes
from .object_storage import Door, files, free_port, s3_server

NETWORK = {"n_nodes": 120, "n_selected": 3, "nodes_per_block": 30, "keep_projections": "all"}


@pytest.fixture(scope="module")
def server():
    with s3_server() as environment, pytest.MonkeyPatch.context() as patch:
        for name, value in environment.items():
            patch.setenv(name, value)
        files().mkdir("bucket")
        yield environment


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    X = np.random.default_rng(0).standard_normal((600, 5)).astype(np.float32)
    X[::2] *= 2
    folder = tmp_path_factory.mktemp("data")
    np.save(folder / "X.npy", X)
    np.save(folder / "y.npy", np.arange(600) % 2)
    zarr.create_array(folder / "X.zarr", data=X, chunks=(100, 5))
    return folder, X, np.arange(600) % 2


@pytest.fixture(scope="module")
def local(data):
    folder, X, y = data
    clf = FisherNetworkClassifier(**NETWORK, store=folder / "model.zarr").fit(X, y)
    fxdask.batch_score(clf, folder / "X.zarr", folder / "scored.zarr")
    return clf


@pytest.fixture
def bucket(server, data):
    """An empty place with the samples in it."""
    there = files()
    if there.exists("bucket/here"):
        there.rm("bucket/here", recursive=True)
    there.put(str(data[0] / "X.npy"), "bucket/here/X.npy")
    there.put(str(data[0] / "X.zarr"), "bucket/here/X.zarr", recursive=True)
    return "s3://bucket/here"


def contents(place):
    """Every file of a store by its name in it."""
    if "://" not in str(place):
        return {str(file.relative_to(place)): file.read_bytes() for file in Path(place).rglob("*") if file.is_file()}
    there, path = files(), place.removeprefix("s3://")
    return {name.removeprefix(f"{path}/"): there.cat(name) for name in there.find(path)}


def test_the_same_bytes_as_on_a_disk(bucket, data, local):
    clf = FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.npy", data[2])
    assert contents(f"{bucket}/model.zarr") == contents(local.store_)
    assert np.array_equal(fxdask.load(f"{bucket}/model.zarr").predict(data[1]), local.predict(data[1]))
    assert np.array_equal(clf.responses(data[1][:3]), local.responses(data[1][:3]))
    assert not verify_store(f"{bucket}/model.zarr").damaged
    scored = fxdask.batch_score(clf, f"{bucket}/X.zarr", f"{bucket}/scored.zarr", data[2])
    assert scored.accuracy == local.score(data[1], data[2])
    group = zarr.open_group(f"{bucket}/scored.zarr", mode="r")
    assert np.array_equal(group["labels"][:], local.predict(data[1]))
    left = {name.split("/")[2] for name in files().find("bucket/here")}
    assert left == {"X.npy", "X.zarr", "model.zarr", "scored.zarr"}  # no lease stays


def test_an_open_array_is_read_where_it_is(bucket, data, local):
    opened = zarr.open_array(f"{bucket}/X.zarr", mode="r")
    assert source_of_zarr(opened) == ZarrAddress(f"{bucket}/X.zarr")
    assert np.array_equal(local.predict(opened), local.predict(data[1]))


def test_on_workers(bucket, data, local, server, tmp_path):
    with dask_processes(tmp_path, **server) as address, Client(address):
        clf = FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.zarr", data[2])
        assert len(clf.fit_info_["blocks_by_process"]) == 2
        assert contents(f"{bucket}/model.zarr") == contents(local.store_)
        fxdask.batch_score(f"{bucket}/model.zarr", f"{bucket}/X.npy", f"{bucket}/scored.zarr")
    assert np.array_equal(zarr.open_group(f"{bucket}/scored.zarr", mode="r")["labels"][:], local.predict(data[1]))


@pytest.mark.full
def test_workers_that_are_not_led_there_are_found_out(bucket, data, server, tmp_path):
    elsewhere = server | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_MAX_ATTEMPTS": "1"}
    with (
        dask_processes(tmp_path, 1, **elsewhere) as address,
        Client(address),
        pytest.raises(
            ClusterError, match="cannot see the samples at s3://.*Could not connect.*the same packages, cred"
        ),
    ):
        FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.zarr", data[2])


def test_an_interrupted_fit_goes_on(bucket, data, local):
    store = f"{bucket}/model.zarr"
    files().put(local.store_, "bucket/here/model.zarr", recursive=True)
    for name in ("manifest/c/0", "blocks_done/c/2", "projections/c/3/0"):
        files().rm(f"bucket/here/model.zarr/{name}")
    again = FisherNetworkClassifier(**NETWORK, store=store).fit(data[1], data[2])
    assert again.fit_info_["n_blocks_resumed"] == 2
    assert contents(store) == contents(local.store_)


def test_an_interrupted_scoring_goes_on(bucket, local, monkeypatch):
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    arguments = (local, f"{bucket}/X.zarr", f"{bucket}/scored.zarr")
    fxdask.batch_score(*arguments)
    whole = contents(f"{bucket}/scored.zarr")
    for name in ("manifest/c/0", "labels/c/2"):
        files().rm(f"bucket/here/scored.zarr/{name}")
    assert fxdask.batch_score(*arguments).n_resumed == 500
    assert contents(f"{bucket}/scored.zarr") == whole


def test_damage_is_named(bucket, local):
    there = files()
    there.put(local.store_, "bucket/here/model.zarr", recursive=True)
    for name in ("selected/weights/c/0/0", "selected/weights/zarr.json", "statistics/c/0/0/1"):
        place = f"bucket/here/model.zarr/{name}"
        content = there.cat(place)
        there.rm(place)
        with pytest.raises(StoreFormatError, match=f"{name} is missing|{name.partition('/c/')[0]}"):
            fxdask.load(f"{bucket}/model.zarr")
        there.pipe(place, content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        with pytest.raises(StoreFormatError, match=name.partition("/c/")[0]):
            fxdask.load(f"{bucket}/model.zarr")
        assert [words.split()[0] for words in verify_store(f"{bucket}/model.zarr").damaged] == [name]
        there.pipe(place, content)
    assert not verify_store(f"{bucket}/model.zarr").damaged


def test_what_is_replaced_and_what_is_not(bucket, data):
    store = f"{bucket}/model.zarr"
    X, y = data[1:]
    FisherNetworkClassifier(50, 2, store=store).fit(X, y)
    with pytest.raises(StoreExistsError, match="n_nodes=50 instead of 60; choose another path"):
        FisherNetworkClassifier(60, 2, store=store).fit(X, y)
    files().pipe("bucket/here/model.zarr/precious.txt", b"mine")
    with pytest.raises(StoreExistsError, match="precious.txt, which fxdask did not write"):
        FisherNetworkClassifier(60, 2, store=store, overwrite=True).fit(X, y)
    files().rm("bucket/here/model.zarr/precious.txt")
    FisherNetworkClassifier(60, 2, store=store, overwrite=True).fit(X, y)
    assert fxdask.load(store).divergences_.shape == (2, 60)


def test_one_call_at_a_time(bucket):
    url = f"{bucket}/model.zarr"
    other = json.loads(Holder.this_call().to_json()) | {"host": "elsewhere", "machine": "elsewhere"}
    files().pipe("bucket/here/.model.zarr.lease", json.dumps(other | {"renewed": time.time() - 50}).encode())
    with pytest.raises(StoreExistsError, match=r"on elsewhere, last renewed 5\d s ago"), exclusive_lease(url):
        pass
    files().pipe("bucket/here/.model.zarr.lease", json.dumps(other | {"renewed": time.time() - 61}).encode())
    with exclusive_lease(url) as lease:
        with pytest.raises(StoreExistsError, match="another call"), exclusive_lease(url):
            pass
        lease.check_held()
    assert not files().exists("bucket/here/.model.zarr.lease")


@pytest.mark.full
def test_a_server_that_is_away_for_a_while_is_waited_for(bucket, data, local, server, monkeypatch, caplog):
    """Longer than the S3 client itself waits."""
    door = Door(int(server["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    door.open()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{door.port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    files().clear_instance_cache()
    try:
        shut_at = []

        def interrupt():
            while not any("blocks_done/c" in name for name in files().find("bucket/here/model.zarr")):
                time.sleep(0.01)
            door.shut()
            shut_at.append(time.monotonic())
            time.sleep(4)
            door.open()

        cut = threading.Thread(target=interrupt)
        cut.start()
        FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.zarr", data[2])
        ended = time.monotonic()
        cut.join()
        assert ended - shut_at[0] > 4
    finally:
        door.shut()
        files().clear_instance_cache()
    assert "retrying" in caplog.text
    monkeypatch.undo()
    assert contents(f"{bucket}/model.zarr") == contents(local.store_)


def test_places_that_are_not_there_are_one_sentence(bucket, data, local):
    with pytest.raises(StoreReadError, match="could not read the header of s3://nobody/m.zarr: The specified bucket"):
        fxdask.load("s3://nobody/m.zarr")
    with pytest.raises(StoreFormatError, match="there is no fxdask store at s3://bucket/here/none.zarr"):
        fxdask.load(f"{bucket}/none.zarr")
    with pytest.raises(ValueError, match="there is no file s3://bucket/here/none.npy"):
        FisherNetworkClassifier(5, 1).fit(f"{bucket}/none.npy", [0, 1])
    with pytest.raises(ValueError, match="there is no Zarr array at s3://bucket/here/none"):
        FisherNetworkClassifier(5, 1).fit(f"{bucket}/none", [0, 1])
    with pytest.raises(ValueError, match=r"gopher://a/b cannot be opened \(Protocol not known: gopher"):
        fxdask.load("gopher://a/b")
    with pytest.raises(ValueError, match=r"gopher://a/b cannot be opened \(Protocol not known: gopher"):
        fxdask.batch_score(local, data[1], "gopher://a/b")


def test_a_late_chunk_of_another_job_is_refused(bucket, local, monkeypatch):
    """In an object store jobs work in place: what the one that was there before still writes must not stay."""
    place = f"{bucket}/scored.zarr"
    earlier = ScoreStore.create(place, 100, 100, np.arange(2), {"job": "a"})
    later = ScoreStore.create(place, 100, 100, np.arange(2), {"job": "b"})
    with pytest.raises(StoreWriteError, match="was replaced by another job while this part was computed"):
        earlier.write(0, np.zeros(100, int), np.zeros((100, 2)))
    assert later.read_done(0, np.arange(2)) is None
    later.write(0, np.zeros(100, int), np.zeros((100, 2)))
    assert later.read_done(0, np.arange(2)) is not None


def test_the_command_line(bucket, data, local, server):
    files().put(str(data[0] / "y.npy"), "bucket/here/y.npy")
    words = ["fit", f"{bucket}/X.npy", f"{bucket}/y.npy", f"{bucket}/model.zarr", "--nodes", "120", "--selected", "3"]
    run = run_here(data[0], *words)
    assert run.returncode == 0, run.stderr
    assert np.array_equal(fxdask.load(f"{bucket}/model.zarr").divergences_, local.divergences_)


WITHOUT_S3 = """
import sys
sys.modules["s3fs"] = None
import fxdask
for call in (fxdask.load, lambda place: fxdask.FisherNetworkClassifier(5).fit(place, [0])):
    try:
        call("s3://bucket/a.npy")
    except Exception as error:
        print(error)
"""


def test_without_the_package_for_s3():
    run = subprocess.run([sys.executable, "-c", WITHOUT_S3], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "s3://bucket/a.npy" in line
        assert "needs a package that is not here" in line
        assert line.endswith("pip install 'fxdask[s3]'")
