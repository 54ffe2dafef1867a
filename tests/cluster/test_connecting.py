"""Connecting: by address or file, with certificates or without, to workers that can do the work or cannot."""

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
    """A certificate for this machine and its key, in files."""
    made = authority.issue_cert("127.0.0.1", "localhost", **dates)
    cert, key = folder / f"{name}-cert.pem", folder / f"{name}-key.pem"
    cert.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return cert, key


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """By name (ca, cert, key): a good set, one of a foreign authority, and an expired one."""
    folder = tmp_path_factory.mktemp("certificates")
    ours, foreign = trustme.CA(), trustme.CA()
    ours.cert_pem.write_to_path(folder / "ca.pem")
    foreign.cert_pem.write_to_path(folder / "foreign-ca.pem")
    past = datetime.now(UTC) - timedelta(days=2)
    old = {"not_before": past - timedelta(days=2), "not_after": past}
    return {
        "good": (folder / "ca.pem", *issued(folder, "good", ours)),
        "foreign": (folder / "foreign-ca.pem", *issued(folder, "foreign", foreign)),
        "signed by another": (folder / "ca.pem", *issued(folder, "other", foreign)),
        "expired": (folder / "ca.pem", *issued(folder, "expired", ours, **old)),
    }


@pytest.fixture(scope="module")
def secured(certificates, tmp_path_factory):
    ca, cert, key = map(str, certificates["good"])
    security = Security(tls_ca_file=ca, tls_client_cert=cert, tls_client_key=key, require_encryption=True)
    folder = tmp_path_factory.mktemp("secured")
    with dask_processes(folder, 1, certificates["good"], security) as address:
        yield address


def tls(files):
    return dict(zip(("tls_ca_file", "tls_cert", "tls_key"), map(str, files), strict=True))


def test_a_good_certificate_works(secured, certificates, tmp_path):
    assert secured.startswith("tls://")
    want = fxdask.FisherNetworkClassifier(100, 3).fit(X, Y)
    with connected(secured, **tls(certificates["good"])):
        got = fxdask.FisherNetworkClassifier(100, 3, store=tmp_path / "model.zarr").fit(X, Y)
    assert np.array_equal(got.divergences_, want.divergences_)
    assert set(got.fit_info_["blocks_by_process"]) != {f"{os.uname().nodename}:{os.getpid()}"}


@pytest.mark.parametrize("name", ["foreign", "signed by another", "expired"])
def test_other_certificates_are_refused(secured, certificates, monkeypatch, name):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 3)
    with (
        pytest.raises(ClusterError, match=f"no Dask scheduler answers at {secured}"),
        connected(secured, **tls(certificates[name])),
    ):
        pass


def test_plain_tcp_is_refused(secured, monkeypatch):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 3)
    plain = secured.replace("tls://", "tcp://")
    with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {plain}"), connected(plain):
        pass


@pytest.mark.parametrize("says", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"])
def test_somebody_else_who_takes_the_connection(monkeypatch, says):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        heard = []

        def answer():
            heard.append(server.accept()[0])
            heard[0].sendall(says)

        threading.Thread(target=answer, daemon=True).start()
        address = f"tcp://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(ClusterError, match=f"no Dask scheduler answers at {address}"), connected(address):
            pass
        heard[0].close()


def test_a_plain_address_with_certificates(secured, certificates, monkeypatch):
    monkeypatch.setattr(connection, "SECONDS_TO_CONNECT", 3)
    plain = secured.replace("tls://", "tcp://")
    with (
        pytest.raises(ClusterError, match="with TLS files the address begins with tls://"),
        connected(plain, **tls(certificates["good"])),
    ):
        pass


def test_certificates_from_the_command_line(secured, certificates, tmp_path):
    np.save(tmp_path / "X.npy", X)
    np.save(tmp_path / "y.npy", Y)
    names = ("--tls-ca-file", "--tls-cert", "--tls-key")
    files = [word for pair in zip(names, map(str, certificates["good"]), strict=True) for word in pair]
    words = ["fit", "X.npy", "y.npy", "model.zarr", "--nodes", "100", "--selected", "3", "--json", "--quiet"]
    run = run_here(tmp_path, *words, "--scheduler", secured, *files)
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout)["fit"]["n_blocks"] == 1


def test_by_the_file_that_the_scheduler_wrote(tmp_path):
    with dask_processes(tmp_path, 1) as address, connected(scheduler_file=str(tmp_path / "scheduler.json")) as client:
        assert client.scheduler.address == address


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"address": "tcp://127.0.0.1:1", "scheduler_file": "file"}, "by its address or by its file, not by both"),
        ({"address": "tls://127.0.0.1:1", "tls_cert": "file"}, "TLS needs three files, of which tls_ca_file, tls_key"),
        ({"tls_ca_file": "a", "tls_cert": "b", "tls_key": "c"}, "of no use without the address of a scheduler"),
        ({"scheduler_file": "nowhere.json"}, "there is no file nowhere.json"),
        (
            {"address": "tls://127.0.0.1:1", "tls_ca_file": "a", "tls_cert": "b", "tls_key": "c"},
            "there is no file a",
        ),
    ],
)
def test_words_that_do_not_fit_together(words, message):
    with pytest.raises(ClusterError, match=message), connected(**words):
        pass


@pytest.mark.parametrize("content", ["", "{}", "[]", "tcp://127.0.0.1:1"])
def test_a_file_that_no_scheduler_wrote(tmp_path, content):
    file = tmp_path / "scheduler.json"
    file.write_text(content)
    with pytest.raises(ClusterError, match="is no scheduler file of Dask"), connected(scheduler_file=str(file)):
        pass


@pytest.fixture
def bare_python(tmp_path):
    """Installed packages as a worker may have them: all but fxdask, or other versions, by folders put in front."""

    def hide(name, version=None):
        """A finder of packages that does not see this one, or sees another version of it."""
        code = (
            "import importlib.metadata as m\n"
            "_found = m.version\n"
            "def version(name):\n"
            f"    if name == {name!r}:\n"
            + (f"        return {version!r}\n" if version else "        raise m.PackageNotFoundError(name)\n")
            + "    return _found(name)\n"
            "m.version = version\n"
        )
        folder = tmp_path / "front"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(code)
        return str(folder)

    return hide


@pytest.mark.parametrize(
    ("version", "message"),
    [
        (None, f"has no fxdask; install it where the workers run: pip install fxdask=={fxdask.__version__}"),
        ("0.0.1", f"has fxdask 0.0.1 but this process has {fxdask.__version__}; install the same version on both"),
    ],
)
def test_workers_without_this_fxdask_are_found_out(bare_python, tmp_path, version, message):
    front = bare_python("fxdask", version)
    with (
        dask_processes(tmp_path, 1, PYTHONPATH=front) as address,
        connected(address),
        pytest.raises(ClusterError, match=message),
    ):
        fxdask.FisherNetworkClassifier(100, 3).fit(X, Y)


def test_other_libraries_are_told_in_one_sentence(bare_python, tmp_path):
    front = bare_python("scipy", "1.0.0")
    with (
        dask_processes(tmp_path, 1, PYTHONPATH=front) as address,
        connected(address),
        pytest.warns(VersionMismatchWarning, match=r"has scipy 1.0.0 instead of .*: results may differ"),
    ):
        fxdask.FisherNetworkClassifier(100, 3).fit(X, Y)


HIDE = 'mount -t tmpfs hidden "$0" && exec "$@"'


@pytest.mark.skipif(not CAN_HIDE_FOLDERS, reason="hiding a folder from a worker needs a mount namespace, that is root")
@pytest.mark.parametrize(("hidden", "what"), [("stores", "the store"), ("data", "the samples")])
def test_places_that_a_worker_cannot_see(tmp_path, hidden, what):
    for name in ("stores", "data", "cluster"):
        (tmp_path / name).mkdir()
    np.save(tmp_path / "data" / "X.npy", X)
    elsewhere = ["unshare", "--mount", "sh", "-c", HIDE, str(tmp_path / hidden)]
    with dask_processes(tmp_path / "cluster", 1, before_worker=elsewhere) as address, connected(address):
        clf = fxdask.FisherNetworkClassifier(100, 3, store=tmp_path / "stores" / "model.zarr")
        with pytest.raises(ClusterError, match=f"cannot see {what} at .*; put it on a disk that all workers share"):
            clf.fit(tmp_path / "data" / "X.npy", Y)
