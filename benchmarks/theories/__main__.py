"""What rules in words reach, without a language model: doors, the playground, beside programs.

    python -m benchmarks.theories                      # all of it: an hour and more
    python -m benchmarks.theories door --seeds 2
    python -m benchmarks.theories --table              # run nothing, print what there is

Runs and results are kept in a folder, one line for each case and seed, and nothing is measured
twice. The seeds begin at 100, which nothing was tuned on.
"""

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.theories.balance import balance, balance_table
from benchmarks.theories.measures import (
    COMPARED,
    EXPERIMENTERS,
    METHODS,
    NAMED_RULES,
    Figures,
    Job,
    Part,
    compared,
    compared_table,
    door,
    door_table,
    playground,
    playground_table,
)
from cwm_cli.errors import CwmError

FIRST_SEED = 100

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


def main() -> None:
    """Measure what is missing, and print the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [part.name for part in PARTS]
    parser.add_argument("names", nargs="*", help=f"of {', '.join(names)}")
    parser.add_argument("--seeds", type=int, help="how many; without it as many as a part has")
    parser.add_argument("--folder", type=Path, default=Path("runs/theories"))
    parser.add_argument("--case", help="only cases that begin so")
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    chosen = parser.parse_args()
    if unknown := set(chosen.names) - set(names):
        parser.error(f"there is no {min(unknown)}: choose from {', '.join(names)}")
    file = chosen.folder / "results.jsonl"
    for part in PARTS:
        if chosen.names and part.name not in chosen.names:
            continue
        cases = [case for case in part.cases if case.startswith(chosen.case or "")]
        seeds = range(FIRST_SEED, FIRST_SEED + (chosen.seeds or part.seeds))
        if not chosen.table:
            for seed in seeds:
                for case in cases:
                    _measure(part, Job(part.name, case, seed), chosen.folder, file)
        kept = _kept(file)
        found = {
            case: [kept[job] for seed in seeds if (job := Job(part.name, case, seed)) in kept]
            for case in cases
        }
        print(f"\n{part.name}: {part.about}")
        print("\n".join(part.table({case: runs for case, runs in found.items() if runs})))
    print(f"\n{machine()}")


def _kept(file: Path) -> dict[Job, Figures]:
    """Return what was measured."""
    lines = file.read_text().splitlines() if file.exists() else []
    found = map(json.loads, lines)
    return {Job(each["part"], each["case"], each["seed"]): each["figures"] for each in found}


def _measure(part: Part, job: Job, folder: Path, file: Path) -> None:
    """Measure a case that was not measured before, and write that down."""
    if job in _kept(file):
        return
    began = time.monotonic()
    words: Sequence[str] = (job.part, *job.case.replace(":", "").split(), str(job.seed))
    try:
        figures = part.measure(job.case, job.seed, folder / "-".join(words))
    except CwmError as error:
        print(f"{job.part}, {job.case}, seed {job.seed}: {error}", flush=True)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with file.open("a") as lines:
        lines.write(json.dumps({**job._asdict(), "figures": figures}) + "\n")
    seconds = time.monotonic() - began
    print(f"{job.part}, {job.case}, seed {job.seed} ({seconds:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
