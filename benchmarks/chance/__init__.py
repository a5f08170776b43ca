"""Benchmark of programs with chance and memory: `python -m benchmarks.chance`."""
