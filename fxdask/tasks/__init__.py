"""The functions that run as tasks on workers: read, compute, write; no Dask."""
