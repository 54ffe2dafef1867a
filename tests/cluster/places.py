"""Where the stores of disturbed jobs are: a small disk that can be filled, or an object store that goes away."""

import os
import signal
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import s3fs
from disks import mounted_disk

from .driver import done_files
from .object_storage import KEYS, Proxy, client_settings, s3_process

SECONDS_BETWEEN_LOOKS = 0.3
"""Listing a bucket takes the server some ten milliseconds."""


class SmallDisk:
    """A disk for one store; the samples are on another disk."""

    def __init__(self, folder, data):
        self.folder, self.data, self.store = folder, data, folder / "out.zarr"
        self.environment = {}
        self._n_done = 0

    def n_done(self):
        """Pieces of the store that are done."""
        with suppress(OSError):  # files are moved meanwhile
            self._n_done = len(done_files(self.folder))
        return self._n_done

    def left(self):
        """Names beside the store."""
        return sorted(path.name for path in self.folder.iterdir() if path != self.store)

    def contents(self):
        return contents_of(self.store)


def contents_of(store):
    """The content of every file of a store on a disk, by its name in the store."""
    return {str(file.relative_to(store)): file.read_bytes() for file in Path(store).rglob("*") if file.is_file()}


@contextmanager
def small_disk(folder, data):
    with mounted_disk(folder, "16m") as mounted:
        yield SmallDisk(mounted, data)


class Bucket:
    """A bucket for one store and its samples, behind a proxy that can refuse connections."""

    data, store, undisturbed_store = "s3://bucket/data", "s3://bucket/out/out.zarr", "s3://bucket/undisturbed/out.zarr"

    def __init__(self, server, port):
        self._server, self._proxy = server, Proxy(port)
        self.environment = client_settings(self._proxy.port)
        self.files = s3fs.S3FileSystem(
            key=KEYS["AWS_ACCESS_KEY_ID"],
            secret=KEYS["AWS_SECRET_ACCESS_KEY"],
            endpoint_url=client_settings(port)["AWS_ENDPOINT_URL"],
            use_listings_cache=False,
            skip_instance_cache=True,
        )
        self._n_done, self._looked = 0, 0.0

    def fill(self, data):
        """Create the bucket with the files of a folder."""
        self.files.mkdir("bucket")
        self.files.put(f"{data}/", "bucket/data/", recursive=True)

    def n_done(self):
        """Pieces of the store that are done."""
        if time.monotonic() > self._looked + SECONDS_BETWEEN_LOOKS:
            with suppress(Exception):  # the server may be away
                names = self.files.find("bucket/out")
                parts = [name.split("/") for name in names]
                self._n_done = sum(part[-3] in ("blocks_done", "labels") and part[-1].isdigit() for part in parts)
            self._looked = time.monotonic()
        return self._n_done

    def left(self):
        """Names beside the store."""
        return sorted({name.split("/")[2] for name in self.files.find("bucket/out")} - {"out.zarr"})

    def contents(self):
        return self._contents(self.store)

    def undisturbed_contents(self):
        return self._contents(self.undisturbed_store)

    def _contents(self, url):
        path = url.removeprefix("s3://")
        return {name.removeprefix(f"{path}/"): self.files.cat_file(name) for name in self.files.find(path)}

    @contextmanager
    def refusing(self):
        """Refuse connections for the time of a ``with`` block."""
        self._proxy.close()
        yield
        self._proxy.open()

    @contextmanager
    def silent(self):
        """Accept connections but answer nothing for the time of a ``with`` block."""
        os.kill(self._server, signal.SIGSTOP)
        yield
        os.kill(self._server, signal.SIGCONT)

    def __enter__(self):
        self._proxy.open()
        return self

    def __exit__(self, *_):
        self._proxy.close()


@contextmanager
def bucket(data):
    with s3_process() as (server, port), Bucket(server, port) as made:
        made.fill(data)
        yield made
