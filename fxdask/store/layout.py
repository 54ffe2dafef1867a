"""All arrays of a store in one table: name, dimensions, type, chunking, codecs; FORMAT.md describes their content."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import zarr
from numpy.typing import NDArray
from zarr.api.asynchronous import create_array, create_group
from zarr.buffer import default_buffer_prototype
from zarr.codecs import Crc32cCodec
from zarr.storage import MemoryStore

from fxdask.store.asynchronous import run_at

__all__ = [
    "ARRAY_NAMES",
    "BLOCK_ARRAYS",
    "CLASS",
    "EARLIER_MANIFEST",
    "FORMAT",
    "FORMAT_OF_COORDINATES",
    "LOG_LIKELIHOOD",
    "MANIFEST",
    "MODEL_ARRAYS",
    "OPTIONAL_ARRAYS",
    "POOL_ARRAYS",
    "QUANTITIES",
    "RANKING_ARRAYS",
    "READABLE_FORMATS",
    "SAMPLE",
    "SCORE_ARRAYS",
    "ArraySpec",
    "ModelShape",
    "NewArray",
    "create_arrays",
]

FORMAT = 9
"""Number of the store format; it is raised if an earlier fxdask could misread what this one writes."""

READABLE_FORMATS = (6, 7, 8, 9)

FORMAT_OF_COORDINATES = 9
"""From this format on, stores have coordinates, and the manifest is in a folder, where xarray does not show it."""

AsyncArray = zarr.AsyncArray[Any]


@dataclass(frozen=True)
class ArraySpec:
    """One array of a store. ``chunked`` names the dimension that is split into chunks; the others are not split."""

    name: str
    dimensions: tuple[str, ...]
    dtype: str
    chunked: str | None = None


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """The sizes of a model's arrays, the size of a block, and the optional arrays that the store keeps."""

    n_nodes: int
    n_features: int
    n_classes: int
    n_samples: int
    nodes_per_block: int
    kept: tuple[str, ...] = ()

    def sizes(self) -> dict[str, int]:
        """The length of every dimension."""
        return {
            "node": self.n_nodes,
            "input": self.n_features,
            "class": self.n_classes,
            "sample": self.n_samples,
            "block": -(-self.n_nodes // self.nodes_per_block),
            "quantity": len(QUANTITIES),
        }


# Written block by block while fitting: one chunk of each array per node block.
BLOCK_ARRAYS = (
    ArraySpec("weights", ("node", "input"), "float32", "node"),
    ArraySpec("statistics", ("quantity", "class", "node"), "float64", "node"),
    # Class by class, ascending within each class, because densities need sorted values.
    ArraySpec("projections", ("node", "sample"), "float32", "node"),
)

# One array for all quantities, because every array costs one write per block.
QUANTITIES = ("location", "spread", "spread_source", "divergence")

# Large block arrays that can be computed again, so the user chooses whether to keep them.
OPTIONAL_ARRAYS = ("weights", "projections")

# The candidates of a joint selection; removed before the store is finished. Statistics are location and spread.
POOL_ARRAYS = (
    ArraySpec("pool/scores", ("candidate", "sample"), "int16", "candidate"),
    ArraySpec("pool/statistics", ("measure", "class", "candidate"), "float64", "candidate"),
)

# An array with the name of its dimension is its coordinate, for xarray.
SAMPLE, CLASS = "sample", "class"
CLASSES = ArraySpec(CLASS, ("class",), "")

# Not written by blocks, except the marks in blocks_done.
MODEL_ARRAYS = (
    ArraySpec("blocks_done", ("block",), "uint64", "block"),
    ArraySpec("probes", ("probe", "input"), "", "probe"),
    ArraySpec("codes", ("sample",), "", "sample"),
    ArraySpec("labels", ("sample",), "int32", "sample"),
    ArraySpec("priors", ("class",), "float64"),
    CLASSES,
    ArraySpec("shift", ("input",), ""),
    ArraySpec("scale", ("input",), "float64"),
    ArraySpec("canaries", ("canary", "canary_input"), "float32"),
    ArraySpec("selection", ("selector", "rank"), "int64"),
    ArraySpec("overlaps", ("rank",), "float64"),
    ArraySpec("importances", ("class", "input"), "float64"),
    ArraySpec("selected/nodes", ("selected",), "int64"),
    ArraySpec("selected/weights", ("selected", "input"), "float32"),
    ArraySpec("selected/projections", ("selected", "sample"), "float32", "selected"),
    ArraySpec("selected/bandwidth", ("class", "selected"), "float64"),
    ArraySpec("selected/location", ("class", "selected"), "float64"),
    ArraySpec("selected/spread", ("class", "selected"), "float64"),
    ArraySpec("selected/density_error", ("class", "selected"), "float64"),
    ArraySpec("selected/precision", ("class", "selected", "selected"), "float64", "class"),
    ArraySpec("selected/log_det", ("class",), "float64"),
    ArraySpec("selected/shrinkage", ("class",), "float64"),
    ArraySpec("tables/densities", ("density", "fact"), "float64"),
    ArraySpec("tables/sums", ("table_node", "power"), "float64"),
    ArraySpec("tables/cells", ("table_node",), "uint8"),
    ArraySpec("tables/outermost", ("outermost",), "float32"),
    ArraySpec("tables/picked", ("selected", "picked"), "float32"),
)

MANIFEST = ArraySpec("manifest/files", ("byte",), "uint8", "byte")
EARLIER_MANIFEST = ArraySpec("manifest", ("byte",), "uint8", "byte")

LOG_LIKELIHOOD = "log_likelihood"
"""The one array of a score store that the user chooses to have or not."""

SCORE_ARRAYS = (
    ArraySpec("labels", ("sample",), "", "sample"),
    ArraySpec("scores", ("sample", "class"), "float64", "sample"),
    ArraySpec(LOG_LIKELIHOOD, ("sample",), "float64", "sample"),
    ArraySpec(SAMPLE, ("sample",), "int64", "sample"),
    CLASSES,
)

# Of a ranking: results are written block by block; columns are copies of X, removed before the store is finished.
RANKING_ARRAYS = (
    ArraySpec("results", ("result", "input"), "float64", "input"),
    ArraySpec("blocks_done", ("block",), "uint64", "block"),
    ArraySpec("relief", ("input",), "float64"),
    ArraySpec("curves", ("shown", "curve", "point"), "float64"),
    ArraySpec("staged/columns", ("input", "sample"), "", "input"),
    ArraySpec("staged/codes", ("sample",), "", "sample"),
    ArraySpec("staged/ranges_done", ("range",), "uint64", "range"),
)

ARRAY_NAMES = {
    "model": tuple(spec.name for spec in (*BLOCK_ARRAYS, *MODEL_ARRAYS, *POOL_ARRAYS)),
    "scores": tuple(spec.name for spec in SCORE_ARRAYS),
    "ranking": tuple(spec.name for spec in RANKING_ARRAYS),
}
"""Kind of store -> the names of all arrays that it may hold besides its manifest."""


@dataclass(frozen=True, kw_only=True)
class NewArray:
    """An array to create."""

    spec: ArraySpec
    sizes: Mapping[str, int]
    """The length of each of its dimensions; others are ignored."""
    chunk_length: int = 1
    """The length of a chunk along the dimension that the table names."""
    chunks_besides: Mapping[str, int] | None = None
    """The lengths of chunks along further dimensions."""
    dtype: str | None = None
    """If the table names none."""
    values: NDArray | None = None
    """Its content; without it no chunk is written."""

    def lengths(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The shape of the array, and that of a chunk."""
        shape = tuple(self.sizes[dimension] for dimension in self.spec.dimensions)
        lengths = dict(self.chunks_besides or {})
        if self.spec.chunked:
            lengths[self.spec.chunked] = self.chunk_length
        chunks = tuple(
            max(1, min(lengths.get(dimension, length), length))
            for dimension, length in zip(self.spec.dimensions, shape, strict=True)
        )
        return shape, chunks


def create_arrays(group: zarr.Group, arrays: Iterable[NewArray]) -> list[zarr.Array]:
    """Create arrays concurrently, with a checksum on every chunk, and replace what was at their paths.

    Nothing is compressed: compression would save only 6 to 8% and halve the reading speed. Chunks
    that hold only the fill value are written too, because a missing chunk must mean missing data.
    """
    requested = list(arrays)
    folders = {array.spec.name.rpartition("/")[0] for array in requested}

    async def create_all() -> list[AsyncArray]:
        # Each write mostly waits for storage. Folders come first, because all their arrays need them.
        found = await asyncio.gather(*(_prepare_folder(group, folder) for folder in folders))
        present = set().union(*found)
        return await asyncio.gather(*(_create_array(group, array, array.spec.name in present) for array in requested))

    return [zarr.Array(created) for created in run_at(group.store, create_all())]


async def _prepare_folder(group: zarr.Group, folder: str) -> set[str]:
    """The names of what a folder of the group has; a missing folder is created."""
    path = group.store_path / folder
    names = {name async for name in path.store.list_dir(path.path)}
    if folder and "zarr.json" not in names:
        await create_group(store=path, zarr_format=3)
    return {f"{folder}/{name}".lstrip("/") for name in names}


async def _create_array(group: zarr.Group, new: NewArray, is_present: bool) -> AsyncArray:
    """Create one array, and write its values.

    Zarr creates the metadata in memory: in an object store it would take about ten requests.
    """
    path, kind = group.store_path / new.spec.name, new.dtype or new.spec.dtype
    shape, chunks = new.lengths()
    described = await create_array(
        MemoryStore(),
        shape=shape,
        chunks=chunks,
        dtype=kind,
        fill_value="" if kind == "string" else 0,
        dimension_names=new.spec.dimensions,
        attributes={"quantities": list(QUANTITIES)} if "quantity" in new.spec.dimensions else {},
        compressors=[Crc32cCodec()],
    )
    if is_present:
        await path.store.delete_dir(path.path)
    for key, content in described.metadata.to_buffer_dict(default_buffer_prototype()).items():
        await (path / key).set(content)
    created = zarr.AsyncArray(described.metadata, path, {"write_empty_chunks": True})
    if new.values is not None:
        await created.setitem(..., new.values)
    return created
