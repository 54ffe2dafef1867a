"""Everything that touches Zarr: the layout of stores, and reading and writing their chunks."""
