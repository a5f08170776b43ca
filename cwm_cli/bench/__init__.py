"""Many jobs at once, searches over environments x strategies x models x seeds, and speed.

`benchmarking.benchmark` is what `cwm benchmark` does: each job is a run folder like
any other, below one folder for all, and is worked on by processes of its own.
`speed.bench_speed` is what `cwm bench-speed` does.
"""
