"""Benchmark of rules in words: doors, the playground, and comparison with programs."""
