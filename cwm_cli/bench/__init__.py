"""Many jobs at once, what they may cost, and speed.

`executor.Executor` runs the jobs of `cwm benchmark` and `cwm apps`, `estimate` asks before searches
that cost much, and `speed.bench_speed` is the function of `cwm bench-speed`.
"""
