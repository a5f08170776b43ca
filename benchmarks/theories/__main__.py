"""Measure rules in words without a language model: doors, the playground, against programs.

    python -m benchmarks.theories                      # everything: more than an hour
    python -m benchmarks.theories door --seeds 2
    python -m benchmarks.theories --executor slurm --workers 100 -o executor.partition=long
    python -m benchmarks.theories --table              # only print existing results

Runs and results are kept in a folder, with a file for each case and seed. Several commands, also on
several machines, may share the folder; nothing is measured twice. Seeds start at 100 and were not
used for tuning.
"""

from pathlib import Path

from benchmarks.parts import Part, measure_parts
from benchmarks.theories.balance import balance, balance_table
from benchmarks.theories.measures import (
    COMPARED,
    EXPERIMENTERS,
    METHODS,
    NAMED_RULES,
    compare_with_programs,
    comparison_table,
    door,
    door_table,
    playground,
    playground_table,
)

DOORS = [f"{method}: {rule}" for method in METHODS for rule in NAMED_RULES]

PARTS = (
    Part("balance", ["corrected", "not corrected"], balance, balance_table, seeds=3),
    Part("door", DOORS, door("symbolic"), door_table, about="rules read exactly"),
    Part("door-tiny", DOORS, door("tiny"), door_table, about="read by a tiny language model"),
    Part(
        "playground",
        list(EXPERIMENTERS),
        playground(phases=60),
        playground_table,
        seeds=3,
        about="rules read exactly, 60 phases",
    ),
    Part(
        "programs",
        list(COMPARED),
        compare_with_programs,
        comparison_table,
        seeds=3,
        about="rules and programs from the same transitions, without a language model",
    ),
)


if __name__ == "__main__":
    measure_parts(PARTS, Path("runs/theories"), __doc__, "benchmarks.theories")
