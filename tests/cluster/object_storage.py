"""A local S3 server: moto, an emulator that implements the protocol but not the faults of a real server."""

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


# S3 alone: moto's own server looks for the service of each request in some hundred folders.
SERVER = """
import sys
from moto.moto_server.werkzeug_app import create_backend_app
from werkzeug.serving import run_simple

run_simple("127.0.0.1", int(sys.argv[1]), create_backend_app("s3"), threaded=True)
"""


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def s3_server():
    """Run the server in its own process; yields the environment variables that clients need."""
    with s3_process() as (_, port):
        yield client_settings(port)


def client_settings(port):
    """The environment variables that clients of a server at this port need."""
    return KEYS | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}


@contextmanager
def s3_process():
    """Run the server in its own process; yields its process id and its port."""
    port = free_port()
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, str(port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        deadline = time.monotonic() + 60
        while not answers(port):
            assert server.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.1)
        yield server.pid, port
    finally:
        os.kill(server.pid, signal.SIGKILL)
        server.wait()


def answers(port):
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False


class Proxy:
    """A port that forwards to the server and can be closed for a while, so that connections are refused."""

    def __init__(self, port):
        self.server_port, self.port, self._listener = port, free_port(), None

    def open(self):
        server_port = self.server_port

        class Forwarding(socketserver.BaseRequestHandler):
            def handle(self):
                with socket.create_connection(("127.0.0.1", server_port)) as server:
                    replies = threading.Thread(target=forward, args=(server, self.request), daemon=True)
                    replies.start()
                    forward(self.request, server)
                    replies.join()

        socketserver.ThreadingTCPServer.allow_reuse_address = True
        self._listener = socketserver.ThreadingTCPServer(("127.0.0.1", self.port), Forwarding)
        self._listener.daemon_threads = True
        self._listener.block_on_close = False
        threading.Thread(target=self._listener.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self._listener.shutdown()
        self._listener.server_close()


def forward(source, target):
    with suppress(OSError):
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)


def files():
    """The server's objects as a file system without a cache."""
    return s3fs.S3FileSystem(use_listings_cache=False)
