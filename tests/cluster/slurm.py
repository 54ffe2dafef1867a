"""A private SLURM site on loopback: all daemons have their key, configuration and state in one folder."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scancel")
N_NODES = 2
# With config_overrides the nodes have the cores and memory given here, whatever the machine has.
CONFIGURATION = """
ClusterName=fxdask
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/finished
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
MpiDefault=none
SchedulerParameters=batch_sched_delay=0
ReturnToService=2
KillWait=5
{nodes}
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@cache
def why_no_slurm():
    """Why this machine cannot run a SLURM site, in one sentence; None if it can."""
    missing = [name for name in NEEDED if shutil.which(name, path=_path()) is None]
    if missing:
        return f"a SLURM site needs the commands {', '.join(missing)}, which are not installed"
    return None if os.geteuid() == 0 else "a SLURM site can be started only by root"


def needs_slurm():
    """A marker for tests that need a SLURM site."""
    return pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm()))


def _path():
    """The caller's PATH and the folders that usually hold daemons."""
    return os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))


@contextmanager
def slurm_site(folder):
    """Run a controller and two nodes of four CPUs each, all on this machine.

    Yields the environment variables that ``sbatch``, ``squeue`` and ``scancel`` need to find this site.
    """
    folder = Path(folder)
    site = {"SLURM_CONF": str(folder / "slurm.conf"), "PATH": _path()}
    _configure(site, folder)
    processes = []
    try:
        processes.append(_start(_munged(folder), site, folder))
        _wait_for((folder / "munge.socket").exists, "munged", folder)
        processes.append(_start(["slurmctld", "-D"], site, folder))
        processes += [_start(["slurmd", "-D", "-N", name], site, folder) for name in _node_names()]
        _wait_for(lambda: _idle_nodes(site) == N_NODES, "nodes", folder)
        try:
            yield site
        finally:
            _end_jobs(site, folder)
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in reversed(processes):
            _wait_or_kill(process)


def jobs(site, *words):
    """Running and waiting jobs, one line each; ``words`` replace the options of ``squeue``."""
    return command(site, "squeue", "--noheader", *(words or ("--format", "%A %j %T %N %M"))).splitlines()


def finished_jobs(site):
    """Ended jobs, one line each: id, user, name, state, times, nodes."""
    file = Path(site["SLURM_CONF"]).parent / "finished"
    return file.read_text().splitlines() if file.exists() else []


def command(site, *words):
    done = subprocess.run(words, env=os.environ | site, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stderr.strip()}"
    return done.stdout


def _node_names():
    return [f"node{i}" for i in range(N_NODES)]


def _configure(site, folder):
    machine = socket.gethostname().split(".")[0]
    port, *ports = _free_ports(1 + N_NODES)
    nodes = "\n".join(
        f"NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={own} CPUs=4 RealMemory=20000 State=UNKNOWN"
        for name, own in zip(_node_names(), ports, strict=True)
    )
    (folder / "state").mkdir()
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, machine=machine, port=port, nodes=nodes))
    (folder / "cgroup.conf").write_text(f"CgroupPlugin={_no_cgroups(site)}\n")
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)


def _no_cgroups(site):
    """The plugin without control groups; versions before 24 lack "disabled" and do nothing with "cgroup/v1"."""
    major = int(re.search(r"(\d+)\.", command(site, "slurmd", "-V"))[1])
    return "disabled" if major >= 24 else "cgroup/v1"


def _free_ports(count):
    """Free ports; all are kept open until the last one is known, so that they differ."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def _munged(folder):
    files = {"socket": "munge.socket", "key-file": "munge.key", "log-file": "munge.log"}
    files |= {"pid-file": "munge.pid", "seed-file": "munge.seed"}
    # munged refuses folders below a world-writable one such as the temporary folder, unless forced.
    return ["munged", "--foreground", "--force", *(f"--{name}={folder / file}" for name, file in files.items())]


def _start(words, site, folder):
    with (folder / "daemons.log").open("a") as log:
        return subprocess.Popen(words, env=os.environ | site, stdout=log, stderr=log, cwd=folder)


def _wait_or_kill(process):
    try:
        process.wait(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _idle_nodes(site):
    found = subprocess.run(
        ["sinfo", "--noheader", "--Node", "--format", "%T"],
        env=os.environ | site,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return found.stdout.split().count("idle")


def _wait_for(condition, what, folder):
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited 60 s for {what}; logs are in {folder}"
        time.sleep(0.1)


def _end_jobs(site, folder):
    """Cancel the jobs that a test has left, and wait until they have ended."""
    for job in jobs(site, "--format", "%A"):
        command(site, "scancel", job)
    _wait_for(lambda: not jobs(site), "the end of all jobs", folder)
