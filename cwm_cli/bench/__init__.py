"""Parallel jobs, estimates of their cost, and measurements of speed.

`executor.Executor` runs the jobs of `cwm benchmark` and `cwm apps`, `estimate` asks before searches
that cost much, and `speed.bench_speed` is the function of `cwm bench-speed`.
"""
