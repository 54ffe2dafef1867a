"""Arrays in, arrays out: NumPy, SciPy and numba, no input or output, no Dask."""
