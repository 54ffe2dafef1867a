"""One worker's work: read, compute, write; no Dask."""
