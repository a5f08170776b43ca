"""What rules in words reach, without a language model: doors, the playground, beside programs.

    python -m benchmarks.theories                      # all of it: an hour and more
    python -m benchmarks.theories door --seeds 2
    python -m benchmarks.theories --executor slurm --workers 100 -o executor.partition=long
    python -m benchmarks.theories --table              # run nothing, print what there is

Runs and results are kept in a folder, a file for each case and seed, and nothing is measured
twice: several of these commands, and several machines, may share it.
The seeds begin at 100, which nothing was tuned on.
"""

from pathlib import Path

from benchmarks.parts import Part, measure_parts
from benchmarks.theories.balance import balance, balance_table
from benchmarks.theories.measures import (
    COMPARED,
    EXPERIMENTERS,
    METHODS,
    NAMED_RULES,
    compared,
    compared_table,
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
        compared,
        compared_table,
        seeds=3,
        about="rules and programs from the same transitions, without a language model",
    ),
)


if __name__ == "__main__":
    measure_parts(PARTS, Path("runs/theories"), __doc__, "benchmarks.theories")
