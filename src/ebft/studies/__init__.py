"""Sweeps of many runs, and comparisons of runs."""
