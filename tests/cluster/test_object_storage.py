"""Stores and samples at s3:// URLs, on threads and on workers."""

import json
import threading
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import zarr
from command_line import run_here
from distributed import Client
from processes import run_python

import fxdask
from fxdask import FisherNetworkClassifier
from fxdask.errors import ClusterError, StoreExistsError, StoreFormatError, StoreReadError, StoreWriteError
from fxdask.execution import fit as fit_graphs
from fxdask.planning import score_plan
from fxdask.store import transaction
from fxdask.store.lease import Holder, exclusive_lease
from fxdask.store.scores import ScoreStore
from fxdask.store.sources import ZarrAddress, source_of_zarr
from fxdask.store.verify import verify_store
from fxdask.workflows import rank_request

from .conftest import dask_processes
from .object_storage import Proxy, files, free_port, s3_server

# Few nodes and blocks, because every file of a store is a request, which takes the server some ten milliseconds.
NETWORK = {"n_nodes": 60, "n_selected": 1, "nodes_per_block": 20, "keep_projections": "all"}
# The rule with the fewest arrays, where it does not matter which ones a store has.
PLAIN = NETWORK | {"combine": "sum", "keep_projections": "selected"}


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


@pytest.fixture(scope="module")
def plain(data):
    folder, X, y = data
    return FisherNetworkClassifier(**PLAIN, store=folder / "plain.zarr").fit(X, y)


@pytest.fixture
def bucket(server, data):
    """A folder of the bucket that holds only the samples."""
    storage = files()
    if storage.exists("bucket/folder"):
        storage.rm("bucket/folder", recursive=True)
    storage.put(str(data[0] / "X.npy"), "bucket/folder/X.npy")
    storage.put(str(data[0] / "X.zarr"), "bucket/folder/X.zarr", recursive=True)
    return "s3://bucket/folder"


def contents(url):
    """The content of every file of a store, by its name in the store."""
    if "://" not in str(url):
        return {str(file.relative_to(url)): file.read_bytes() for file in Path(url).rglob("*") if file.is_file()}
    storage, path = files(), url.removeprefix("s3://")
    return {name.removeprefix(f"{path}/"): storage.cat(name) for name in storage.find(path)}


def test_an_object_store_gets_the_same_bytes_as_a_disk(bucket, data, local):
    clf = FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.npy", data[2])
    assert contents(f"{bucket}/model.zarr") == contents(local.store_)
    assert np.array_equal(clf.responses(data[1][:3]), local.responses(data[1][:3]))
    scored = fxdask.batch_score(clf, f"{bucket}/X.zarr", f"{bucket}/scored.zarr", data[2])
    assert scored.accuracy == local.score(data[1], data[2])
    group = zarr.open_group(f"{bucket}/scored.zarr", mode="r")
    assert np.array_equal(group["labels"][:], local.predict(data[1]))
    left = {name.split("/")[2] for name in files().find("bucket/folder")}
    assert left == {"X.npy", "X.zarr", "model.zarr", "scored.zarr"}  # no lease is left


def test_an_open_array_is_read_from_its_own_url(bucket, data, local):
    opened = zarr.open_array(f"{bucket}/X.zarr", mode="r")
    assert source_of_zarr(opened) == ZarrAddress(f"{bucket}/X.zarr")
    assert np.array_equal(local.predict(opened), local.predict(data[1]))


def test_workers_write_the_same_bytes(bucket, data, plain, server, tmp_path):
    with dask_processes(tmp_path, **server) as address, Client(address):
        clf = FisherNetworkClassifier(**PLAIN, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.zarr", data[2])
        assert len(clf.fit_info_["blocks_by_process"]) == 2
        assert contents(f"{bucket}/model.zarr") == contents(plain.store_)
        fxdask.batch_score(f"{bucket}/model.zarr", f"{bucket}/X.npy", f"{bucket}/scored.zarr")
    assert np.array_equal(zarr.open_group(f"{bucket}/scored.zarr", mode="r")["labels"][:], plain.predict(data[1]))


@pytest.mark.full
def test_workers_that_cannot_reach_the_endpoint_are_refused(bucket, data, server, tmp_path):
    unreachable = server | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}", "AWS_MAX_ATTEMPTS": "1"}
    with (
        dask_processes(tmp_path, 1, **unreachable) as address,
        Client(address),
        pytest.raises(
            ClusterError, match="cannot reach the samples at s3://.*Could not connect.*the same packages, cred"
        ),
    ):
        FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.zarr", data[2])


def test_an_interrupted_fit_is_resumed(bucket, data, local):
    store = f"{bucket}/model.zarr"
    files().put(local.store_, "bucket/folder/model.zarr", recursive=True)
    for name in ("manifest/files/c/0", "blocks_done/c/1", "projections/c/2/0"):
        files().rm(f"bucket/folder/model.zarr/{name}")
    again = FisherNetworkClassifier(**NETWORK, store=store).fit(data[1], data[2])
    assert again.fit_info_["n_blocks_resumed"] == 1
    assert contents(store) == contents(local.store_)


def test_an_interrupted_scoring_is_resumed(bucket, local, monkeypatch):
    monkeypatch.setattr(score_plan, "BYTES_PER_TASK", 1)
    arguments = (local, f"{bucket}/X.zarr", f"{bucket}/scored.zarr")
    fxdask.batch_score(*arguments)
    whole = contents(f"{bucket}/scored.zarr")
    for name in ("manifest/files/c/0", "labels/c/2"):
        files().rm(f"bucket/folder/scored.zarr/{name}")
    assert fxdask.batch_score(*arguments).n_resumed == 500
    assert contents(f"{bucket}/scored.zarr") == whole


def test_missing_and_damaged_files_are_named(bucket, plain, pytestconfig):
    storage = files()
    storage.put(plain.store_, "bucket/folder/model.zarr", recursive=True)
    others = ("statistics/c/0/0/1",) if pytestconfig.getoption("--full") else ()
    for name in ("selected/weights/c/0/0", "selected/weights/zarr.json", *others):
        path = f"bucket/folder/model.zarr/{name}"
        content = storage.cat(path)
        storage.rm(path)
        with pytest.raises(StoreFormatError, match=f"{name} is missing|{name.partition('/c/')[0]}"):
            fxdask.load(f"{bucket}/model.zarr")
        storage.pipe(path, content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
        with pytest.raises(StoreFormatError, match=name.partition("/c/")[0]):
            fxdask.load(f"{bucket}/model.zarr")
        assert [words.split()[0] for words in verify_store(f"{bucket}/model.zarr").damaged] == [name]
        storage.pipe(path, content)
    assert not verify_store(f"{bucket}/model.zarr").damaged


def test_overwrite_replaces_models_but_no_other_files(bucket, data, plain):
    store = f"{bucket}/model.zarr"
    X, y = data[1:]
    fewer = PLAIN | {"n_nodes": 50}
    files().put(plain.store_, "bucket/folder/model.zarr", recursive=True)
    with pytest.raises(StoreExistsError, match="n_nodes=60 instead of 50; choose another path"):
        FisherNetworkClassifier(**fewer, store=store).fit(X, y)
    files().pipe("bucket/folder/model.zarr/precious.txt", b"mine")
    with pytest.raises(StoreExistsError, match="precious.txt, which fxdask did not write"):
        FisherNetworkClassifier(**fewer, store=store, overwrite=True).fit(X, y)
    files().rm("bucket/folder/model.zarr/precious.txt")
    FisherNetworkClassifier(**fewer, store=store, overwrite=True).fit(X, y)
    assert fxdask.load(store).divergences_.shape == (2, 50)
    assert not verify_store(store).damaged
    assert [name for name in files().ls("bucket/folder", detail=False) if "/." in name] == []


class InterruptedForTestError(Exception):
    """Ends a job at a chosen place."""


def interrupted(*_, **__):
    raise InterruptedForTestError


def test_an_earlier_model_stays_until_the_new_one_is_complete(bucket, data, plain, monkeypatch):
    store, (X, y) = f"{bucket}/model.zarr", data[1:]
    files().put(plain.store_, "bucket/folder/model.zarr", recursive=True)
    other = FisherNetworkClassifier(**PLAIN | {"n_nodes": 50}, store=store, overwrite=True)
    for module, name in ((fit_graphs, "fit_blocks"), (transaction, "begin_group")):
        with monkeypatch.context() as patch:
            patch.setattr(module, name, interrupted)
            with pytest.raises(InterruptedForTestError):
                other.fit(X, y)
        assert np.array_equal(fxdask.load(store).divergences_, plain.divergences_)
    # Interrupted while the new objects are copied: the same call copies them again, and computes nothing.
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "copy_objects", interrupted)
        with pytest.raises(InterruptedForTestError):
            other.fit(X, y)
    with monkeypatch.context() as patch:
        patch.setattr(fit_graphs, "fit_blocks", interrupted)
        other.fit(X, y)
    assert fxdask.load(store).divergences_.shape == (2, 50)
    assert not verify_store(store).damaged
    assert [name for name in files().ls("bucket/folder", detail=False) if "/." in name] == []


def test_earlier_scores_stay_until_the_new_ones_are_complete(bucket, data, plain, monkeypatch):
    out, X = f"{bucket}/scored.parquet", data[1]
    fxdask.batch_score(plain, X[:20], out)
    before = contents(out)
    with monkeypatch.context() as patch:
        patch.setattr(transaction, "remove_table", interrupted)
        with pytest.raises(InterruptedForTestError):
            fxdask.batch_score(plain, X[:30], out, overwrite=True)
    assert contents(out) == before
    assert fxdask.batch_score(plain, X[:40], out, overwrite=True).n_samples == 40
    assert contents(out) != before


def test_a_lease_lets_one_call_work_at_a_time(bucket):
    url = f"{bucket}/model.zarr"
    other = json.loads(Holder.this_call().to_json()) | {"host": "elsewhere", "machine": "elsewhere"}
    files().pipe("bucket/folder/.model.zarr.lease", json.dumps(other | {"renewed": time.time() - 50}).encode())
    with pytest.raises(StoreExistsError, match=r"on elsewhere, last renewed 5\d s ago"), exclusive_lease(url):
        pass
    files().pipe("bucket/folder/.model.zarr.lease", json.dumps(other | {"renewed": time.time() - 61}).encode())
    with exclusive_lease(url) as lease:
        with pytest.raises(StoreExistsError, match="another call"), exclusive_lease(url):
            pass
        lease.check_held()
    assert not files().exists("bucket/folder/.model.zarr.lease")


@pytest.mark.full
def test_a_fit_retries_while_the_server_is_down(bucket, data, local, server, monkeypatch, caplog):
    """The server is down for longer than the S3 client itself retries."""
    proxy = Proxy(int(server["AWS_ENDPOINT_URL"].rpartition(":")[2]))
    proxy.open()
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{proxy.port}")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    files().clear_instance_cache()
    try:
        closed_at = []

        def interrupt():
            while not any("blocks_done/c" in name for name in files().find("bucket/folder/model.zarr")):
                time.sleep(0.01)
            proxy.close()
            closed_at.append(time.monotonic())
            time.sleep(4)
            proxy.open()

        interruption = threading.Thread(target=interrupt)
        interruption.start()
        FisherNetworkClassifier(**NETWORK, store=f"{bucket}/model.zarr").fit(f"{bucket}/X.zarr", data[2])
        ended = time.monotonic()
        interruption.join()
        assert ended - closed_at[0] > 4
    finally:
        proxy.close()
        files().clear_instance_cache()
    assert "retrying" in caplog.text
    monkeypatch.undo()
    assert contents(f"{bucket}/model.zarr") == contents(local.store_)


def test_urls_that_do_not_exist_are_refused_in_one_sentence(bucket, data, local):
    with pytest.raises(StoreReadError, match="could not read the header of s3://missing/m.zarr: The specified bucket"):
        fxdask.load("s3://missing/m.zarr")
    with pytest.raises(StoreFormatError, match="there is no fxdask store at s3://bucket/folder/none.zarr"):
        fxdask.load(f"{bucket}/none.zarr")
    with pytest.raises(ValueError, match="there is no file s3://bucket/folder/none.npy"):
        FisherNetworkClassifier(5, 1).fit(f"{bucket}/none.npy", [0, 1])
    with pytest.raises(ValueError, match="there is no Zarr array at s3://bucket/folder/none"):
        FisherNetworkClassifier(5, 1).fit(f"{bucket}/none", [0, 1])
    with pytest.raises(ValueError, match=r"gopher://a/b cannot be opened \(Protocol not known: gopher"):
        fxdask.load("gopher://a/b")
    with pytest.raises(ValueError, match=r"gopher://a/b cannot be opened \(Protocol not known: gopher"):
        fxdask.batch_score(local, data[1], "gopher://a/b")


def test_a_late_chunk_of_another_job_is_refused(bucket, local, monkeypatch):
    """In an object store, jobs work in place, so late writes of an earlier job must not remain."""
    url = f"{bucket}/scored.zarr"
    earlier = ScoreStore.create(url, 100, 100, np.arange(2), {"job": "a"})
    later = ScoreStore.create(url, 100, 100, np.arange(2), {"job": "b"})
    with pytest.raises(StoreWriteError, match="was replaced by another job while this part was computed"):
        earlier.write_chunk(0, np.zeros(100, int), np.zeros((100, 2)))
    assert later.read_done(0, np.arange(2)) is None
    later.write_chunk(0, np.zeros(100, int), np.zeros((100, 2)))
    assert later.read_done(0, np.arange(2)) is not None


def test_the_command_line_accepts_urls(bucket, data, local, server):
    files().put(str(data[0] / "y.npy"), "bucket/folder/y.npy")
    words = ["fit", f"{bucket}/X.npy", f"{bucket}/y.npy", f"{bucket}/model.zarr", "--nodes", 60, "--selected", 1]
    run = run_here(data[0], *words, "--combine", "sum")
    assert run.returncode == 0, run.stderr
    assert np.array_equal(fxdask.load(f"{bucket}/model.zarr").divergences_, local.divergences_)


WITHOUT_S3 = """
import sys
sys.modules["s3fs"] = None
import fxdask
for call in (fxdask.load, lambda url: fxdask.FisherNetworkClassifier(5).fit(url, [0])):
    try:
        call("s3://bucket/a.npy")
    except Exception as error:
        print(error)
"""


def test_a_missing_s3_package_is_reported_with_its_install_command():
    status, out, errors = run_python("-c", WITHOUT_S3)
    assert status == 0, errors
    lines = out.splitlines()
    assert len(lines) == 2
    for line in lines:
        assert "s3://bucket/a.npy" in line
        assert "needs a package that is not installed" in line
        assert line.endswith("pip install 'fxdask[s3]'")


def test_parquet_is_read_from_and_written_to_the_bucket(bucket, data, local):
    folder, X, y = data
    names = list("abcde")
    frame = pd.DataFrame(X, columns=names).assign(id=np.arange(600), y=y)
    (folder / "table").mkdir()
    for part in (0, 1):
        frame[300 * part : 300 * (part + 1)].to_parquet(folder / "table" / f"{part}.parquet", row_group_size=90)
    files().put(str(folder / "table"), "bucket/folder/table", recursive=True)
    train = fxdask.table(f"{bucket}/table", names)
    clf = FisherNetworkClassifier(**NETWORK | {"keep_projections": "selected"}).fit(train, "y")
    assert np.array_equal(clf.divergences_, local.divergences_)
    out = f"{bucket}/scored.parquet"
    result = fxdask.batch_score(clf, f"{bucket}/table", out, "y", id_columns=["id"])
    assert result.accuracy == local.score(X, y)
    scored = pd.read_parquet(out)
    assert scored["id"].tolist() == frame["id"].tolist()
    assert scored["label"].tolist() == local.predict(X).tolist()
    with pytest.raises(StoreExistsError, match="already holds a finished"):
        fxdask.batch_score(clf, f"{bucket}/table", out)
    fxdask.batch_score(clf, f"{bucket}/table", out, overwrite=True)
    assert sorted(contents(out)) == ["_SUCCESS", "_fxdask.json", "scores-00000.parquet"]


def test_a_ranking_is_copied_by_columns_and_stored_in_the_bucket(bucket, data, monkeypatch):
    _, X, y = data
    expected = fxdask.rank_features(X, y, ["extended_fisher"])
    monkeypatch.setattr(rank_request, "SMALL", 0)
    found = fxdask.rank_features(f"{bucket}/X.zarr", y, ["extended_fisher"], store=f"{bucket}/ranking.zarr")
    assert found.info["plan"]["row_ranges_copied"] == 1
    assert found.scores["extended_fisher"].tobytes() == expected.scores["extended_fisher"].tobytes()
    assert not verify_store(f"{bucket}/ranking.zarr").damaged
    assert not files().exists("bucket/folder/ranking.zarr/staged")
