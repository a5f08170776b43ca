"""Fifty generated faults in correct programs of ten systems, for diagnosis and repair.

`python -m benchmarks.faults diagnosis` counts how often the first group of rows of a diagnosis
contains the cause.
"""

from benchmarks.faults.generator import Fault, answers, faults, tally, wrong

__all__ = ["Fault", "answers", "faults", "tally", "wrong"]
