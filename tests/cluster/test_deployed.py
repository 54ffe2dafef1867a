"""The commands and scripts of deploy/, run as processes on loopback."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager

import dask
import numpy as np
import psutil
import pytest
import zarr
from deploy.deployment import DEPLOY, ROOT, commands, edited_script, healthcheck, script, shell_blocks

from fxdask.errors import ClusterError
from fxdask.execution.connection import connected

SECONDS = 90


@pytest.fixture
def data(tmp_path):
    """A folder with samples and labels, like /data in a container."""
    rng = np.random.default_rng(0)
    folder = tmp_path / "data"
    folder.mkdir()
    np.save(folder / "X.npy", rng.standard_normal((400, 8)).astype(np.float32))
    np.save(folder / "y.npy", np.arange(400) % 2)
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, what):
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)


@contextmanager
def process(words, folder, log="log", **environment):
    """Run a process during the context; its output goes to a file."""
    with (folder / log).open("w") as output:
        started = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **environment}, stdout=output, stderr=subprocess.STDOUT
        )
        try:
            yield started
        finally:
            started.kill()
            started.wait()


def local_command(words, changes):
    """A container's command for this machine: this Python, and other ports and folders."""
    programs = {"dask": [sys.executable, "-m", "dask"], "fxdask": [sys.executable, "-m", "fxdask"]}
    rest = list(words[1:])
    for old, new in changes.items():
        rest = [word.replace(old, new) for word in rest]
    return programs[words[0]] + rest


def is_open(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", int(port))) == 0


def is_healthy(port):
    """The result of the image's health check for another port."""
    program, *words = healthcheck()
    assert program == "python"
    words = [word.replace("8787", str(port)) for word in words]
    return subprocess.run([sys.executable, *words], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("way", ["compose", pytest.param("kubernetes", marks=pytest.mark.full)])
def test_commands_and_health_check_of_the_containers(way, data, tmp_path):
    """The file's commands for scheduler, worker and job work, and the health check reports when each has ended."""
    parts = commands(way)
    port, scheduler_health, worker_health = (str(free_port()) for _ in range(3))
    address = f"tcp://127.0.0.1:{port}"
    moved = {"tcp://scheduler:8786": address, "tcp://fxdask-scheduler:8786": address, "8786": port}
    moved |= {"/tmp": str(tmp_path), "/data": str(data), "$(DASK_WORKER_NAME)": "one"}
    loopback = ["--host", "127.0.0.1"]
    with ExitStack() as stack:
        scheduler_words = local_command(parts["scheduler"], moved | {":8787": f"127.0.0.1:{scheduler_health}"})
        scheduler = stack.enter_context(process([*scheduler_words, *loopback], tmp_path, "scheduler.log"))
        wait_until(lambda: is_open(scheduler_health) and is_healthy(scheduler_health), "the scheduler is healthy")
        assert not is_healthy(worker_health)
        worker_words = local_command(parts["worker"], moved | {":8787": f"127.0.0.1:{worker_health}"})
        # The Dask operator passes the scheduler's address in this variable; compose passes it in the command.
        named = {"DASK_SCHEDULER_ADDRESS": address} if way == "kubernetes" else {}
        worker = stack.enter_context(process([*worker_words, *loopback], tmp_path, "worker.log", **named))
        wait_until(lambda: is_open(worker_health) and is_healthy(worker_health), "the worker is healthy")
        wait_until(lambda: "Registered to" in (tmp_path / "worker.log").read_text(), "the worker is connected")
        subprocess.run(local_command(parts["job"], moved), check=True, capture_output=True, timeout=SECONDS)
        for part, health in ((worker, worker_health), (scheduler, scheduler_health)):
            part.terminate()
            part.wait(timeout=SECONDS)
            assert not is_healthy(health)
    assert zarr.open_group(data / "model.zarr")["selection"].shape == (2, 10)


# --- Slurm, replaced by scripts that start each job at once as a process of this machine ---

SBATCH = """#!/usr/bin/env bash
cp "$1" "$STAND_IN/$$.sh" # a copy, because the caller deletes the original
setsid bash "$STAND_IN/$$.sh" </dev/null >"$STAND_IN/$$.log" 2>&1 &
touch "$STAND_IN/job-$!"
echo "Submitted batch job $!"
"""
SCANCEL = """#!/usr/bin/env bash
for job; do kill -- "-$job"; done
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """A function that returns the numbers of all submitted jobs."""
    folder = tmp_path / "slurm"
    folder.mkdir()
    for name, text in (("sbatch", SBATCH), ("scancel", SCANCEL)):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("STAND_IN", str(folder))

    def submitted():
        return [int(file.name.removeprefix("job-")) for file in sorted(folder.glob("job-*"))]

    yield submitted
    for job in submitted():
        if is_running(job):
            os.killpg(job, signal.SIGKILL)


def is_running(number):
    try:
        return psutil.Process(number).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_the_slurm_script_fits_and_ends_its_jobs(slurm, data, tmp_path):
    done = subprocess.run(
        edited_script(data, tmp_path, queue="local"),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert f"{data / 'model.zarr'} is complete" in done.stdout
    assert zarr.open_group(data / "model.zarr")["selection"].shape == (2, 10)
    assert len(slurm()) == 2
    wait_until(lambda: not any(is_running(job) for job in slurm()), "all jobs have ended")
    assert sorted(path.name for path in data.iterdir()) == ["X.npy", "model.zarr", "slurm-logs", "y.npy"]


@pytest.mark.full
def test_the_example_for_slurm_fits_on_its_jobs(slurm, tmp_path):
    """The short program that users copy, with the same commands instead of Slurm's."""
    words = [sys.executable, ROOT / "scripts" / "examples" / "slurm.py", tmp_path / "shared"]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=SECONDS)
    assert done.returncode == 0, done.stderr
    assert "% right" in done.stdout
    assert len(slurm()) == 2
    wait_until(lambda: not any(is_running(job) for job in slurm()), "all jobs have ended")


@pytest.mark.full
def test_a_terminated_slurm_script_ends_its_jobs(slurm, data, tmp_path):
    with process(edited_script(data, tmp_path, queue="local"), tmp_path) as fit:
        wait_until(lambda: len(slurm()) == 2, "both jobs are submitted")
        fit.terminate()
        assert fit.wait(timeout=SECONDS) == 1
    assert "stopped by a signal; the same call resumes from the store" in (tmp_path / "log").read_text()
    wait_until(lambda: not any(is_running(job) for job in slurm()), "all jobs have ended")


@pytest.mark.full
def test_a_lost_slurm_job_is_replaced(slurm, data):
    fit = script("slurm/fit.py")
    fit.MODEL, fit.JOBS, fit.SECONDS_BETWEEN_LOOKS = str(data / "model.zarr"), 1, 0.5
    with (
        dask.config.set({"distributed.deploy.lost-worker-timeout": "1s"}),
        fit.slurm_cluster() as cluster,
        fit.jobs_replaced(cluster),
        fit.Client(cluster, set_as_default=False) as client,
    ):
        client.wait_for_workers(1, timeout=SECONDS)
        (lost,) = slurm()
        os.killpg(lost, signal.SIGKILL)
        wait_until(lambda: len(slurm()) == 2, "another job is submitted")
        (other,) = set(slurm()) - {lost}
        (worker,) = _workers(client, 1)
        assert os.getpgid(worker) == other


def _workers(client, n):
    """The process ids of the workers, as soon as there are ``n``."""
    wait_until(lambda: len(client.run(os.getpid, on_error="ignore")) == n, f"{n} workers")
    return list(client.run(os.getpid).values())


# --- SSH, with a server on loopback that accepts one key ---


@pytest.fixture
def ssh_config(tmp_path):
    """The client's configuration for an SSH server that runs during the test."""
    sshd = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if sshd is None or shutil.which("ssh-keygen") is None:
        pytest.skip("there is no sshd (on Debian and Ubuntu: apt install openssh-server)")
    folder, port = tmp_path / "ssh", free_port()
    folder.mkdir(mode=0o700)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "known").write_text(f"[127.0.0.1]:{port} {(folder / 'host.pub').read_text()}")
    (folder / "sshd").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"PidFile none\nStrictModes no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\nUsePAM no\n"
    )
    (folder / "client").write_text(
        f"Host *\n  Port {port}\n  User {psutil.Process().username()}\n  IdentityFile {folder}/user\n"
        f"  UserKnownHostsFile {folder}/known\n"
    )
    trial = subprocess.run([sshd, "-t", "-f", folder / "sshd"], capture_output=True, text=True, check=False)
    if trial.returncode:
        pytest.skip(f"sshd does not start on this machine: {trial.stderr.strip()}")
    with process([sshd, "-D", "-e", "-f", str(folder / "sshd")], folder) as server:
        wait_until(lambda: "listening" in (folder / "log").read_text(), "sshd listens")
        yield folder / "client"
        for child in psutil.Process(server.pid).children(recursive=True):  # of a test that failed
            child.kill()


def certificates(tmp_path):
    """Options for TLS with the certificate that the commands of the README make."""
    (block,) = [block for block in shell_blocks(DEPLOY / "ssh" / "README.md") if "openssl" in block]
    subprocess.run(
        ["bash", "-e", "-c", block.replace("/shared", str(tmp_path))], capture_output=True, check=True, timeout=SECONDS
    )
    key = tmp_path / "tls" / "key.pem"
    assert key.stat().st_mode & 0o077 == 0, "only the owner can read the key"
    cert = str(tmp_path / "tls" / "cert.pem")
    return ["--tls-ca-file", cert, "--tls-cert", cert, "--tls-key", str(key)]


def ssh_cluster(tmp_path, ssh_config, *words):
    """The command that starts a scheduler and two workers on this machine."""
    (tmp_path / "hosts.txt").write_text("127.0.0.1\n127.0.0.1 # and again\n127.0.0.1\n")
    command = [sys.executable, str(DEPLOY / "ssh" / "cluster.py"), "hosts.txt", "--port", str(free_port())]
    return [*command, "--ssh-config", str(ssh_config), "--local-directory", str(tmp_path), *words]


def spec_processes(folder):
    """Process ids of the processes that a test started over SSH, found by its folder."""
    found = []
    for one in psutil.process_iter(["cmdline"]):
        words = one.info["cmdline"] or []
        if "distributed.cli.dask_spec" in words and any(str(folder) in word for word in words):
            found.append(one.pid)
    return found


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.full
def test_a_cluster_over_ssh_fits_and_ends(tls, ssh_config, data, tmp_path):
    if tls and shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    words = certificates(tmp_path) if tls else []
    contact = tmp_path / "scheduler.json"
    with process(ssh_cluster(tmp_path, ssh_config, "--scheduler-file", str(contact), *words), tmp_path) as cluster:
        wait_until(lambda: contact.exists() or cluster.poll() is not None, "the cluster is up")
        assert contact.exists(), (tmp_path / "log").read_text()
        address = json.loads(contact.read_text())["address"]
        assert address.startswith("tls://" if tls else "tcp://")
        assert len(spec_processes(tmp_path)) == 2, "two workers"
        fit = [sys.executable, "-m", "fxdask", "fit", *(str(data / name) for name in ("X.npy", "y.npy", "m.zarr"))]
        done = subprocess.run(
            [*fit, "--nodes", "500", "--scheduler-file", str(contact), "--json", "--quiet", *words],
            capture_output=True,
            text=True,
            check=False,
            timeout=SECONDS,
        )
        assert done.returncode == 0, done.stderr
        assert sum(json.loads(done.stdout)["fit"]["blocks_by_process"].values()) == 2
        if tls:
            bare = connected(address.replace("tls://", "tcp://"))
            with pytest.raises(ClusterError, match="no Dask scheduler answers"), bare:
                pass
        cluster.send_signal(signal.SIGINT)
        assert cluster.wait(timeout=SECONDS) == 0
    assert not contact.exists()
    wait_until(lambda: not spec_processes(tmp_path), "the workers have ended")
    host, port = re.fullmatch(r"\w+://(.*):(\d+)", address).groups()
    with socket.socket() as probe:
        assert probe.connect_ex((host, int(port))) != 0, "the scheduler has ended"


def test_an_unknown_host_key_is_refused(ssh_config, tmp_path):
    (ssh_config.parent / "known").write_text("")
    done = subprocess.run(
        ssh_cluster(tmp_path, ssh_config), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=SECONDS
    )
    assert done.returncode != 0
    assert "Host key is not trusted" in done.stderr
    assert not spec_processes(tmp_path)
