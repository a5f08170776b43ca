"""Kinds of world models against the number of transitions that they were made from.

    python -m benchmarks.kinds                          # all of it: many hours
    python -m benchmarks.kinds CartPole-v1 --case induction --seeds 1
    python -m benchmarks.kinds --table                  # run nothing, print what there is

Every kind gets the first rows of one recording, and is scored on the same held-out rows. Runs,
recordings and results are kept in a folder, and nothing is measured twice. A figure of what there
is goes to `docs/kinds-ENVIRONMENT.svg`.
"""

from pathlib import Path

from benchmarks.kinds.measures import ENVIRONMENTS, KINDS, SIZES, drawn, measured, table
from benchmarks.parts import Part, measure_parts

CASES = [f"{kind} {rows}" for kind in KINDS for rows in SIZES]

PARTS = tuple(
    Part(env, CASES, measured(env), table, seeds=2, about="on held-out rows, by rows to learn from")
    for env in ENVIRONMENTS
)


if __name__ == "__main__":
    found = measure_parts(PARTS, Path("runs/kinds"), __doc__, "benchmarks.kinds")
    for env in ENVIRONMENTS:
        if chart := drawn(env, found):
            file = Path("docs") / f"kinds-{env}.svg"
            file.write_text(chart, encoding="utf-8")
            print(file)
