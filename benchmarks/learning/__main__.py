"""How few steps `cwm learn` needs, beside tuned deep and tabular reinforcement learning.

    python -m benchmarks.learning                     # ours, the known environments, ten seeds
    python -m benchmarks.learning objects held-out --seeds 10 11 12
    python -m benchmarks.learning CartPole-v1 --seeds 3 4 5
    python -m benchmarks.learning --baselines         # theirs; needs the extra rl, and hours
    python -m benchmarks.learning --executor ray --workers 64
    python -m benchmarks.learning --table             # run nothing, print what there is

Without a language model. Steps count until 20 fresh episodes, which nothing learns from, return
what is asked for; who stops below that has not reached it. Every certificate is checked with
5,000 further steps. What was measured is kept in `runs/learning`, a file each, and not measured
again: several of these commands, and several machines, may share it. The baselines that ship are
in `baselines.csv`; whatever was measured here comes first.
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
    executor_of,
    kept_cases,
    measure_cases,
    measure_one,
)
from benchmarks.learning.baselines import TABLE, algorithms, reached
from benchmarks.learning.goals import HELD_OUT, SUITES, Goal, exists, threshold
from benchmarks.learning.ours import Case, measured
from benchmarks.machine import machine
from cwm_cli.bench.executor import Executor
from cwm_cli.text import percent
from cwm_cli.views.curves import Chart, Series

SHIPPED = Path(__file__).parent / "baselines.csv"
SEEDS = range(10, 20)
"""None of which the agent was tuned on."""

MODULE, THEIRS = "benchmarks.learning", "baseline"
"""What a case is measured by, and what the words of those begin with that are not ours."""

PATIENCE = 600.0
"""Seconds for a baseline."""

Results = dict[Case, dict[str, Any]]
Baseline = dict[str, Any]


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help=f"environments, or {', '.join(SUITES)}")
    parser.add_argument("--seeds", type=int, nargs="*", default=list(SEEDS))
    parser.add_argument("--folder", type=Path, default=Path("runs/learning"))
    parser.add_argument("--baselines", action="store_true", help="measure theirs, not ours")
    parser.add_argument("--table", action="store_true", help="run nothing, print what there is")
    parser.add_argument("--figure", type=Path, help="draw the share reached over steps, as SVG")
    add_executor_options(parser, workers=None)
    chosen = parser.parse_args()
    if chosen.one:
        _measure_here(chosen.one, chosen.folder)
        return
    chosen.folder.mkdir(parents=True, exist_ok=True)
    goals = _chosen(chosen.names)
    if not chosen.table:
        run = _their_part if chosen.baselines else _our_part
        run(goals, chosen.seeds, chosen.folder, executor_of(chosen))
    ours, theirs = kept(chosen.folder), baselines(chosen.folder)
    print("\n".join(table(goals, ours, theirs, chosen.seeds)))
    print("\n".join(conclusions(goals, ours, chosen.seeds)))
    print(machine())
    if chosen.figure:
        chosen.figure.write_text(figure(goals, ours, theirs, chosen.seeds))


def _chosen(names: Sequence[str]) -> list[Goal]:
    """Return the goals that are named, alone or as a suite."""
    every = {goal.name: [goal] for goals in SUITES.values() for goal in goals}
    known = every | {name: list(goals) for name, goals in SUITES.items()}
    if unknown := [name for name in names if name not in known]:
        raise SystemExit(f"there is no {unknown[0]}: choose from {', '.join(known)}")
    return [goal for name in (names or ["known"]) for goal in known[name]]


def kept(folder: Path) -> Results:
    """Return what was measured of ours; earlier results are lines of one file."""
    file = folder / "ours.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    ours = {Case(*found.pop("case")): found for found in map(json.loads, lines)}
    for words, found in kept_cases(folder).items():
        if words[0] != THEIRS:
            ours[Case(words[0], int(words[1]))] = found
    return ours


def baselines(folder: Path) -> list[Baseline]:
    """Return what was measured of theirs: here, or where nothing was, elsewhere."""
    found: dict[tuple[str, str, str], Baseline] = {}
    for row in (*_rows(SHIPPED), *_measured_here(folder)):
        found[row["name"], row["algorithm"], row["seed"]] = row
    return list(found.values())


def _measured_here(folder: Path) -> Iterator[Baseline]:
    """Yield the baselines that were measured here; earlier ones are rows of one file."""
    yield from _rows(folder / "baselines.csv")
    for words, row in kept_cases(folder).items():
        if words[0] == THEIRS:
            # as such a file has them: what was not reached is empty
            yield {name: "" if value is None else str(value) for name, value in row.items()}


def _rows(file: Path) -> Iterator[Baseline]:
    """Yield the rows of a table."""
    if file.exists():
        with file.open() as lines:
            yield from csv.DictReader(lines)


def _our_part(
    goals: Sequence[Goal], seeds: Sequence[int], folder: Path, executor: Executor
) -> None:
    """Learn what was not learned yet."""
    known = kept(folder)
    missing = [
        (goal, Case(goal.name, seed))
        for seed in seeds
        for goal in goals
        if Case(goal.name, seed) not in known
    ]
    here = {goal.name: exists(goal) for goal, _ in missing}
    for name in [name for name, is_here in here.items() if not is_here]:
        print(f"{name} cannot be made here, and is left out", flush=True)
    missing = [(goal, case) for goal, case in missing if here[goal.name]]
    wanted = {goal.name: threshold(goal, folder) for goal, _ in missing}
    cases = {
        (case.name, str(case.seed)): (case.name, str(case.seed), repr(wanted[goal.name]))
        for goal, case in missing
    }
    for (name, seed), found, reason in measure_cases(MODULE, cases, folder, executor):
        print(_line(Case(name, int(seed)), found or {"error": reason}), flush=True)


def _measure_here(words: Sequence[str], folder: Path) -> None:
    """Measure a case in this process: a goal, the seed and the return, and theirs by algorithm."""
    *about, returned = words
    asked = float(returned)
    every = {goal.name: goal for goals in SUITES.values() for goal in goals}
    if about[0] != THEIRS:
        goal, seed = every[about[0]], int(about[1])
        measure_one(folder, about, lambda: measured(goal, asked, seed) | {"returned": asked})
        return
    _, name, algorithm, number = about

    def outcome() -> dict[str, Any]:
        found = reached(every[name], asked, algorithm, int(number), PATIENCE)
        row = {"name": name, "algorithm": algorithm, "seed": number}
        return row | {"returned": asked, "machine": machine()} | found._asdict()

    measure_one(folder, about, outcome)


def _line(case: Case, found: dict[str, Any]) -> str:
    """Say what came of one."""
    if "error" in found:
        return f"{case.name} {case.seed}: {found['error']}"
    hit = "not reached" if not is_reached(found) else f"{found['hit']} steps"
    final = "none" if "final" not in found else f"{found['final']:.4g}"
    end = f"{found['stopped']} after {found['steps']}"
    return f"{case.name} {case.seed}: {hit}, plays {final}, {end}, {found['seconds']:.0f} s"


def is_reached(found: dict[str, Any]) -> bool:
    """Whether play returned enough, and still did in the end."""
    if found.get("hit") is None or "final" not in found:
        return False
    room = 0.05 * abs(found["returned"])  # 20 other episodes may return a little less
    return bool(found["final"] >= found["returned"] - room)


def _their_part(
    goals: Sequence[Goal], seeds: Sequence[int], folder: Path, executor: Executor
) -> None:
    """Measure the baselines that were not measured here yet."""
    done = {(row["name"], row["algorithm"], row["seed"]) for row in _measured_here(folder)}
    cases = {
        (THEIRS, goal.name, algorithm, str(seed)): (
            *(THEIRS, goal.name, algorithm, str(seed)),
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
        told = reason if found is None else found["hit"] or "not reached"
        print(f"{name} {algorithm} {number}: {told}", flush=True)


def table(
    goals: Sequence[Goal], ours: Results, theirs: Sequence[Baseline], seeds: Sequence[int]
) -> Iterator[str]:
    """Yield a line per environment."""
    heads = "environment|return|goal|ours: steps (worst)|reached|seconds|writing|tabular Q"
    yield f"| {' | '.join([*heads.split('|'), 'best of DQN, PPO, SAC', 'ratio'])} |"
    yield "|---" * 10 + "|"
    for goal in goals:
        found = [ours[case] for seed in seeds if (case := Case(goal.name, seed)) in ours]
        if not found:
            continue
        hits = [one["hit"] for one in found if is_reached(one)]
        mine = _middle(hits, len(found))
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


def _middle(hits: Sequence[float], count: int) -> float | None:
    """Return the median where what was not reached is endless."""
    ordered = sorted(hits)
    half = [place for place in ((count - 1) // 2, count // 2) if place < len(ordered)]
    return sum(ordered[place] for place in half) / 2 if len(half) == 2 else None


def _words(steps: float | None) -> str:
    return "not reached" if steps is None else f"{steps:,.0f}"


def _best(goal: Goal, theirs: Sequence[Baseline], *, tables: bool) -> tuple[float | None, str]:
    """Return the smallest median of some baselines, and how to say it."""
    runs: dict[str, list[Baseline]] = defaultdict(list)
    for row in theirs:
        if row["name"] == goal.name and (row["algorithm"] == TABLE) == tables:
            runs[row["algorithm"]].append(row)
    told = []
    for algorithm, rows in runs.items():
        hits = [float(row["hit"]) for row in rows if row["hit"]]
        middle = _middle(hits, len(rows))
        asked = float(rows[0]["returned"])
        at = "" if goal.returned in (None, asked) else f" (at {asked:g})"
        longest = max(float(row["steps"]) for row in rows)
        words = f"{_words(middle)}{at}" if middle else f"not by {longest:,.0f}{at}"
        told.append((middle, words if tables else f"{algorithm} {words}"))
    known = [one for one in told if one[0] is not None]
    return min(known) if known else (None, told[0][1] if told else "")


def conclusions(goals: Sequence[Goal], ours: Results, seeds: Sequence[int]) -> Iterator[str]:
    """Say of how many certificates the bound held, and how many held-out systems were learned."""
    found = [ours[case] for g in goals for seed in seeds if (case := Case(g.name, seed)) in ours]
    if broken := sum("error" in one for one in found):
        yield f"{broken} of {len(found)} runs broke"
    checked = [one["checked"] for one in found if one.get("checked")]
    if checked:
        broken = sum(not one["holds"] for one in checked)
        yield f"certificates: {len(checked)}, of which {broken} were exceeded in further steps"
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


def figure(
    goals: Sequence[Goal], ours: Results, theirs: Sequence[Baseline], seeds: Sequence[int]
) -> str:
    """Draw in how many steps which share of all runs reached what was asked for."""
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
    label = f"share of runs that play as is asked for, in {len(names)} environments"
    title = "Steps of the environment until play is good"
    return Chart.of(title, "steps of the environment", label, series, logarithmic=True).svg()


if __name__ == "__main__":
    main()
