"""Connecting by address or scheduler file, with or without TLS, and the checks of the workers."""

import json
import os
import shutil
import socket
import subprocess
import threading
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import trustme
from command_line import run_here
from distributed.security import Security

import fxdask
from fxdask.errors import ClusterError, VersionMismatchWarning
from fxdask.execution import connection
from fxdask.execution.connection import connected

from .conftest import dask_processes

CAN_HIDE_FOLDERS = (
    shutil.which("unshare") is not None
    and subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode == 0
)
RNG = np.random.default_rng(0)
X = RNG.standard_normal((300, 8)).astype(np.float32)
Y = np.arange(300) % 2


def issued(folder, name, authority, **dates):
    """The files of a certificate for this machine and of its key."""
    made = authority.issue_cert("127.0.0.1", "localhost", **dates)
    cert, key = folder / f"{name}-cert.pem", folder / f"{name}-key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return cert, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """(ca, cert, key) by name: a valid set, two with certificates of another authority, and an expired one."""
    folder = tmp_path_factory.mktemp("certificates")
    own, other = trustme.CA(), trustme.CA()
    own.cert_pem.write_to_path(folder / "ca.pem")
    other.cert_pem.write_to_path(folder / "other-ca.pem")
    past = datetime.now(UTC) - timedelta(days=2)
    old = {"not_before": past - timedelta(days=2), "not_after": past}
    return {
        "valid": (folder / "ca.pem", *issued(folder, "valid", own)),
        "of another authority": (folder / "other-ca.pem", *issued(folder, "other", other)),
        "signed by another authority": (folder / "ca.pem", *issued(folder, "signed", other)),
        "expired": (folder / "ca.pem", *issued(folder, "expired", own, **old)),
    }


@pytest.fixture(scope="module")
def secured(certificates, tmp_path_factory):
    ca, cert, key = map(str, certificates["valid"])
    security = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
    folder = tmp_path_factory.mktemp("secured")
    with dask_processes(folder, 1, certificates["valid"], security) as address:
        yield address


def tls(files):
    return dict(zip(("tls_ca_file", "tls_cert", "tls_key"), map(str, files), strict=True))


def test_a_fit_over_tls_gives_the_same_values(secured, certificates, tmp_path):
    assert secured.startswith("tls://")
    want = fxdask.FisherNetworkClassifier(100, 3).fit(X, Y)
    with connected(secured, **tls(certificates["valid"])):
        got = fxdask.FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(X, Y)
    assert np.array_equal(got.divergences_, want.divergences_)
    assert set(got.fit_info_["blocks_by_process"]) != {f"{os.uname().nodename}:{os.getpid()}"}


@pytest.mark.parametrize("name", ["of another authority", "signed by another authority", "expired"])
def test_invalid_certificates_are_refused(secured, certificates, monkeypatch, name):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 3)
    with (
        pytest.raises(ClusterError, match=f"no Dask scheduler answers at {secured}"),
        connected(secured, **tls(certificates[name])),
    ):
        pass


def test_a_tls_scheduler_refuses_plain_tcp(secured, monkeypatch):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 3)
    plain = secured.replace("tls://", "tcp://")
    with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {plain}"), connected(plain):
        pass


def test_connecting_takes_no_longer_than_the_timeout():
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"tcp://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ClusterError, match="no answer within 1.5 s"), connected(address, timeout="1500ms"):
            pass


@pytest.mark.parametrize("reply", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
def test_a_server_that_is_not_a_scheduler_is_refused(monkeypatch, reply):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        accepted = []

        def answer():
            accepted.append(server.accept()[0])
            accepted[0].sendall(reply)

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {address}"), connected(address):
            pass
        accepted[0].close()


def test_a_tcp_address_with_certificates_is_refused_with_a_remedy(secured, certificates, monkeypatch):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 3)
    plain = secured.replace("tls://", "tcp://")
    with (
        pytest.raises(ClusterError, match="with TLS files, use an address that begins with tls://"),
        connected(plain, **tls(certificates["valid"])),
    ):
        pass


def test_the_command_line_accepts_certificates(secured, certificates, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    names = ("--tls-ca-file", "--tls-cert", "--tls-key")
    files = [word for pair in zip(names, map(str, certificates["valid"]), strict=True) for word in pair]
    words = ["fit", "X.npy", "y.npy", "model.zarr", "--nodes", "100", "--selected", "3", "--json", "--quiet"]
    run = run_here(tmp_path, *words, "--scheduler", secured, *files)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["fit"]["n_blocks"] == 1


def test_a_scheduler_file_gives_the_address(tmp_path):
    with dask_processes(tmp_path, 1) as address, connected(scheduler_file=str(tmp_path / "scheduler.json")) as client:
        assert client.scheduler.address == address


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"address": "tcp://127.0.0.1:1", "scheduler_file": "file"},
            "both an address and a scheduler file were given; give only one",
        ),
        (
            {"address": "tls://127.0.0.1:1", "tls_cert": "file"},
            "TLS needs 3 files but only 1 was given; also give tls_ca_file, tls_key",
        ),
        ({"tls_ca_file": "a", "tls_cert": "b", "tls_key": "c"}, "TLS files were given without a scheduler"),
        ({"scheduler_file": "nowhere.json"}, "there is no file nowhere.json"),
        (
            {"address": "tls://127.0.0.1:1", "tls_ca_file": "a", "tls_cert": "b", "tls_key": "c"},
            "there is no file a",
        ),
    ],
)
def test_arguments_that_contradict_each_other_are_refused(arguments, message):
    with pytest.raises(ClusterError, match=message), connected(**arguments):
        pass


@pytest.mark.parametrize("content", ["", "{}", "[]", "tcp://127.0.0.1:1"])
def test_a_file_that_is_not_a_scheduler_file_is_refused(tmp_path, content):
    file = tmp_path / "scheduler.json"
    file.write_text(content)
    with pytest.raises(ClusterError, match="is not a scheduler file"), connected(scheduler_file=str(file)):
        pass


@pytest.fixture
def faked_version(tmp_path):
    """A function that makes a PYTHONPATH folder with which a package is missing or has another version."""

    def fake(name, version=None):
        code = (
            "import importlib.metadata as m\n"
            "_found = m.version\n"
            "def version(name):\n"
            f"    if name == {name!r}:\n"
            + (f"        return {version!r}\n" if version else "        raise m.PackageNotFoundError(name)\n")
            + "    return _found(name)\n"
            "m.version = version\n"
        )
        folder = tmp_path / "faked"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        # Before what is there already, so that the workers load the same fxdask as this process.
        return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])

    return fake


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, f"has no fxdask; install it where the workers run: pip install fxdask=={fxdask.__version__}"),
        ("0.0.1", f"has fxdask 0.0.1 but this process has {fxdask.__version__}; install the same version on both"),
    ],
)
def test_workers_without_this_version_of_fxdask_are_refused(faked_version, tmp_path, version, message):
    with (
        dask_processes(tmp_path, 1, PYTHONPATH=faked_version("fxdask", version)) as address,
        connected(address),
        pytest.raises(ClusterError, match=message),
    ):
        fxdask.FisherNetworkClassifier(100, 3).fit(X, Y)


def test_other_library_versions_on_workers_give_a_warning(faked_version, tmp_path):
    with (
        dask_processes(tmp_path, 1, PYTHONPATH=faked_version("scipy", "1.0.0")) as address,
        connected(address),
        pytest.warns(VersionMismatchWarning, match=r"has scipy 1.0.0 instead of .*: results may differ"),
    ):
        fxdask.FisherNetworkClassifier(100, 3).fit(X, Y)


HIDE = 'mount -t tmpfs hidden "$0" && exec "$@"'


@pytest.mark.skipif(
    not CAN_HIDE_FOLDERS, reason="hiding a folder from a worker needs a mount namespace, which needs root"
)
@pytest.mark.parametrize(("hidden", "what"), [("stores", "the store"), ("data", "the samples")])
def test_paths_that_a_worker_cannot_reach_are_refused(tmp_path, hidden, what):
    for name in ("stores", "data", "cluster"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "data" / "X.npy", X)
    hide = ["unshare", "--mount", "sh", "-c", HIDE, str(tmp_path / hidden)]
    with dask_processes(tmp_path / "cluster", 1, before_worker=hide) as address, connected(address):
        clf = fxdask.FisherNetworkClassifier(100, 3, store=tmp_path / "stores" / "model.zarr")
        with pytest.raises(ClusterError, match=f"cannot reach {what} at .*; put it on a disk that all workers share"):
            clf.fit(tmp_path / "data" / "X.npy", Y)
