"""Environment steps that `cwm learn` and tuned reinforcement learning need to play well.

    python -m benchmarks.learning                     # cwm learn, known environments, ten seeds
    python -m benchmarks.learning objects held-out --seeds 10 11 12
    python -m benchmarks.learning CartPole-v1 --seeds 3 4 5
    python -m benchmarks.learning --baselines         # needs the extra rl, and hours
    python -m benchmarks.learning --executor ray --workers 64
    python -m benchmarks.learning --table             # only print the results
    python -m benchmarks.learning --table --folder benchmarks/learning    # the published ones

`cwm learn` runs without a language model. A goal is reached when 20 fresh episodes, which the
agent does not learn from, have the required mean return, unless the final play is worse again.
Every certificate is checked with 5,000 further steps. Each result is a file in `runs/learning`,
and is not measured again, so several commands and machines can share that folder. The package
contains baselines in `baselines.csv`; those measured here override them.
"""

import argparse
import csv
import json
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.cases import (
    add_executor_options,
    load_cases,
    make_executor,
    measure_cases,
    measure_one,
)
from benchmarks.learning.baselines import TABLE, algorithms, measure_baseline
from benchmarks.learning.goals import HELD_OUT, SUITES, Goal, exists, threshold
from benchmarks.learning.ours import Case, measure
from benchmarks.machine import machine
from cwm_cli.bench.executor import Executor
from cwm_cli.text import percent
from cwm_cli.views.curves import Chart, Series

SHIPPED = Path(__file__).parent / "baselines.csv"
PUBLISHED = "ours.jsonl"
"""File of all published results of `cwm learn`."""

SEEDS = range(10, 20)
"""Default seeds, which were not used to tune the agent."""

MODULE, BASELINE = "benchmarks.learning", "baseline"
"""Module that measures a case, and the first word of the cases of baselines."""

BASELINE_SECONDS = 600.0
"""Time limit of a baseline."""

Results = dict[Case, dict[str, Any]]
Baseline = dict[str, Any]


def main() -> None:
    """Measure missing results, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"environments, or {', '.join(SUITES)}")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--baselines", action="store_true", help="measure the baselines")
    parser.add_argument("--table", action="store_true", help="only print the results")
    parser.add_argument(
        "--publish", type=Path, help="write all results without programs to ours.jsonl in a folder"
    )
    parser.add_argument(
        "--figure", type=Path, help="draw the fraction of successful runs over steps, as SVG"
    )
    add_executor_options(parser, workers=None)
    chosen = parser.parse_args()
    if chosen.one:
        _measure_here(chosen.one, chosen.folder)
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    goals = _find_goals(chosen.names)
    if not chosen.table:
        run = _measure_baselines if chosen.baselines else _measure_ours
        run(goals, chosen.seeds, chosen.folder, make_executor(chosen))
    ours, theirs = load_results(chosen.folder), load_baselines(chosen.folder)
    print("\n".join(table(goals, ours, theirs, chosen.seeds)))
    print("\n".join(summary_lines(goals, ours, chosen.seeds)))
    print(machine())
    if chosen.publish:
        publish(ours, chosen.publish)
    if chosen.figure:
        chosen.figure.write_text(draw_figure(goals, ours, theirs, chosen.seeds))


def _find_goals(names: Sequence[str]) -> list[Goal]:
    """Return the named goals; a name may be a suite."""
    every = {goal.name: [goal] for goals in SUITES.values() for goal in goals}
    known = every | {name: list(goals) for name, goals in SUITES.items()}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no {unknown[0]}: choose from {', '.join(known)}")
    return [goal for name in (names or ["known"]) for goal in known[name]]


def load_results(folder: Path) -> Results:
    """Return the results of `cwm learn`: those in the file of published results, and cases."""
    file = folder / PUBLISHED
    lines = file.read_text().splitlines() if file.exists() else []
    ours = {Case(*found.pop("case")): found for found in map(json.loads, lines)}
    for words, found in load_cases(folder).items():
        if words[0] != BASELINE:
            ours[Case(words[0], int(words[1]))] = found
    return ours


def publish(ours: Results, folder: Path) -> None:
    """Write all results to one file, without programs, curves and certificates."""
    dropped = ("program", "curve", "certificate")
    with (folder / PUBLISHED).open("w") as out:
        for case, found in sorted(ours.items()):
            kept = {name: value for name, value in found.items() if name not in dropped}
            out.write(json.dumps({"case": case, **kept}) + "\n")


def load_baselines(folder: Path) -> list[Baseline]:
    """Return the results of the baselines; results of this machine override the package."""
    found: dict[tuple[str, str, str], Baseline] = {}
    for row in (*_rows(SHIPPED), *_measured_here(folder)):
        found[row["name"], row["algorithm"], row["seed"]] = row
    return list(found.values())


def _measured_here(folder: Path) -> Iterator[Baseline]:
    """Yield the baselines measured here; old versions wrote all results to one file."""
    yield from _rows(folder / "baselines.csv")
    for words, row in load_cases(folder).items():
        if words[0] == BASELINE:
            # as text like the rows of the file, "" if not reached
            yield {name: "" if value is None else str(value) for name, value in row.items()}


def _rows(file: Path) -> Iterator[Baseline]:
    """Yield the rows of a CSV file, none if it is missing."""
    if file.exists():
        with file.open() as lines:
            yield from csv.DictReader(lines)


def _measure_ours(
    goals: Sequence[Goal], seeds: Sequence[int], folder: Path, executor: Executor
) -> None:
    """Run `cwm learn` for all goals and seeds without a result."""
    known = load_results(folder)
    missing = [
        (goal, Case(goal.name, seed))
        for seed in seeds
        for goal in goals
        if Case(goal.name, seed) not in known
    ]
    here = {goal.name: exists(goal) for goal, _ in missing}
    for name in [name for name, is_here in here.items() if not is_here]:
        print(f"{name} cannot be made on this machine: skipped", flush=True)
    missing = [(goal, case) for goal, case in missing if here[goal.name]]
    wanted = {goal.name: threshold(goal, folder) for goal, _ in missing}
    cases = {
        (case.name, str(case.seed)): (case.name, str(case.seed), repr(wanted[goal.name]))
        for goal, case in missing
    }
    for (name, seed), found, reason in measure_cases(MODULE, cases, folder, executor):
        print(_line(Case(name, int(seed)), found or {"error": reason}), flush=True)


def _measure_here(words: Sequence[str], folder: Path) -> None:
    """Measure a case in this process.

    The words are the goal, the seed and the return; a baseline has the word `BASELINE` before, and
    the algorithm after the goal.
    """
    *about, returned = words
    required = float(returned)
    every = {goal.name: goal for goals in SUITES.values() for goal in goals}
    if about[0] != BASELINE:
        goal, seed = every[about[0]], int(about[1])
        measure_one(folder, about, lambda: measure(goal, required, seed) | {"returned": required})
        return
    _, name, algorithm, number = about

    def outcome() -> dict[str, Any]:
        found = measure_baseline(every[name], required, algorithm, int(number), BASELINE_SECONDS)
        row = {"name": name, "algorithm": algorithm, "seed": number}
        return row | {"returned": required, "machine": machine()} | found._asdict()

    measure_one(folder, about, outcome)


def _line(case: Case, found: dict[str, Any]) -> str:
    """Return a line with the result of a case."""
    if "error" in found:
        return f"{case.name} {case.seed}: {found['error']}"
    hit = "not reached" if not is_reached(found) else f"{found['hit']} steps"
    final = "none" if "final" not in found else f"{found['final']:.4g}"
    end = f"{found['stopped']} after {found['steps']}"
    return f"{case.name} {case.seed}: {hit}, plays {final}, {end}, {found['seconds']:.0f} s"


def is_reached(found: dict[str, Any]) -> bool:
    """Return whether play reached the return, and its final mean is at most 5 % lower."""
    if found.get("hit") is None or "final" not in found:
        return False
    room = 0.05 * abs(found["returned"])
    return bool(found["final"] >= found["returned"] - room)


def _measure_baselines(
    goals: Sequence[Goal], seeds: Sequence[int], folder: Path, executor: Executor
) -> None:
    """Measure the baselines without a result on this machine."""
    done = {(row["name"], row["algorithm"], row["seed"]) for row in _measured_here(folder)}
    cases = {
        (BASELINE, goal.name, algorithm, str(seed)): (
            *(BASELINE, goal.name, algorithm, str(seed)),
            repr(threshold(goal, folder)),
        )
        for seed in seeds
        for goal in goals
        for algorithm in algorithms(goal)
        if (goal.name, algorithm, str(seed)) not in done
    }
    for (_, name, algorithm, number), found, reason in measure_cases(
        MODULE, cases, folder, executor
    ):
        outcome = reason if found is None else found["hit"] or "not reached"
        print(f"{name} {algorithm} {number}: {outcome}", flush=True)


def table(
    goals: Sequence[Goal], ours: Results, theirs: Sequence[Baseline], seeds: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of the table, one per environment."""
    heads = "environment|return|goal|ours: steps (worst)|reached|seconds|writing|tabular Q"
    yield f"| {' | '.join([*heads.split('|'), 'best of DQN, PPO, SAC', 'ratio'])} |"
    yield "|---" * 10 + "|"
    for goal in goals:
        found = [ours[case] for seed in seeds if (case := Case(goal.name, seed)) in ours]
        if not found:
            continue
        hits = [one["hit"] for one in found if is_reached(one)]
        mine = _median(hits, len(found))
        seconds = [one["hit_seconds"] for one in found if is_reached(one)]
        writing = [
            one["writing_seconds"] / one["seconds"] for one in found if one.get("writing_seconds")
        ]
        tabular, deep = (_best(goal, theirs, tables=tables) for tables in (True, False))
        least = min((steps for steps, _ in (tabular, deep) if steps is not None), default=None)
        cells = [
            goal.name,
            f"{found[0]['returned']:.4g}" if "returned" in found[0] else "",
            f"{goal.steps:,}",
            f"{_words(mine)} ({_words(max(hits) if len(hits) == len(found) else None)})",
            f"{len(hits)} of {len(found)}",
            f"{median(seconds):.0f}" if seconds else "",
            percent(median(writing)) if writing else "",
            tabular[1],
            deep[1],
            f"{least / mine:.0f}" if least and mine else "",
        ]
        yield f"| {' | '.join(cells)} |"


def _median(hits: Sequence[float], count: int) -> float | None:
    """Return the median of `count` runs, None if infinite; failed runs count as infinite."""
    ordered = sorted(hits)
    middle = [place for place in ((count - 1) // 2, count // 2) if place < len(ordered)]
    return sum(ordered[place] for place in middle) / 2 if len(middle) == 2 else None


def _words(steps: float | None) -> str:
    return "not reached" if steps is None else f"{steps:,.0f}"


def _best(goal: Goal, theirs: Sequence[Baseline], *, tables: bool) -> tuple[float | None, str]:
    """Return the smallest median of the baselines with or without tables, and its text."""
    runs: dict[str, list[Baseline]] = defaultdict(list)
    for row in theirs:
        if row["name"] == goal.name and (row["algorithm"] == TABLE) == tables:
            runs[row["algorithm"]].append(row)
    medians: list[tuple[float | None, str]] = []
    for algorithm, rows in runs.items():
        hits = [float(row["hit"]) for row in rows if row["hit"]]
        steps = _median(hits, len(rows))
        required = float(rows[0]["returned"])
        at = "" if goal.returned in (None, required) else f" (at {required:g})"
        longest = max(float(row["steps"]) for row in rows)
        words = f"{_words(steps)}{at}" if steps else f"not by {longest:,.0f}{at}"
        medians.append((steps, words if tables else f"{algorithm} {words}"))
    known = [one for one in medians if one[0] is not None]
    return min(known) if known else (None, medians[0][1] if medians else "")


def summary_lines(goals: Sequence[Goal], ours: Results, seeds: Sequence[int]) -> Iterator[str]:
    """Yield the numbers of exceeded certificates and learned held-out systems, and the time."""
    found = [ours[case] for g in goals for seed in seeds if (case := Case(g.name, seed)) in ours]
    if broken := sum("error" in one for one in found):
        yield f"{broken} of {len(found)} runs failed with an error"
    checked = [one["checked"] for one in found if one.get("checked")]
    if checked:
        broken = sum(not one["holds"] for one in checked)
        yield f"certificates: {len(checked)} ({broken} exceeded in further steps)"
    names = {goal.name for goal in goals} & {goal.name for goal in HELD_OUT}
    several: dict[str, list[bool]] = defaultdict(list)
    for case, one in ours.items():
        if case.name in names and case.seed in seeds:
            several[case.name].append(is_reached(one))
    if several:
        learned = [
            name for name, reached_it in several.items() if 2 * sum(reached_it) > len(reached_it)
        ]
        yield f"held-out systems: {len(learned)} of {len(several)} learned by most seeds"
    spent = sum(one.get("seconds", 0.0) for one in found)
    writing = sum(one.get("writing_seconds", 0.0) for one in found)
    if spent:
        yield f"writing programs took {percent(writing / spent)} of the time of learning"


def draw_figure(
    goals: Sequence[Goal], ours: Results, theirs: Sequence[Baseline], seeds: Sequence[int]
) -> str:
    """Return an SVG of the fraction of runs that reached the goal over the steps."""
    names = {row["name"] for row in theirs} & {case.name for case in ours}
    names &= {goal.name for goal in goals}
    mine = [
        one["hit"] if is_reached(one) else None
        for case, one in ours.items()
        if case.name in names and case.seed in seeds
    ]
    runs = {"cwm learn": mine}
    for row in sorted(theirs, key=lambda row: row["algorithm"]):
        if row["name"] in names:
            hit = float(row["hit"]) if row["hit"] else None
            runs.setdefault(row["algorithm"], []).append(hit)
    series = []
    for name, hits in runs.items():
        reached_at = sorted(hit for hit in hits if hit is not None)
        if reached_at:
            shares = [(place + 1) / len(hits) for place in range(len(reached_at))]
            series.append(Series(f"{name} ({len(hits)} runs)", reached_at, shares))
    label = f"fraction of runs that reached the goal, in {len(names)} environments"
    title = "Environment steps until the goal is reached"
    return Chart.of(title, "steps of the environment", label, series, logarithmic=True).svg()


if __name__ == "__main__":
    main()
