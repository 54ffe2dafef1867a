"""Targets: samples and labels of others (IDX, .npy, Zarr, Parquet), and score tables."""

import gzip
import io
import json
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zarr
from idx_files import idx_bytes

import fxdask
from fxdask.cli.info import info
from fxdask.experiment.datasets import read_idx
from fxdask.store.score_table import HEADER, SUCCESS, ScoreTable
from fxdask.store.sources import decoded_bytes, fingerprint, open_rows, read_pieces, rows_per_chunk
from fxdask.workflows.data import as_labels, as_samples

from .engine import Target
from .stores import X, Y, classifier, run_command

MOST_PLANNED_BYTES = 2**24
"""A plan refuses samples of which one read needs more memory than a task may use; here that is so much."""


class IdxFiles(Target):
    """IDX files, plain and compressed; of some of the compressed ones the content was changed before."""

    def valid_files(self):
        images = np.arange(3 * 4 * 4, dtype=np.uint8).reshape(3, 4, 4)
        plain = [("images", idx_bytes(images)), ("labels", idx_bytes(np.arange(3, dtype=np.uint8)))]
        packed = [(f"{name}.gz", gzip.compress(content, mtime=0)) for name, content in plain]
        return [*plain, *packed, *((f"{name}-packed-here.gz", content) for name, content in plain)]

    def feed(self, place, content):
        is_packed_here = "packed-here" in place
        super().feed(place, gzip.compress(content, 1, mtime=0) if is_packed_here else content)

    def read(self, place):
        read_idx(self.folder / place)


class NpyFiles(Target):
    """.npy files of samples and of labels, in all versions of the format."""

    def valid_files(self):
        found = [(f"samples-{version}.npy", npy_bytes(X, (version, 0))) for version in (1, 2, 3)]
        found += [("samples-int.npy", npy_bytes(np.arange(6, dtype=">i2").reshape(3, 2), (1, 0)))]
        return [*found, ("labels-text.npy", npy_bytes(Y, (1, 0))), ("labels.npy", npy_bytes(np.arange(9), (1, 0)))]

    def read(self, place):
        path = self.folder / place
        if place.startswith("labels"):
            as_labels(path)
        else:
            read_samples(as_samples(path))


def npy_bytes(array, version):
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version, allow_pickle=False)
    return stream.getvalue()


def read_samples(samples):
    """Read what a scan of samples reads, as far as a plan of little memory would allow it."""
    handle = samples.handle
    fingerprint(handle)
    rows_per_chunk(handle)
    row_bytes = samples.n_features * samples.dtype.itemsize
    n_rows = min(samples.n_samples, 50)
    if decoded_bytes(handle) + n_rows * row_bytes <= MOST_PLANNED_BYTES:
        list(read_pieces(handle, 0, n_rows))
        open_rows(handle, np.empty)(0, n_rows)


class ZarrArrays(Target):
    """Zarr arrays of samples and of labels, of both formats of Zarr: metadata and chunks."""

    def valid_files(self):
        for name, values in (("samples", X), ("labels", np.arange(12)), ("labels-text", Y.astype(object))):
            for version in (2, 3):
                self.write(f"{name}-{version}.zarr", values, version)
        files = sorted(file for file in self.folder.rglob("*") if file.is_file() and file.name != ".zattrs")
        return [(file.relative_to(self.folder).as_posix(), file.read_bytes()) for file in files]

    def write(self, name, values, version):
        dtype = "string" if values.dtype == object else values.dtype
        chunks = (4, *values.shape[1:])
        with np.errstate(all="ignore"):
            array = zarr.create_array(
                self.folder / name, shape=values.shape, chunks=chunks, dtype=dtype, zarr_format=version
            )
            array[...] = values

    def read(self, place):
        path = self.folder / place.partition("/")[0]
        if place.startswith("labels"):
            as_labels(path, len(Y))
        else:
            read_samples(as_samples(path))


class ParquetFiles(Target):
    """Parquet files as samples and labels: footers, schemas, pages, the metadata of pandas."""

    def valid_files(self):
        columns = {f"x{at}": X[:, at] for at in range(2)} | {"size": np.arange(12), "label": Y}
        table = pa.table(columns)
        table = table.append_column("kind", pa.array(Y.tolist()).dictionary_encode())
        indexed = pa.table({"x": X[:, 0], "at": np.arange(12)}).replace_schema_metadata(
            {"pandas": json.dumps({"index_columns": ["at"], "columns": []})}
        )
        nulls = pa.table({"x": pa.array([1.0, None, 3.0]), "y": pa.array([1, 2, 3], pa.uint8())})
        return [
            ("labels.parquet", parquet_bytes(table, compression="none", row_group_size=5)),
            ("packed-labels.parquet", parquet_bytes(table, compression="zstd", use_dictionary=False)),
            ("indexed.parquet", parquet_bytes(indexed, compression="snappy")),
            ("nulls.parquet", parquet_bytes(nulls, compression="gzip", data_page_version="2.0")),
        ]

    def read(self, place):
        table = fxdask.table(self.folder / place)
        if "labels" in place:
            for name in ("label", "kind"):
                as_labels(table.choose([name]))
            table = table.without(["label", "kind"])
        read_samples(as_samples(table))


def parquet_bytes(table, **options):
    stream = io.BytesIO()
    pq.write_table(table, stream, **options)
    return stream.getvalue()


class ScoreTables(Target):
    """The headers of a score table, finished or not, and its files."""

    def valid_files(self):
        model = classifier(None).fit(X, Y)
        pq.write_table(pa.table({f"x{at}": X[:, at] for at in range(3)}), self.folder / "X.parquet")
        fxdask.batch_score(model, X, self.folder / "scored.parquet", likelihood=True)
        shutil.copytree(self.folder / "scored.parquet", self.folder / "begun.parquet")
        (self.folder / "begun.parquet" / SUCCESS).unlink()
        places = (f"scored.parquet/{SUCCESS}", f"begun.parquet/{HEADER}", "begun.parquet/scores-00000.parquet")
        return [(place, (self.folder / place).read_bytes()) for place in places]

    def read(self, place):
        folder = self.folder / place.partition("/")[0]
        if place.endswith(".parquet"):
            table = ScoreTable.open(str(folder), finished=False)
            table.read_done(0, np.array(["ash", "oak"]))
            table.read_likelihood(0)
        else:
            run_command(info, folder)
