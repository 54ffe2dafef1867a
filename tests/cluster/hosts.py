"""Hosts with separate networks: network namespaces of this machine, connected by a bridge that can drop each one."""

import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress
from functools import cache
from secrets import token_hex

import pytest

# Telemetry names a process by its host name, so each namespace gets its own.
AS_HOST = 'hostname "$0" && exec "$@"'
BRIDGE = "bridge0"
ENTER_HOST = """
import ctypes, socket
system = ctypes.CDLL(None, use_errno=True)
with open("/var/run/netns/{namespace}") as namespace:
    assert system.setns(namespace.fileno(), 0) == 0, ctypes.get_errno()
assert system.unshare(0x04000000) == 0, ctypes.get_errno()  # CLONE_NEWUTS: a host name of its own
socket.sethostname({host!r})
"""


def run(*words):
    """Run a command that must succeed, and return its output."""
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, words))}: {done.stderr.strip()}"
    return done.stdout


@cache
def why_no_namespaces():
    """Why this machine cannot make network namespaces, in one sentence; None if it can."""
    if os.geteuid() != 0:
        return "network namespaces can be made only by root"
    missing = [name for name in ("ip", "unshare", "hostname") if shutil.which(name) is None]
    if missing:
        return f"network namespaces need the commands {', '.join(missing)}, which are not installed"
    try:
        with network("one", "two"):
            return None
    except AssertionError as error:
        return f"root cannot make network namespaces on this machine: {error}"


def needs_namespaces():
    """A marker for tests that need network namespaces."""
    return pytest.mark.skipif(why_no_namespaces() is not None, reason=str(why_no_namespaces()))


class Network:
    """Hosts by name, each connected to one bridge."""

    def __init__(self, names):
        self.mark = f"fxdask-{os.getpid()}-{token_hex(3)}"
        self.names = names

    def namespace(self, host):
        return f"{self.mark}-{host}"

    def address(self, host):
        return f"192.0.2.{self.names.index(host) + 1}"  # a range reserved for examples

    def port(self, host):
        return f"port{self.names.index(host)}"

    def build(self):
        bridge = self.namespace("bridge")
        run("ip", "netns", "add", bridge)
        run("ip", "-n", bridge, "link", "add", BRIDGE, "type", "bridge", "forward_delay", 0)
        run("ip", "-n", bridge, "link", "set", BRIDGE, "up")
        for host in self.names:
            namespace = self.namespace(host)
            run("ip", "netns", "add", namespace)
            cable = ("link", "add", "eth0", "type", "veth", "peer", "name", self.port(host), "netns", bridge)
            run("ip", "-n", namespace, *cable)
            run("ip", "-n", namespace, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", namespace, "link", "set", device, "up")
            self.reconnect(host)
            run("ip", "-n", bridge, "link", "set", self.port(host), "up")

    def cut(self, host):
        """Let the bridge drop all packets from and to this host; both ends still see a link."""
        run("ip", "-n", self.namespace("bridge"), "link", "set", self.port(host), "nomaster")

    def reconnect(self, host):
        run("ip", "-n", self.namespace("bridge"), "link", "set", self.port(host), "master", BRIDGE)

    def unplug(self, host):
        """Disconnect the host like a pulled cable: both ends see that the link is down."""
        run("ip", "-n", self.namespace("bridge"), "link", "set", self.port(host), "down")

    def on(self, host, *words):
        """The command line that runs a command on a host, with the host's name."""
        inside = ("ip", "netns", "exec", self.namespace(host))
        return [*inside, "unshare", "--uts", "sh", "-c", AS_HOST, host, *map(str, words)]

    def program_on(self, host, program):
        """A Python program that moves its process to a host and takes its name; a forked process can run it."""
        return ENTER_HOST.format(namespace=self.namespace(host), host=host) + program

    def start(self, host, *words, **more):
        return subprocess.Popen(self.on(host, *words), **more)

    def remove(self):
        """Kill all processes on the hosts and delete the namespaces, which deletes their devices."""
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
    """A network of hosts, which is removed afterwards even if building it or the test fails."""
    made = Network(names)
    try:
        made.build()
        yield made
    finally:
        made.remove()


@contextmanager
def dask_on(hosts, folder, scheduler, workers, port=8786):
    """``dask scheduler`` on one host and ``dask worker`` on others, with Dask's defaults; yields the address."""
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
