"""The documentation's blocks run, its outputs are recorded, its reference pages are generated.

`python -m benchmarks.documentation --record [PAGE ...]` runs pages and writes what their commands
print below them; `--list` says what ran, and how long it took.
"""
