"""Everything that knows Dask: clients, graphs, retries, workers and their resources."""
