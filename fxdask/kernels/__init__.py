"""Arrays in, arrays out: NumPy and SciPy only, no input or output, no Dask."""
