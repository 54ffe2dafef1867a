"""The table of all arrays in a store: name, dimensions, type and chunking; FORMAT.md describes their content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import zarr
from zarr.codecs import Crc32cCodec

__all__ = [
    "ARRAY_NAMES",
    "BLOCK_ARRAYS",
    "FORMAT",
    "LOG_LIKELIHOOD",
    "MANIFEST",
    "MODEL_ARRAYS",
    "OPTIONAL_ARRAYS",
    "POOL_ARRAYS",
    "QUANTITIES",
    "RANKING_ARRAYS",
    "READABLE_FORMATS",
    "SCORE_ARRAYS",
    "ArraySpec",
    "ModelShape",
    "create_array",
]

FORMAT = 8
"""Number of the store format; it is raised if an earlier fxdask could misread what this one writes."""

READABLE_FORMATS = (6, 7, 8)


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

# Not written by blocks, except the marks in blocks_done.
MODEL_ARRAYS = (
    ArraySpec("blocks_done", ("block",), "uint64", "block"),
    ArraySpec("samples", ("sample", "input"), "", "sample"),
    ArraySpec("probes", ("probe", "input"), "", "probe"),
    ArraySpec("labels", ("sample",), "int32"),
    ArraySpec("priors", ("class",), "float64"),
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
)

MANIFEST = ArraySpec("manifest", ("byte",), "uint8", "byte")

LOG_LIKELIHOOD = "log_likelihood"
"""The one array of a score store that the user chooses to have or not."""

SCORE_ARRAYS = (
    ArraySpec("labels", ("sample",), "", "sample"),
    ArraySpec("scores", ("sample", "class"), "float64", "sample"),
    ArraySpec(LOG_LIKELIHOOD, ("sample",), "float64", "sample"),
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


def create_array(
    group: zarr.Group,
    spec: ArraySpec,
    sizes: Mapping[str, int],
    chunk_length: int = 1,
    dtype: str | None = None,
    chunks_besides: Mapping[str, int] | None = None,
) -> zarr.Array:
    """Create one array of a store, with a checksum on every chunk.

    ``chunks_besides`` are the lengths of chunks along further dimensions than the one in the table.

    Nothing is compressed: compression would save only 6 to 8% and halve the reading speed. Chunks
    that hold only the fill value are written too, because a missing chunk must mean missing data.
    """
    shape = tuple(sizes[dimension] for dimension in spec.dimensions)
    lengths = dict(chunks_besides or {})
    if spec.chunked:
        lengths[spec.chunked] = chunk_length
    chunks = tuple(
        max(1, min(lengths.get(dimension, length), length))
        for dimension, length in zip(spec.dimensions, shape, strict=True)
    )
    kind = dtype or spec.dtype
    return group.create_array(
        spec.name,
        shape=shape,
        chunks=chunks,
        dtype=kind,
        fill_value="" if kind == "string" else 0,
        dimension_names=spec.dimensions,
        attributes={"quantities": list(QUANTITIES)} if "quantity" in spec.dimensions else {},
        compressors=[Crc32cCodec()],
        config={"write_empty_chunks": True},
        overwrite=True,
    )
