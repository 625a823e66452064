"""Benchmarks: ratios between things measured in one run, and exact counts of requests and bytes."""
