"""Kernel densities: bandwidths, exact sums and tables."""
