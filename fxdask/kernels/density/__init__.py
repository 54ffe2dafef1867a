"""Kernel densities: bandwidths, exact sums, tables."""
