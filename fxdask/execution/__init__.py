"""Everything that uses Dask: clients, graphs, retries, workers and their resources."""
