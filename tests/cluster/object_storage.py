"""A local S3 server: moto's, which is an emulator, so it shows the protocol and none of the faults of a real one."""

import os
import signal
import socket
import socketserver
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress

import s3fs

KEYS = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def s3_server():
    """The server as a process of its own, with one bucket; yields the environment that leads to it."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()


def answers(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Door:
    """A port that leads to the server, and can be shut for a while: then connections to it are refused."""

    def __init__(self, port):
        self.inside, self.port, self._open = port, free_port(), None

    def open(self):
        inside = self.inside

        class Passage(socketserver.BaseRequestHandler):
            def handle(self):
                with socket.create_connection(("127.0.0.1", inside)) as there:
                    back = threading.Thread(target=carry, args=(there, self.request), daemon=True)
                    back.start()
                    carry(self.request, there)
                    back.join()

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self._open = socketserver.ThreadingTCPServer(("127.0.0.1", self.port), Passage)
        self._open.daemon_threads = True
        self._open.block_on_close = False
        threading.Thread(target=self._open.serve_forever, args=(0.05,), daemon=True).start()

    def shut(self):
        self._open.shutdown()
        self._open.server_close()


def carry(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def files():
    """The server's objects, as a file system that remembers nothing."""
    return s3fs.S3FileSystem(use_listings_cache=False)
