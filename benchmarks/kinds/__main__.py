"""Compare kinds of world models by the number of rows that they are made from.

    python -m benchmarks.kinds                                 # everything: many hours
    python -m benchmarks.kinds CartPole-v1 --case induction --seeds 1
    python -m benchmarks.kinds --table                         # only print existing results

Every kind gets the first rows of one dataset, and is scored on the same held-out rows. A case has
a limit of processor time. Each result is a file in `runs/kinds`, and results of other machines are
in `results.csv` of this package: nothing is measured twice. The command adds new results to that
CSV file, prints tables, and draws `docs/kinds-ENVIRONMENT.svg` for each environment.
"""

from pathlib import Path

from benchmarks.kinds.measures import ENVIRONMENTS, PLAY_SEED, cases_of, measure_case, references
from benchmarks.kinds.tables import (
    REFERENCES,
    SEEDS,
    SHIPPED,
    figure,
    lines_of,
    load,
    markdown,
    save,
)
from benchmarks.parts import Part, measure_parts

PARTS = (
    Part(REFERENCES, references(), measure_case(""), lines_of, seeds=1, first_seed=PLAY_SEED),
    *(
        Part(
            env,
            cases_of(),
            measure_case(env),
            lines_of,
            seeds=SEEDS,
            about="on held-out rows, by rows to learn from",
            first_seed=PLAY_SEED,
        )
        for env in ENVIRONMENTS
    ),
)


if __name__ == "__main__":
    found = measure_parts(PARTS, Path("runs/kinds"), __doc__, "benchmarks.kinds", load(SHIPPED))
    if found:  # not in the process of a single case
        save(found, SHIPPED)
        print("\n".join(markdown(found)))
        for env in ENVIRONMENTS:
            if chart := figure(env, found):
                file = Path("docs") / f"kinds-{env}.svg"
                file.write_text(chart, encoding="utf-8")
                print(file)
