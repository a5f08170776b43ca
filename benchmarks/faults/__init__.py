"""Fifty generated faults in right programs of ten systems: what a repair and a report have to find.

`python -m benchmarks.faults diagnosis` counts how often the first group of rows that a report shows
holds the cause.
"""

from benchmarks.faults.generator import Fault, answers, faults, tally, wrong

__all__ = ["Fault", "answers", "faults", "tally", "wrong"]
