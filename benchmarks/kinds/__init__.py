"""Benchmark of kinds of world models from the same transitions: accuracy, returns and size."""
