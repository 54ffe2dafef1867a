"""Benchmarks: speed as ratios within one run on one machine."""
