"""Hosts with a network of their own: network namespaces of this machine, joined by a bridge that can drop each one."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import cache
from secrets import token_hex

import pytest

# Processes tell by the host's name where they run.
AS_HOST = 'hostname "$0" && exec "$@"'
BRIDGE = "bridge0"


def run(*words):
    """A command that must succeed, and what it prints."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()}"
    return done.stdout


@cache
def why_no_namespaces():
    """One sentence on what this machine lacks for hosts of one's own, or nothing."""
    if os.geteuid() != 0:
        return "hosts with a network of their own are network namespaces, which only root can make"
    missing = [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]
    if missing:
        return f"hosts with a network of their own need the commands {', '.join(missing)}, which are not installed"
    try:
        with network("one", "two"):
            return None
    except AssertionError as error:
        return f"this machine does not let root make network namespaces: {error}"


def needs_namespaces():
    """A mark for tests that need such hosts."""
    return pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))


class Network:
    """Hosts by name, each with one cable to one bridge."""

    def __init__(self, names):
        self.mark = f"fxdask-{os.getpid()}-{token_hex(3)}"
        self.names = names

    def namespace(self, host):
        return f"{self.mark}-{host}"

    def address(self, host):
        return f"192.0.2.{self.names.index(host) + 1}"  # a range for examples, which no real network has

    def port(self, host):
        return f"port{self.names.index(host)}"

    def build(self):
        bridge = self.namespace("bridge")
        run("ip", "netns", "add", bridge)
        run("ip", "-n", bridge, "link", "add", BRIDGE, "type", "bridge", "forward_delay", 0)
        run("ip", "-n", bridge, "link", "set", BRIDGE, "up")
        for host in self.names:
            there = self.namespace(host)
            run("ip", "netns", "add", there)
            cable = ("link", "add", "eth0", "type", "veth", "peer", "name", self.port(host), "netns", bridge)
            run("ip", "-n", there, *cable)
            run("ip", "-n", there, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", there, "link", "set", device, "up")
            self.mend(host)
            run("ip", "-n", bridge, "link", "set", self.port(host), "up")

    def cut(self, host):
        """From now on the bridge drops whatever comes from this host or goes to it; nobody is told."""
        run("ip", "-n", self.namespace("bridge"), "link", "set", self.port(host), "nomaster")

    def mend(self, host):
        run("ip", "-n", self.namespace("bridge"), "link", "set", self.port(host), "master", BRIDGE)

    def unplug(self, host):
        """Cut off as by a pulled cable: both ends see that their link is down."""
        run("ip", "-n", self.namespace("bridge"), "link", "set", self.port(host), "down")

    def on(self, host, *words):
        """The words of a command as they run on a host, under the host's name."""
        inside = ("ip", "netns", "exec", self.namespace(host))
        return [*inside, "unshare", "--uts", "sh", "-c", AS_HOST, host, *map(str, words)]

    def start(self, host, *words, **more):
        return subprocess.Popen(self.on(host, *words), **more)

    def remove(self):
        """Every process on the hosts is ended, and with the namespaces go their cables."""
        for host in (*self.names, "bridge"):
            if self.namespace(host) in namespaces():
                for pid in run("ip", "netns", "pids", self.namespace(host)).split():
                    with suppress(ProcessLookupError):
                        os.kill(int(pid), signal.SIGKILL)
                run("ip", "netns", "del", self.namespace(host))
        assert not [name for name in namespaces() if name.startswith(self.mark)]


def namespaces():
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines() if line]


@contextmanager
def network(*names):
    """A network of hosts, which is gone afterwards however that came."""
    made = Network(names)
    try:
        made.build()
        yield made
    finally:
        made.remove()


@contextmanager
def dask_on(hosts, folder, scheduler, workers, port=8786):
    """``dask scheduler`` on one host and ``dask worker`` on others, with Dask's own defaults; yields the address."""
    address = f"tcp://{hosts.address(scheduler)}:{port}"
    processes = []
    try:
        for host in (scheduler, *workers):
            own = folder / f"{host}-{port}"
            own.mkdir()
            job = ("scheduler", "--no-dashboard", "--port", port)
            if host != scheduler:
                job = ("worker", address, "--no-dashboard", "--nthreads", 1, "--memory-limit", "1GiB")
            words = (sys.executable, "-m", "dask", *job, "--host", hosts.address(host))
            with (own / "log").open("w") as log:
                processes.append(hosts.start(host, *words, cwd=own, stdout=log, stderr=log))
        yield address
    finally:
        for process in reversed(processes):
            process.kill()
            process.wait()
